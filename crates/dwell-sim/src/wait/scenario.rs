// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine, a device and a load on them, as data.

use dwell_policy::{DeviceClass, Ns, Profile};
use serde::{Deserialize, Serialize};

use crate::assign::{AssignError, in_line, put};
use crate::rng::Rng;

/// The machine and the load of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// CPUs.
    pub cores: u32,
    /// Threads that make one request after the other.
    pub threads: u32,
    /// Processes of others that compute all the time.
    pub stressors: u32,
    /// Size of each request.
    pub size_bytes: u64,
    /// CPU time that a thread spends between two requests.
    pub think_ns: Ns,
    /// Virtual time that is simulated.
    pub duration_ms: u64,
    /// How long a thread runs while others are ready.
    pub slice_ns: Ns,
    /// How much more CPU time a running thread must have had than one that wakes up, to make way.
    pub wakeup_granularity_ns: Ns,
    /// One switch between two threads that both have something to do.
    pub switch_ns: Ns,
    /// Window of the system monitor.
    pub window_ms: u64,
    /// The device.
    pub device: Device,
}

/// The device that threads wait for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Latency of a request that is spun for on an idle machine, its transfer left out: a time, or
    /// shares with times as in `0=2us,0.5=3us,0.9=5us,1=30us`.
    pub latency: Distribution,
    /// How much later a thread goes on that blocked, with nothing else to run; below 0 where
    /// the way of those that block is the shorter one.
    pub block_extra_ns: i64,
    /// CPU time of a thread for a request that it blocks on.
    pub block_cpu_ns: Ns,
    /// Requests that are served at the same time.
    pub parallel: u32,
    /// Bandwidth that all requests share; 0 for any.
    pub bandwidth_mb_per_s: u64,
    /// CPU time of a kernel worker for each request, which must find a CPU; 0 for none.
    pub worker_ns: Ns,
    /// Whether requests are served on the caller's own CPU, like copies of memory.
    pub in_caller: bool,
    /// Whether a spinning thread's requests are really polled, so that no interrupt is raised.
    pub polled: bool,
    /// By how much a timed sleep comes back late.
    pub sleep_overshoot_ns: Ns,
    /// `very-fast`, `fast`, `mainstream`, or `auto` to judge it as a probe would.
    pub class: String,
    /// Largest request that may be spun for; 0 to judge it as a probe would.
    pub size_threshold_bytes: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            cores: 4,
            threads: 1,
            stressors: 0,
            size_bytes: 4096,
            think_ns: 300,
            duration_ms: 1000,
            slice_ns: 3_000_000,
            wakeup_granularity_ns: 1_000_000,
            switch_ns: 1_500,
            window_ms: 100,
            device: Device::default(),
        }
    }
}

impl Default for Device {
    fn default() -> Self {
        Device {
            latency: Distribution(vec![(0.0, 3_000)]),
            block_extra_ns: 5_000,
            block_cpu_ns: 3_000,
            parallel: 16,
            bandwidth_mb_per_s: 0,
            worker_ns: 0,
            in_caller: false,
            polled: false,
            sleep_overshoot_ns: 50_000,
            class: "auto".into(),
            size_threshold_bytes: 0,
        }
    }
}

/// A latency by the share of requests that it is at most: straight lines between the points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Distribution(Vec<(f64, Ns)>);

/// Why a scenario is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// It is no scenario.
    #[error("not a scenario: {0}")]
    Text(String),
    /// A change cannot be made.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// A value cannot be.
    #[error("{0}: must be {1}")]
    Value(&'static str, &'static str),
}

impl Scenario {
    /// Reads a scenario from TOML, in which all may be left out, and changes what `sets` say, each
    /// `name=value`, those of the device after `device.`.
    pub fn parse(text: &str, sets: &[String]) -> Result<Self, ScenarioError> {
        let given: Scenario = toml::from_str(text)
            .map_err(|e| ScenarioError::Text(in_line(text, e.span(), e.message())))?;
        given.with(sets)
    }

