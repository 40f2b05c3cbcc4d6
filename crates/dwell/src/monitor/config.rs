// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a monitor works.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Sharing;
use crate::off::OffSwitch;

/// How the monitor works.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Length of a window, 50 ms to 1 s.
    pub window: Duration,
    /// Utilisation, 0–1, above which the CPUs count as busy; `None` for what leaves one
    /// spinner's share.
    pub threshold: Option<f32>,
    /// How far the threshold drops, 0–1, once others are above it, until they are below.
    pub hysteresis: f32,
    /// The page shared with the other Dwell processes of the host; `None` to be alone.
    pub host_page: Option<PathBuf>,
    /// Which processes share that page.
    pub sharing: Sharing,
    /// Length of a turn, where the limit does not suffice for all processes: at least four windows.
    /// 1 ms to 60 s. The processes that share a host page must agree about it.
    pub turn: Duration,
    /// CPU time that busy-waiting may use at most, as a share, 0–1, of the CPUs that the process
    /// may run on; `None` for no cap. It holds for each window, whatever the policy.
    pub spin_cap: Option<f32>,
    /// Where to look, once a window, whether Dwell is switched off.
    pub off_switch: OffSwitch,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            window: Duration::from_millis(100),
            threshold: None,
            hysteresis: 0.1,
            host_page: None,
            sharing: Sharing::SameUser,
            turn: Duration::from_secs(1),
            spin_cap: None,
            off_switch: OffSwitch::default(),
        }
    }
}

impl Config {
    /// Length of a window in milliseconds, as host pages have it; [`Config::check`] bounds it.
    pub(super) fn window_ms(&self) -> u32 {
        self.window.as_millis() as u32
    }

    pub(super) fn turn_ms(&self) -> u32 {
        self.turn.as_millis() as u32
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(Duration::from_millis(50)..=Duration::from_secs(1)).contains(&self.window) {
            return wrong(format!("window is {:?}, must be 50ms to 1s", self.window));
        }
        let fractions = [
            ("threshold", self.threshold),
            ("hysteresis", Some(self.hysteresis)),
            ("spin_cap", self.spin_cap),
        ];
        for (name, value) in fractions {
            if let Some(value) = value
                && !(0.0..=1.0).contains(&value)
            {
                return wrong(format!("{name} is {value}, must be 0 to 1"));
            }
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.turn) {
            return wrong(format!("turn is {:?}, must be 1ms to 60s", self.turn));
        }
        Ok(())
    }
}
