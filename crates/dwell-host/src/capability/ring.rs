// SPDX-License-Identifier: MIT OR Apache-2.0
//! io_uring, its modes, and the devices whose completions can be polled.

use super::facts::Facts;
use super::{Capability, Refused, State, attempt, raw};
use dwell::device::Sysfs;

fn setup(facts: &Facts, flags: u32) -> Result<(), Refused> {
    attempt(facts, libc::SYS_io_uring_setup, || raw::io_uring(flags).map(drop))
}

pub(super) fn io_uring(facts: &Facts) -> Capability {
    let disabled = facts.sysctl("kernel/io_uring_disabled");
    setup_verdict(setup(facts, 0), disabled, facts)
}

fn setup_verdict(tried: Result<(), Refused>, disabled: Option<i64>, facts: &Facts) -> Capability {
    const NAME: &str = "io-uring";
    const CONTAINER: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile; until then Dwell uses blocking calls";
    let forbidden = |detail: String| Capability::new(NAME, State::Forbidden, detail);
    match (tried, disabled) {
        (Ok(()), Some(1)) => Capability::new(
            NAME,
            State::Works,
            "rings can be set up, by the privileged only (kernel.io_uring_disabled 1)",
        ),
        (Ok(()), _) => Capability::new(NAME, State::Works, "rings can be set up"),
        (Err(Refused::Errno(libc::EPERM)), Some(level @ 1..)) => {
            let whom = if level == 1 { "users" } else { "all" };
            forbidden(format!("closed to {whom} (kernel.io_uring_disabled {level})"))
                .remedy("sysctl kernel.io_uring_disabled=0, or join kernel.io_uring_group")
        }
        (Err(Refused::Errno(libc::EPERM | libc::EACCES)), _) => {
            forbidden("refused with EPERM, by a seccomp filter or a security module".into())
                .remedy(CONTAINER)
        }
        // The sysctl exists only where io_uring was built in.
        (Err(Refused::Errno(libc::ENOSYS)), disabled) if facts.filtered || disabled.is_some() => {
            forbidden("refused with ENOSYS by a seccomp filter".into()).remedy(CONTAINER)
        }
        (Err(Refused::Errno(libc::ENOSYS)), _) => {
            Capability::new(NAME, State::Missing, "kernel older than 5.1 or built without io_uring")
                .remedy("run a kernel with CONFIG_IO_URING; until then Dwell uses blocking calls")
        }
        (Err(Refused::Errno(libc::ENOMEM)), _) => {
            forbidden("no memory may be locked for a ring".into()).remedy("ulimit -l 65536")
        }
        (Err(refused), _) => forbidden(format!("io_uring_setup: {refused}")).remedy(CONTAINER),
    }
}

/// What to say of a mode of a ring; `since` is the first kernel that knows it.
fn mode_verdict(
    name: &'static str,
    tried: Result<(), Refused>,
    what: &str,
    since: (u32, u32),
) -> Capability {
    let (major, minor) = since;
    match tried {
        Ok(()) => Capability::new(name, State::Works, what),
        Err(Refused::Errno(libc::EINVAL)) => {
            Capability::new(name, State::Missing, format!("unknown to this kernel: {what}"))
                .remedy(format!("run Linux {major}.{minor} or later"))
        }
        Err(Refused::Errno(libc::ENOSYS)) => Capability::new(name, State::Missing, "no io_uring"),
        Err(refused) => {
            Capability::new(name, State::Forbidden, format!("io_uring_setup: {refused}"))
        }
    }
}

pub(super) fn defer_taskrun(facts: &Facts) -> Capability {
    let tried = setup(facts, raw::SETUP_SINGLE_ISSUER | raw::SETUP_DEFER_TASKRUN);
    let what = "SINGLE_ISSUER with DEFER_TASKRUN: the cheapest ring to spin on";
    mode_verdict("io-uring-defer-taskrun", tried, what, (6, 1))
}

pub(super) fn iopoll(facts: &Facts) -> Capability {
    let tried = setup(facts, raw::SETUP_IOPOLL);
    let mut told =
        mode_verdict("io-uring-iopoll", tried, "polled rings; devices need poll queues", (5, 1));
    if told.state == State::Works && !facts.at_least(6, 14) {
        told.state = State::Limited;
        told.detail
            .push_str("; without them this kernel falls back to interrupts and says nothing");
    }
    told
}

pub(super) fn hybrid_iopoll(facts: &Facts) -> Capability {
    let tried = setup(facts, raw::SETUP_IOPOLL | raw::SETUP_HYBRID_IOPOLL);
    let what = "the kernel's own sleep before it polls";
    mode_verdict("io-uring-hybrid-iopoll", tried, what, (6, 13))
}

/// What sysfs says of polled completions.
#[derive(Clone, Debug, Default)]
pub(super) struct Pollable {
    polled: Vec<String>,
    unpolled: Vec<String>,
    nvme_poll_queues: Option<String>,
}

impl Pollable {
    /// Polling on the disks that hardware, real or virtual, completes.
    pub fn of(sysfs: &Sysfs) -> Self {
        let in_software = ["loop", "zram", "ram", "dm-", "md"];
        let (polled, unpolled) = sysfs
            .disks()
            .into_iter()
            .filter(|disk| !in_software.iter().any(|stem| disk.starts_with(stem)))
            .partition(|disk| sysfs.io_poll(disk));
        Pollable { polled, unpolled, nvme_poll_queues: sysfs.parameter("nvme", "poll_queues") }
    }
}

