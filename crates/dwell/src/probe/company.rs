// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who else used the CPUs while a probe ran: what it measured then is not the device alone.

use std::time::Duration;

use crate::monitor::{Config, SystemMonitor, busy_ns};

/// Share of the CPUs, 0–1, above which others disturb a measurement.
const DISTURBS: f32 = 0.1;
/// How long to look, at the beginning and at the end: long against the 10 ms steps of the kernel's
/// accounting.
const LOOK: Duration = Duration::from_millis(300);

/// Looks at the machine while this process does nothing, so that nothing seen is our own.
pub struct Company {
    monitor: Option<SystemMonitor>,
    most: f32,
}

impl Company {
    /// Takes a first look.
    pub fn look() -> Company {
        let config = Config { window_ms: 1000, ..Config::default() };
        // Where nobody counts CPU time, the monitor would take the CPUs for full.
        let monitor = busy_ns().and_then(|_| SystemMonitor::start(config).ok());
        let mut company = Company { monitor, most: 0.0 };
        company.look_again();
        company
    }

    fn look_again(&mut self) {
        if let Some(monitor) = &self.monitor {
            monitor.sample_once();
            std::thread::sleep(LOOK);
            self.most = self.most.max(monitor.sample_once().others());
        }
    }

    /// Takes a last look; a remark where others were busy.
    pub fn remark(mut self) -> Option<String> {
        self.look_again();
        (self.most > DISTURBS).then(|| {
            format!(
                "others used {:.0} % of the CPUs during the probe: latencies may be too high; \
                 measure again on a quiet machine",
                self.most * 100.0
            )
        })
    }
}
