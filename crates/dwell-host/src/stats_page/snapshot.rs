// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one process under Dwell tells of itself at one moment.

use dwell_policy::{Load, Ns};
use serde::{Deserialize, Serialize};

use dwell::learner::LearnerState;
use dwell::stats::Stats;

/// Most device rows that one process publishes; what is beyond is added up in the last.
pub const MOST_DEVICES: usize = 16;

/// The identity of a process, and the run to which it belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot: with the pid, this names a process for ever.
    pub start_ticks: u64,
    /// Its pid namespace; 0 when unknown.
    pub namespace: u64,
    /// Shared by all processes of one run.
    #[serde(with = "hex")]
    pub run: u64,
    /// The run's first process.
    pub root_pid: u32,
    /// When that one started, in clock ticks since boot.
    pub root_start_ticks: u64,
    /// What the process is called.
    pub command: String,
    /// Whether decisions are only recorded, and nothing is changed.
    #[serde(alias = "observe")]
    pub shadow: bool,
    /// When it came under Dwell, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// 64 bits as text: JSON's numbers are not made for all of them.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// What a process is told from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    /// Changes with every order.
    pub generation: u32,
    /// Whether the process is to leave everything to the kernel.
    pub off: bool,
    /// The policy to use in place of the one that it was started with.
    pub policy: Option<String>,
}

/// One device, or one way of using it, as a process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// What it is called.
    pub name: String,
    /// Its class; empty when it was never probed.
    pub class: String,
    /// The policy in force.
    pub policy: String,
    /// What was found out about it.
    pub learner: LearnerState,
    /// By how many percent its steered requests took longer than those held back, once that has
    /// turned it off; else 0.
    pub regressed_percent: u64,
    /// What its requests did.
    pub stats: Stats,
}

/// Calls that were left to the kernel without a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Passed {
    /// How many.
    pub calls: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// What the kernel accounts to the whole process and to the children that it has waited for
/// (`/proc/PID/io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessIo {
    /// Bytes that read calls returned.
    pub rchar: u64,
    /// Bytes that write calls took.
    pub wchar: u64,
    /// Bytes fetched from storage.
    pub read_bytes: u64,
    /// Bytes sent to storage.
    pub write_bytes: u64,
}

impl ProcessIo {
    /// From the text of `/proc/PID/io`; what is missing there is 0.
    pub fn parse(text: &str) -> ProcessIo {
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        ProcessIo {
            rchar: of("rchar"),
            wchar: of("wchar"),
            read_bytes: of("read_bytes"),
            write_bytes: of("write_bytes"),
        }
    }

    /// What came since an earlier look.
    pub fn since(&self, earlier: &ProcessIo) -> ProcessIo {
        ProcessIo {
            rchar: self.rchar.saturating_sub(earlier.rchar),
            wchar: self.wchar.saturating_sub(earlier.wchar),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
        }
    }
}

/// The machine, as the process's monitor saw it in its last window. Fractions 0–1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadNow {
    /// Utilisation by others.
    pub others: f32,
    /// Utilisation by everybody.
    pub total: f32,
    /// CPU threshold in force.
    pub threshold: f32,
    /// Runnable threads of others.
    pub competitors: u8,
    /// Whether the spinner limit has room.
    pub may_spin: bool,
    /// Whether the spinner limit is above 0.
    pub limit_permits: bool,
    /// Whether the process has seen that Dwell is switched off on this machine.
    pub off: bool,
}

impl From<Load> for LoadNow {
    fn from(load: Load) -> LoadNow {
        LoadNow {
            others: load.others(),
            total: load.total(),
            threshold: load.threshold(),
            competitors: load.competitors,
            may_spin: load.may_spin,
            limit_permits: load.limit_permits,
            off: load.off,
        }
    }
}

impl From<LoadNow> for Load {
    fn from(load: LoadNow) -> Load {
        let LoadNow { others, total, threshold, competitors, may_spin, limit_permits, off } = load;
        let mut packed = Load::new(others, total, threshold);
        (packed.competitors, packed.may_spin) = (competitors, may_spin);
        (packed.limit_permits, packed.off) = (limit_permits, off);
        packed
    }
}

/// What one process, or several added up, did under Dwell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The process.
    pub header: Header,
    /// What it was told; a publication leaves this alone.
    pub control: Control,
    /// When it was published, in nanoseconds of the host's monotonic clock.
    pub published_ns: Ns,
    /// How many processes are added up here.
    pub processes: u64,
    /// Its devices.
    pub devices: Vec<Device>,
    /// What was not decided.
    pub passed: Passed,
    /// What the kernel accounts to it.
    pub io: ProcessIo,
    /// The machine.
    pub load: Option<LoadNow>,
}

