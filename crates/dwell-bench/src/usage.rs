// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel accounts to a thread or to a whole process while something is measured.

use dwell::clock;

/// Whose time and switches are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The calling thread.
    Thread,
    /// All threads of the process, those of the kernel that work for it among them.
    Process,
}

/// A measurement that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    scope: Scope,
    before: Usage,
    started_ns: u64,
}

impl Meter {
    /// Begins.
    pub fn start(scope: Scope) -> Self {
        // The clock is read last here and first in `stop`: looking is not part of what is measured.
        let before = Usage::now(scope);
        Meter { scope, before, started_ns: clock::now() }
    }

    /// When it began, by [`clock::now`].
    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// What it cost so far.
    pub fn stop(&self) -> Cost {
        let wall_ns = clock::now() - self.started_ns;
        Usage::now(self.scope).since(&self.before, wall_ns)
    }
}

/// What a measurement cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wall-clock time, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time in user mode, in nanoseconds.
    pub user_ns: u64,
    /// CPU time in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
}

impl Cost {
    /// With what another thread cost that ran beside: the longer wall-clock time, and the sum of
    /// all else.
    pub fn beside(self, other: Cost) -> Cost {
        Cost {
            wall_ns: self.wall_ns.max(other.wall_ns),
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
        }
    }
}

/// Page faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Those for which a device had to be read.
    pub major: u64,
    /// The others.
    pub minor: u64,
}

/// The page faults that the kernel counted for this process.
pub fn faults() -> Faults {
    let usage = rusage(libc::RUSAGE_SELF);
    Faults { major: usage.ru_majflt as u64, minor: usage.ru_minflt as u64 }
}

/// CPU time of the children that have ended and were waited for, and of theirs, in nanoseconds.
pub fn children_cpu_ns() -> u64 {
    let usage = rusage(libc::RUSAGE_CHILDREN);
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Page faults of the children that have ended and were waited for, and of theirs.
pub fn children_faults() -> Faults {
    let usage = rusage(libc::RUSAGE_CHILDREN);
    Faults { major: usage.ru_majflt as u64, minor: usage.ru_minflt as u64 }
}

fn rusage(who: libc::c_int) -> libc::rusage {
    // SAFETY: a zeroed rusage is a valid buffer.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer; RUSAGE_THREAD exists since Linux 2.6.26.
    unsafe { libc::getrusage(who, &mut usage) };
    usage
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// CPU time, to the nanosecond.
    cpu_ns: u64,
    /// Its parts as getrusage tells them: brought up to date only by ticks and switches, so they
    /// say how the time splits and not how long it was.
    user_ns: u64,
    system_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Usage {
    fn now(scope: Scope) -> Self {
        let (who, cpu_ns) = match scope {
            Scope::Thread => (libc::RUSAGE_THREAD, clock::thread_cpu()),
            Scope::Process => (libc::RUSAGE_SELF, clock::process_cpu()),
        };
        let usage = rusage(who);
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Usage {
            cpu_ns,
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            voluntary: usage.ru_nvcsw as u64,
            involuntary: usage.ru_nivcsw as u64,
        }
    }

    /// The difference, with the CPU time split as getrusage splits it; all of it is user time
    /// where getrusage saw none pass.
    fn since(self, earlier: &Self, wall_ns: u64) -> Cost {
        let cpu_ns = self.cpu_ns.saturating_sub(earlier.cpu_ns);
        let user_ns = self.user_ns.saturating_sub(earlier.user_ns);
        let system_ns = self.system_ns.saturating_sub(earlier.system_ns);
        let seen_ns = u128::from(user_ns + system_ns);
        let part_ns = u128::from(cpu_ns) * u128::from(system_ns);
        let system_ns = part_ns.checked_div(seen_ns).unwrap_or(0) as u64;
        Cost {
            wall_ns,
            user_ns: cpu_ns - system_ns,
            system_ns,
            voluntary_switches: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary_switches: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_exact_and_split_as_the_kernel_splits_it() {
        let earlier = Usage { cpu_ns: 100, user_ns: 10, system_ns: 20, ..Usage::default() };
        let now = Usage { cpu_ns: 1100, user_ns: 110, system_ns: 320, ..Usage::default() };
        let used = now.since(&earlier, 0);
        assert_eq!((used.user_ns, used.system_ns), (250, 750));
        let unseen = Usage { cpu_ns: 1100, ..earlier }.since(&earlier, 0);
        assert_eq!((unseen.user_ns, unseen.system_ns), (1000, 0));
    }

    #[test]
    fn a_process_pays_for_all_its_threads_and_a_thread_for_itself() {
        let (thread, process) = (Meter::start(Scope::Thread), Meter::start(Scope::Process));
        let worked = std::thread::spawn(|| {
            let meter = Meter::start(Scope::Thread);
            let until = clock::thread_cpu() + 3_000_000;
            while clock::thread_cpu() < until {}
            meter.stop()
        });
        let worked = worked.join().unwrap();
        let cpu = |cost: Cost| cost.user_ns + cost.system_ns;
        assert!(cpu(worked) >= 3_000_000 && cpu(process.stop()) >= cpu(worked));
        let own = thread.stop();
        assert!(cpu(own) < cpu(process.stop()));
        let both = own.beside(worked);
        assert_eq!(cpu(both), cpu(own) + cpu(worked));
        assert_eq!(both.wall_ns, own.wall_ns);
    }
}
