// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other users of the CPUs while a probe ran: what it measured then is not the device alone.

use std::time::Duration;

use dwell_policy::Ns;

use dwell::monitor::{Config, SystemMonitor, busy_ns};

/// Share of the CPUs, 0–1, above which others disturb a measurement.
const DISTURBS: f32 = 0.1;
/// A shorter look sees nothing: the kernel's accounting goes in steps of 10 ms.
const SHORTEST: Duration = Duration::from_millis(20);

/// Looks at the machine while this process does nothing, so that nothing seen is our own.
pub struct Company {
    monitor: Option<SystemMonitor>,
    look: Duration,
    most: f32,
}

impl Company {
    /// Takes a first look for so long; the last one will be as long.
    pub fn look(look_ns: Ns) -> Company {
        let config = Config { window: Duration::from_secs(1), ..Config::default() };
        // Where nobody counts CPU time, the monitor would take the CPUs for full.
        let monitor = busy_ns().and_then(|_| SystemMonitor::start(config).ok());
        let look = Duration::from_nanos(look_ns).max(SHORTEST);
        let mut company = Company { monitor, look, most: 0.0 };
        company.look_again();
        company
    }

    fn look_again(&mut self) {
        if let Some(monitor) = &self.monitor {
            monitor.sample_once();
            std::thread::sleep(self.look);
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