impl Snapshot {
    /// Whether the process leaves everything to the kernel: it was told so, or Dwell is switched
    /// off.
    pub fn is_off(&self) -> bool {
        self.control.off || self.load.is_some_and(|load| load.off)
    }

    /// Adds another process: figures are added up, devices by name and class; the header remains,
    /// and the load is that of the later one.
    pub fn merge(&mut self, other: &Snapshot) {
        let sum = |own: &mut u64, other: u64| *own = own.saturating_add(other);
        for device in &other.devices {
            self.add_device(device);
        }
        sum(&mut self.processes, other.processes);
        sum(&mut self.passed.calls, other.passed.calls);
        sum(&mut self.passed.bytes, other.passed.bytes);
        sum(&mut self.io.rchar, other.io.rchar);
        sum(&mut self.io.wchar, other.io.wchar);
        sum(&mut self.io.read_bytes, other.io.read_bytes);
        sum(&mut self.io.write_bytes, other.io.write_bytes);
        if other.published_ns >= self.published_ns {
            self.published_ns = other.published_ns;
            self.load = other.load.or(self.load);
        }
    }

    /// Adds a device to the one of the same name and class, or as a new one.
    pub fn add_device(&mut self, device: &Device) {
        let same = |own: &&mut Device| own.name == device.name && own.class == device.class;
        match self.devices.iter_mut().find(same) {
            Some(own) => own.merge(device),
            None => self.devices.push(device.clone()),
        }
    }

    /// All devices added up.
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        self.devices.iter().for_each(|device| all.merge(&device.stats));
        all
    }

    /// What was done since an earlier snapshot of the same process.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut since = self.clone();
        for device in &mut since.devices {
            let then =
                earlier.devices.iter().find(|d| d.name == device.name && d.class == device.class);
            if let Some(then) = then {
                device.stats = device.stats.since(&then.stats);
            }
        }
        let less = |own: &mut u64, then: u64| *own = own.saturating_sub(then);
        less(&mut since.passed.calls, earlier.passed.calls);
        less(&mut since.passed.bytes, earlier.passed.bytes);
        less(&mut since.io.rchar, earlier.io.rchar);
        less(&mut since.io.wchar, earlier.io.wchar);
        less(&mut since.io.read_bytes, earlier.io.read_bytes);
        less(&mut since.io.write_bytes, earlier.io.write_bytes);
        since
    }
}

impl Device {
    pub(super) fn merge(&mut self, other: &Device) {
        if self.policy != other.policy {
            self.policy = "several".to_owned();
        }
        let (mine, theirs) = (&mut self.learner, other.learner);
        mine.learns |= theirs.learns;
        mine.kinds = mine.kinds.saturating_add(theirs.kinds);
        mine.spins = mine.spins.saturating_add(theirs.spins);
        mine.switches = mine.switches.saturating_add(theirs.switches);
        mine.trials = mine.trials.saturating_add(theirs.trials);
        self.regressed_percent = self.regressed_percent.max(other.regressed_percent);
        self.stats.merge(&other.stats);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_add_up_by_device() {
        let device = |name: &str, policy: &str| {
            let (name, policy) = (name.into(), policy.into());
            let mut device = Device { name, policy, ..Device::default() };
            device.stats.bytes_read = 10;
            device
        };
        let mut one = Snapshot {
            processes: 1,
            published_ns: 5,
            devices: vec![device("loop0", "smartcon")],
            passed: Passed { calls: 1, bytes: u64::MAX },
            ..Snapshot::default()
        };
        let other = Snapshot {
            processes: 2,
            published_ns: 9,
            devices: vec![device("loop0", "block"), device("vda", "block")],
            passed: Passed { calls: 1, bytes: 1 },
            load: Some(Load::default().into()),
            ..Snapshot::default()
        };
        let earlier = one.clone();
        one.merge(&other);
        assert_eq!((one.processes, one.published_ns, one.devices.len()), (3, 9, 2));
        assert_eq!(one.devices[0].policy, "several");
        assert_eq!((one.stats().bytes_read, one.passed.bytes), (30, u64::MAX));
        assert!(one.load.is_some());
        assert_eq!(one.since(&earlier).stats().bytes_read, 20);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), one);
    }

    #[test]
    fn the_kernels_account_is_read_and_anything_else_is_nothing() {
        let text = "rchar: 12\nwchar: 3\nsyscr: 1\nread_bytes: 4096\nwrite_bytes: 0\n";
        let io = ProcessIo { rchar: 12, wchar: 3, read_bytes: 4096, write_bytes: 0 };
        assert_eq!(ProcessIo::parse(text), io);
        assert_eq!(ProcessIo::parse("rchar: x\nwchar"), ProcessIo::default());
    }
}