    /// This scenario with changes.
    pub fn with(&self, sets: &[String]) -> Result<Self, ScenarioError> {
        let text = |e: toml::ser::Error| ScenarioError::Text(e.to_string());
        let mut table = toml::Table::try_from(self).map_err(text)?;
        for set in sets {
            put(&mut table, set)?;
        }
        let wrong = |e: toml::de::Error| ScenarioError::Text(e.message().to_owned());
        let scenario: Scenario = table.try_into().map_err(wrong)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// As TOML, to copy and edit.
    pub fn to_toml(&self) -> Result<String, ScenarioError> {
        toml::to_string(self).map_err(|e| ScenarioError::Text(e.to_string()))
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let device = &self.device;
        let spans = [
            ("think_ns", self.think_ns),
            ("switch_ns", self.switch_ns),
            ("wakeup_granularity_ns", self.wakeup_granularity_ns),
            ("device.block_cpu_ns", device.block_cpu_ns),
            ("device.worker_ns", device.worker_ns),
            ("device.sleep_overshoot_ns", device.sleep_overshoot_ns),
            ("device.block_extra_ns", device.block_extra_ns.unsigned_abs()),
        ];
        for (name, ns) in spans {
            if ns > 10_000_000_000 {
                return Err(ScenarioError::Value(name, "at most 10 seconds"));
            }
        }
        for (name, within, must) in [
            ("cores", (1..=1024).contains(&self.cores), "1 to 1024"),
            ("threads", (1..=10_000).contains(&self.threads), "1 to 10000"),
            ("stressors", self.stressors <= 10_000, "at most 10000"),
            ("size_bytes", (1..=1 << 30).contains(&self.size_bytes), "1 to 1 GiB"),
            ("duration_ms", (1..=600_000).contains(&self.duration_ms), "1 to 600000"),
            ("slice_ns", (10_000..=1_000_000_000).contains(&self.slice_ns), "10 µs to 1 s"),
            ("window_ms", (1..=10_000).contains(&self.window_ms), "1 to 10000"),
            ("device.parallel", (1..=65_536).contains(&device.parallel), "1 to 65536"),
            (
                "device.class",
                device.class == "auto" || class_of(&device.class).is_some(),
                "very-fast, fast, mainstream or auto",
            ),
        ] {
            if !within {
                return Err(ScenarioError::Value(name, must));
            }
        }
        Ok(())
    }

    /// What a probe would keep of this device.
    pub fn profile(&self) -> Profile {
        let device = &self.device;
        let latency_ns = device.latency.mean_ns() + device.transfer_ns(4096);
        let ps_per_byte = match device.bandwidth_mb_per_s {
            0 => 0,
            mb_per_s => 1_000_000 / mb_per_s,
        };
        let mut profile = Profile {
            class: DeviceClass::Fast,
            size_threshold_bytes: device.size_threshold_bytes,
            async_threshold_bytes: 0,
            ring_threshold_bytes: 0,
            switch_ns: device.block_extra_ns.max(0) as Ns,
            reload_ns: 0,
            sleep_overshoot_ns: device.sleep_overshoot_ns,
            latency_ns,
            latency_ps_per_byte: ps_per_byte,
        };
        // Up to which size spinning gains more than a twentieth.
        let pays = |size_bytes: u64| {
            let spun_ns = profile.latency_of(size_bytes) as f64;
            device.block_extra_ns as f64 > 0.05 * spun_ns
        };
        let largest = (12..=16).rev().map(|shift| 1u64 << shift).find(|&bytes| pays(bytes));
        let judged = match (device.in_caller, largest) {
            (true, _) => DeviceClass::VeryFast,
            (false, Some(_)) => DeviceClass::Fast,
            (false, None) => DeviceClass::Mainstream,
        };
        profile.class = class_of(&device.class).unwrap_or(judged);
        if profile.size_threshold_bytes == 0 {
            profile.size_threshold_bytes = largest.unwrap_or(64 << 10);
        }
        if profile.class != DeviceClass::Mainstream {
            profile.async_threshold_bytes = profile.size_threshold_bytes;
        }
        profile
    }
}

impl Device {
    /// Time on the link, in nanoseconds.
    pub fn transfer_ns(&self, size_bytes: u64) -> Ns {
        match self.bandwidth_mb_per_s {
            0 => 0,
            mb_per_s => size_bytes.saturating_mul(1000) / mb_per_s,
        }
    }
}

fn class_of(word: &str) -> Option<DeviceClass> {
    [DeviceClass::VeryFast, DeviceClass::Fast, DeviceClass::Mainstream]
        .into_iter()
        .find(|class| class.as_str() == word)
}

impl Distribution {
    /// Of these points, shares from 0 to 1 and latencies rising; one point is a constant.
    pub fn new(points: Vec<(f64, Ns)>) -> Option<Self> {
        let shares = points.iter().all(|(share, _)| (0.0..=1.0).contains(share));
        let rising = points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let possible = points.iter().all(|(_, ns)| *ns <= 10_000_000_000);
        (!points.is_empty() && shares && rising && possible).then_some(Distribution(points))
    }

    /// With this mean: the last point is chosen so that it comes out, as far as it can.
    pub fn with_mean(p10_ns: Ns, median_ns: Ns, p90_ns: Ns, mean_ns: Ns) -> Self {
        let (p10, median, p90) = (p10_ns, median_ns.max(p10_ns), p90_ns.max(median_ns));
        let (a, b, c) = (p10 as f64, median as f64, p90 as f64);
        // The first tenth is flat, each further part has the mean of its ends.
        let below = 0.1 * a + 0.4 * (a + b) / 2.0 + 0.4 * (b + c) / 2.0;
        let most = (2.0 * (mean_ns as f64 - below) / 0.1 - c).max(c);
        Distribution(vec![(0.1, p10), (0.5, median), (0.9, p90), (1.0, most as Ns)])
    }

