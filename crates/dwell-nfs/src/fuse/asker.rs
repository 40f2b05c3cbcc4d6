// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the program that made a request still waits for its answer. The kernel sends word of
//! that too (FUSE_INTERRUPT), but `fuser` keeps it to itself.

/// The thread that made a request.
#[derive(Clone, Copy)]
pub(super) struct Asker(u32);

impl From<&fuser::Request> for Asker {
    fn from(request: &fuser::Request) -> Self {
        Asker(request.pid())
    }
}

impl Asker {
    /// Whether it was killed. What the kernel asks by itself, it asks under number 0.
    pub fn is_killed(self) -> bool {
        self.0 != 0
            && std::fs::read_to_string(format!("/proc/{}/stat", self.0))
                .is_ok_and(|stat| is_killed(&stat).unwrap_or(false))
    }
}

/// Whether a thread is about to die of a signal, or ends because of one and closes its files.
fn is_killed(stat: &str) -> Option<bool> {
    // The name before may have any characters. Of proc(5)'s fields, the third follows.
    let (_, fields) = stat.rsplit_once(')')?;
    let field = |number: usize| fields.split_ascii_whitespace().nth(number - 3)?.parse().ok();
    let (pending, exit_code): (u64, u64) = (field(31)?, field(52)?);
    // The system puts there, too, by which signal a thread is stopped.
    let signal = exit_code as i32 & 0x7f;
    let is_stopped = (libc::SIGSTOP..=libc::SIGTTOU).contains(&signal);
    Some(pending & 1 << (libc::SIGKILL - 1) != 0 || signal != 0 && !is_stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_killed_once_a_signal_ends_it() {
        let stat = |pending: u32, exit_code: u32| {
            let fields = |count| " 0".repeat(count);
            let (before, between) = (fields(27), fields(20));
            format!("7 (a name) with) D{before} {pending}{between} {exit_code}\n")
        };
        assert_eq!(is_killed(&stat(0, 0)), Some(false));
        assert_eq!(is_killed(&stat(1 << 8, 0)), Some(true));
        // Another signal is pending, or the thread ends by itself.
        assert_eq!(is_killed(&stat(1 << 16, 0)), Some(false));
        assert_eq!(is_killed(&stat(0, 3 << 8)), Some(false));
        assert_eq!(is_killed(&stat(0, 15)), Some(true));
        for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            assert_eq!(is_killed(&stat(0, signal as u32)), Some(false));
            assert_eq!(is_killed(&stat(1 << 8, signal as u32)), Some(true));
        }
        assert_eq!(is_killed("7 (x) R 1"), None);
        assert!(!Asker(0).is_killed() && !Asker(std::process::id()).is_killed());
    }
}