pub(super) fn poll_queues(found: &Pollable) -> Capability {
    const NAME: &str = "poll-queues";
    let Pollable { polled, unpolled, nvme_poll_queues } = found;
    let queues = nvme_poll_queues.as_deref().unwrap_or("0");
    let mut detail = match (polled.is_empty(), unpolled.is_empty()) {
        (true, true) => "no disk has a queue of its own".to_owned(),
        (true, false) => format!("none on {}", unpolled.join(", ")),
        (false, true) => format!("on {}", polled.join(", ")),
        (false, false) => format!("on {}; none on {}", polled.join(", "), unpolled.join(", ")),
    };
    if let Some(queues) = nvme_poll_queues {
        detail.push_str(&format!(" (nvme.poll_queues={queues})"));
    }
    let nvme = |disks: &[String]| disks.iter().any(|disk| disk.starts_with("nvme"));
    if nvme(unpolled) {
        let state = if polled.is_empty() { State::Missing } else { State::Limited };
        let remedy = if queues == "0" {
            "boot with nvme.poll_queues=2"
        } else {
            "nvme.poll_queues was set too late: boot with it, or reset the controller"
        };
        return Capability::new(NAME, state, detail).remedy(remedy);
    }
    if polled.is_empty() {
        let told = Capability::new(NAME, State::Missing, detail);
        return if unpolled.iter().any(|disk| disk.starts_with("vd")) {
            told.remedy("boot with virtio_blk.poll_queues=1, if the disk has queues to spare")
        } else {
            told
        };
    }
    Capability::new(NAME, State::Works, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(errno: i32, disabled: Option<i64>, filtered: bool) -> Capability {
        let facts = Facts { filtered, ..Facts::default() };
        setup_verdict(Err(Refused::Errno(errno)), disabled, &facts)
    }

    #[test]
    fn a_sysctl_and_a_seccomp_filter_are_told_apart() {
        assert!(
            verdict(libc::EPERM, Some(2), true).remedy.unwrap().contains("io_uring_disabled=0")
        );
        assert!(verdict(libc::EPERM, Some(1), false).detail.contains("closed to users"));
        assert!(verdict(libc::EPERM, Some(0), true).remedy.unwrap().contains("seccomp"));
    }

    #[test]
    fn a_filter_that_says_enosys_is_not_taken_for_an_old_kernel() {
        assert_eq!(verdict(libc::ENOSYS, None, false).state, State::Missing);
        assert_eq!(verdict(libc::ENOSYS, None, true).state, State::Forbidden);
        assert_eq!(verdict(libc::ENOSYS, Some(0), false).state, State::Forbidden);
    }

    #[test]
    fn a_filter_that_kills_is_reported_and_survived() {
        let told = setup_verdict(Err(Refused::Deadly), Some(0), &Facts::default());
        assert_eq!(told.state, State::Forbidden);
        assert!(told.detail.contains("kills"));
    }

    #[test]
    fn an_unknown_flag_names_the_kernel_that_has_it() {
        let told = mode_verdict("x", Err(Refused::Errno(libc::EINVAL)), "what", (6, 13));
        assert_eq!(
            (told.state, told.remedy.as_deref()),
            (State::Missing, Some("run Linux 6.13 or later"))
        );
    }

    #[test]
    fn a_drive_without_poll_queues_is_told_how_to_get_them() {
        let found = |polled: &[&str], unpolled: &[&str], queues: Option<&str>| Pollable {
            polled: polled.iter().map(|&disk| disk.to_owned()).collect(),
            unpolled: unpolled.iter().map(|&disk| disk.to_owned()).collect(),
            nvme_poll_queues: queues.map(str::to_owned),
        };
        let told = poll_queues(&found(&[], &["nvme0n1"], Some("0")));
        assert_eq!(told.state, State::Missing);
        assert_eq!(told.remedy.as_deref(), Some("boot with nvme.poll_queues=2"));
        let told = poll_queues(&found(&["nvme1n1"], &["nvme0n1"], Some("1")));
        assert_eq!(told.state, State::Limited);
        let told = poll_queues(&found(&["nvme0n1"], &["sda"], Some("1")));
        assert_eq!((told.state, told.remedy), (State::Works, None));
        assert_eq!(poll_queues(&found(&[], &[], None)).state, State::Missing);
    }

    #[test]
    fn software_disks_do_not_ask_for_poll_queues() {
        let dir = tempfile::tempdir().unwrap();
        for (disk, io_poll) in [("loop0", "0"), ("zram0", "0"), ("nvme0n1", "1")] {
            let queue = dir.path().join("block").join(disk).join("queue");
            std::fs::create_dir_all(&queue).unwrap();
            std::fs::write(queue.join("io_poll"), format!("{io_poll}\n")).unwrap();
        }
        let found = Pollable::of(&Sysfs::at(dir.path()));
        assert_eq!((found.polled, found.unpolled), (vec!["nvme0n1".to_owned()], vec![]));
    }
}
