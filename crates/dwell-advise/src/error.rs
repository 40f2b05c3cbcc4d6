// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can keep a program from being traced.

/// Why nothing could be traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process to follow is not there.
    #[error("process {0} does not exist; look it up with pgrep")]
    NoProcess(u32),
    /// A thread is not followed without its process.
    #[error("{thread} is a thread of process {process}; give that")]
    Thread {
        /// The thread.
        thread: u32,
        /// Its process.
        process: u32,
    },
    /// This process may not load BPF programs.
    #[error(
        "the kernel does not let this user trace ({0}); run as root, or give dwell CAP_BPF and CAP_PERFMON"
    )]
    Forbidden(String),
    /// The kernel lets nobody look into it.
    #[error(
        "the kernel is locked down (confidentiality), so that nobody may trace, root neither; boot it without \
         lockdown=confidentiality"
    )]
    LockedDown,
    /// The kernel traces processes by numbers that are others here.
    #[error(
        "this is a PID namespace of its own, whose process numbers are not those that the kernel traces; run dwell advise outside, or start the container with --pid=host"
    )]
    PidNamespace,
    /// The kernel does not describe its own types.
    #[error(
        "the kernel has no /sys/kernel/btf/vmlinux; it must be built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoTypes,
    /// The kernel refused a program or a map.
    #[error(
        "the kernel refused the tracing program {program}: {why}; Linux 5.18 or newer is needed"
    )]
    Refused {
        /// The name of the program or map.
        program: String,
        /// The kernel's words.
        why: String,
    },
    /// A file of this machine could not be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}

impl Error {
    /// Why the kernel refused a program, or perf: `forbidden` says that a right was missing.
    pub(crate) fn of_refusal(program: &str, why: String, forbidden: bool) -> Error {
        let told = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        Error::of_refusal_under(&told, program, why, forbidden)
    }

    /// The same by what the kernel says of its lockdown. A kernel that is locked down says of a
    /// program of root's that it is invalid.
    fn of_refusal_under(lockdown: &str, program: &str, why: String, forbidden: bool) -> Error {
        match forbidden {
            _ if lockdown.contains("[confidentiality]") => Error::LockedDown,
            true => Error::Forbidden(why),
            false => Error::Refused { program: program.to_owned(), why },
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lockdown_is_named_whatever_the_kernel_answers() {
        let under = |lockdown: &str, forbidden| {
            Error::of_refusal_under(lockdown, "sched_switch", "why".to_owned(), forbidden)
        };
        for forbidden in [false, true] {
            let error = under("none integrity [confidentiality]\n", forbidden);
            assert!(error.to_string().contains("locked down"), "{error}");
        }
        for lockdown in ["", "[none] integrity confidentiality", "none [integrity] confidentiality"]
        {
            assert!(matches!(under(lockdown, true), Error::Forbidden(_)));
            assert!(matches!(under(lockdown, false), Error::Refused { .. }));
        }
    }
}