    /// The latency that this share of requests is at most.
    pub fn at(&self, share: f64) -> Ns {
        let after = self.0.partition_point(|(known, _)| *known <= share);
        let before = after.checked_sub(1).map(|before| self.0[before]);
        match (before, self.0.get(after).copied()) {
            (Some((from, low)), Some((to, high))) => {
                low + ((high - low) as f64 * (share - from) / (to - from)) as Ns
            }
            (Some((_, ns)), None) | (None, Some((_, ns))) => ns,
            (None, None) => 0,
        }
    }

    /// The mean.
    pub fn mean_ns(&self) -> Ns {
        const STEPS: u32 = 10_000;
        let sum: u128 = (0..STEPS)
            .map(|step| u128::from(self.at((f64::from(step) + 0.5) / f64::from(STEPS))))
            .sum();
        (sum / u128::from(STEPS)) as Ns
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> Ns {
        match self.0.as_slice() {
            [(_, ns)] => *ns,
            _ => self.at((rng.next() >> 11) as f64 / (1u64 << 53) as f64),
        }
    }
}

impl TryFrom<String> for Distribution {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || {
            format!(
                "latency {text:?}: a time such as 3us, or shares with rising times as in \
                 0=2us,0.5=3us,1=30us"
            )
        };
        let point = |part: &str| -> Option<(f64, Ns)> {
            match part.split_once('=') {
                None => Some((0.0, time_ns(part)?)),
                Some((share, time)) => Some((share.trim().parse().ok()?, time_ns(time)?)),
            }
        };
        let points = text.split(',').map(point).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        Distribution::new(points).ok_or_else(wrong)
    }
}

impl From<Distribution> for String {
    fn from(distribution: Distribution) -> String {
        match distribution.0.as_slice() {
            [(_, ns)] => format!("{ns}ns"),
            points => {
                let each = points.iter().map(|(share, ns)| format!("{share}={ns}ns"));
                each.collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// A time with its unit, in nanoseconds.
fn time_ns(text: &str) -> Option<Ns> {
    let text = text.trim();
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (digits, unit) =
        units.iter().find_map(|(end, unit)| Some((text.strip_suffix(end)?, *unit)))?;
    let number = digits.trim().parse::<f64>().ok()? * unit;
    (number.is_finite() && number >= 0.0).then_some(number.round() as Ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_read_drawn_and_written() {
        let three = Distribution::try_from("3us".to_owned()).unwrap();
        assert_eq!((three.at(0.0), three.at(1.0), three.mean_ns()), (3000, 3000, 3000));
        let text = "0=2000ns,0.5=3000ns,1=5000ns";
        let drawn = Distribution::try_from(text.to_owned()).unwrap();
        assert_eq!((drawn.at(0.25), drawn.at(0.5), drawn.at(0.75)), (2500, 3000, 4000));
        assert!((3240..=3260).contains(&drawn.mean_ns()), "{}", drawn.mean_ns());
        assert_eq!(String::from(drawn), text);
        for wrong in ["", "3", "fast", "0=3us,0.5=2us", "0.5=1us,0.5=2us", "2=3us", "-3us", "1e30s"]
        {
            assert!(Distribution::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        let fitted = Distribution::with_mean(900, 1000, 1200, 1500);
        assert!((1480..=1520).contains(&fitted.mean_ns()), "{}", fitted.mean_ns());
    }

    #[test]
    fn a_scenario_is_read_changed_and_judged() {
        let text = "cores = 32\n[device]\nlatency = \"3us\"\nbandwidth_mb_per_s = 2000";
        let sets = ["stressors=3".to_owned(), "device.latency=10us".into()];
        let scenario = Scenario::parse(text, &sets).unwrap();
        assert_eq!((scenario.cores, scenario.stressors), (32, 3));
        let profile = scenario.profile();
        assert_eq!((profile.class, profile.latency_ns), (DeviceClass::Fast, 12_048));
        assert_eq!(profile.size_threshold_bytes, 64 << 10);
        let slow = scenario.with(&["device.latency=1ms".into()]).unwrap();
        assert_eq!(slow.profile().class, DeviceClass::Mainstream);
        let copied = scenario.with(&["device.in_caller=true".into()]).unwrap();
        assert_eq!(copied.profile().class, DeviceClass::VeryFast);
        let said = scenario.with(&["device.class=mainstream".into()]).unwrap();
        assert_eq!(said.profile().class, DeviceClass::Mainstream);
    }

    #[test]
    fn an_impossible_scenario_is_said() {
        let told = |set: &str| Scenario::default().with(&[set.to_owned()]).unwrap_err().to_string();
        for (set, says) in [
            ("cores=0", "cores: must be 1 to 1024"),
            ("cores=many", "whole number"),
            ("core=1", "`core`"),
            ("device=1", "`device`"),
            ("device.latency=soon", "3us"),
            ("device.class=quick", "mainstream"),
            ("device.block_extra_ns=99999999999", "10 seconds"),
            ("slice_ns", "name=value"),
        ] {
            assert!(told(set).contains(says), "{set}: {}", told(set));
        }
        assert!(Scenario::parse("color = 1", &[]).unwrap_err().to_string().contains("color"));
    }
}
