// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locked memory, and page faults handled in user space.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;

use super::facts::Facts;
use super::{Capability, Refused, State, attempt, raw};

/// Below this, pinned buffers and rings of old kernels do not fit.
const AMPLE_BYTES: u64 = 8 << 20;

pub(super) fn locked(facts: &Facts) -> Capability {
    const NAME: &str = "locked-memory";
    match facts.memlock_bytes {
        None => Capability::new(NAME, State::Limited, "limit unknown: no /proc"),
        Some(u64::MAX) => Capability::new(NAME, State::Works, "no limit"),
        Some(bytes) if facts.sys_admin() || bytes >= AMPLE_BYTES => {
            Capability::new(NAME, State::Works, format!("{} KiB", bytes >> 10))
        }
        Some(bytes) => {
            Capability::new(NAME, State::Limited, format!("{} KiB for pinned buffers", bytes >> 10))
                .remedy("ulimit -l 65536, or LimitMEMLOCK in the service")
        }
    }
}

/// How a userfaultfd was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The system call.
    Call,
    /// `/dev/userfaultfd`.
    Node,
    /// The system call, for faults from user mode only.
    UserMode,
}

pub(super) fn userfaultfd(facts: &Facts) -> Capability {
    let opened =
        open(facts).and_then(|(uffd, origin)| Ok((raw::userfaultfd_features(&uffd)?, origin)));
    verdict(opened, facts)
}

fn open(facts: &Facts) -> Result<(OwnedFd, Origin), Refused> {
    let call = |flags| attempt(facts, libc::SYS_userfaultfd, || raw::userfaultfd(flags));
    let refused = match call(0) {
        Ok(uffd) => return Ok((uffd, Origin::Call)),
        Err(refused) => refused,
    };
    let node = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    if let Ok(uffd) = node.and_then(|node| raw::userfaultfd_from(&node)) {
        return Ok((uffd, Origin::Node));
    }
    match call(raw::UFFD_USER_MODE_ONLY) {
        Ok(uffd) => Ok((uffd, Origin::UserMode)),
        Err(_) => Err(refused),
    }
}

fn verdict(opened: Result<(u64, Origin), Refused>, facts: &Facts) -> Capability {
    const NAME: &str = "userfaultfd";
    let (features, origin) = match opened {
        Ok(opened) => opened,
        Err(Refused::Errno(libc::ENOSYS)) if !facts.filtered => {
            return Capability::new(NAME, State::Missing, "kernel built without userfaultfd");
        }
        Err(Refused::Errno(libc::EPERM)) if !facts.filtered => {
            return Capability::new(NAME, State::Forbidden, "closed to users")
                .remedy("give access to /dev/userfaultfd, or run Linux 5.11 or later");
        }
        Err(refused) => {
            return Capability::new(NAME, State::Forbidden, format!("userfaultfd: {refused}"))
                .remedy("allow userfaultfd in the container's seccomp profile");
        }
    };
    let wanted = [
        (raw::UFFD_SIGBUS, "SIGBUS", "4.14"),
        (raw::UFFD_WP_ASYNC, "WP_ASYNC", "6.7"),
        (raw::UFFD_MOVE, "MOVE", "6.8"),
    ];
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for (bit, feature, since) in wanted {
        if features & bit != 0 {
            has.push(feature);
        } else {
            lacks.push(format!("{feature} (Linux {since})"));
        }
    }
    let through = match origin {
        Origin::Call => "by system call",
        Origin::Node => "through /dev/userfaultfd",
        Origin::UserMode => "for faults from user mode only",
    };
    let mut detail =
        format!("{through}; has {}", if has.is_empty() { "none".into() } else { has.join(", ") });
    if !lacks.is_empty() {
        detail.push_str(&format!("; lacks {}", lacks.join(", ")));
        return Capability::new(NAME, State::Limited, detail).remedy("run a later kernel");
    }
    if origin == Origin::UserMode {
        return Capability::new(NAME, State::Limited, detail).remedy(
            "for system calls on absent pages give access to /dev/userfaultfd, or sysctl vm.unprivileged_userfaultfd=1",
        );
    }
    Capability::new(NAME, State::Works, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = raw::UFFD_SIGBUS | raw::UFFD_WP_ASYNC | raw::UFFD_MOVE;

    #[test]
    fn a_feature_that_the_kernel_lacks_is_named_with_its_version() {
        let told = verdict(Ok((raw::UFFD_SIGBUS, Origin::Call)), &Facts::default());
        assert_eq!(told.state, State::Limited);
        assert!(told.detail.contains("lacks WP_ASYNC (Linux 6.7), MOVE (Linux 6.8)"));
        assert_eq!(verdict(Ok((ALL, Origin::Node)), &Facts::default()).state, State::Works);
    }

    #[test]
    fn user_mode_faults_alone_are_a_limit() {
        assert_eq!(verdict(Ok((ALL, Origin::UserMode)), &Facts::default()).state, State::Limited);
    }

    #[test]
    fn a_filter_that_says_enosys_is_not_taken_for_an_old_kernel() {
        let refused = Err(Refused::Errno(libc::ENOSYS));
        assert_eq!(verdict(refused, &Facts::default()).state, State::Missing);
        let filtered = Facts { filtered: true, ..Facts::default() };
        assert_eq!(verdict(refused, &filtered).state, State::Forbidden);
    }

    #[test]
    fn a_small_limit_binds_users_only() {
        let user = Facts { memlock_bytes: Some(64 << 10), ..Facts::default() };
        assert_eq!(locked(&user).state, State::Limited);
        let ample = Facts { memlock_bytes: Some(AMPLE_BYTES), ..Facts::default() };
        assert_eq!(locked(&ample).state, State::Works);
    }
}
