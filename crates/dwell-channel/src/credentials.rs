// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose rights a thread of root's daemon acts with, and which it never needs.
//!
//! The kernel decides about quotas and about the blocks that a file system keeps for the superuser
//! when a file takes room, not when the file is opened. So data is written as the user who opened
//! the file.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The user who opened a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opener {
    uid: u32,
    gid: u32,
}

/// The user that stands for all that have no number in the daemon's user namespace.
const NOBODY: u32 = 65_534;

impl Opener {
    /// The user with these numbers. `u32::MAX` is a user without a number here.
    pub fn new(uid: u32, gid: u32) -> Self {
        let known = |id| if id == u32::MAX { NOBODY } else { id };
        Opener { uid: known(uid), gid: known(gid) }
    }

    /// The user that this process acts as.
    pub fn itself() -> Self {
        static OWN: OnceLock<Opener> = OnceLock::new();
        *OWN.get_or_init(|| {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            Opener { uid: uid.as_raw(), gid: gid.as_raw() }
        })
    }

    /// Whether there is nobody else to act for.
    pub fn is_this_process(&self) -> bool {
        *self == Self::itself()
    }

    /// The user's number.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Until the result is dropped, file systems see this thread as the opener. Unless the opener
    /// is root, the thread has no capability meanwhile that lets it past a file system's checks.
    ///
    /// # Errors
    /// EPERM: this process may not act as that user.
    pub fn act(&self) -> Result<Acting, Errno> {
        let back = (!self.is_this_process()).then(Self::itself);
        let acting = Acting { back, thread: PhantomData };
        if acting.back.is_some() {
            self.put_on();
            // The calls themselves do not say whether they did anything.
            let now =
                Opener { uid: set(libc::SYS_setfsuid, KEEP), gid: set(libc::SYS_setfsgid, KEEP) };
            if now != *self {
                return Err(Errno::PERM);
            }
        }
        Ok(acting)
    }

    fn put_on(&self) {
        set(libc::SYS_setfsgid, self.gid);
        set(libc::SYS_setfsuid, self.uid);
    }
}

/// No user's number: changes nothing.
const KEEP: u32 = u32::MAX;

/// Sets the user or the group that file systems see, of this thread alone; what it was before.
fn set(call: libc::c_long, id: u32) -> u32 {
    // SAFETY: one number in, one out.
    unsafe { libc::syscall(call, id) as u32 }
}

/// File systems see this thread as somebody else.
#[derive(Debug)]
#[must_use]
pub struct Acting {
    back: Option<Opener>,
    /// An identity belongs to the thread that took it on.
    thread: PhantomData<*const ()>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some(own) = self.back {
            own.put_on();
        }
    }
}

/// What serving other users takes: their files made, read, changed and given to them, and a mount.
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::SYS_ADMIN);

/// Runs something on a thread that has, and hands on to the threads that it starts, no capability
/// but those that serving files takes. CAP_SYS_RESOURCE is not among them: with it nobody would
/// have a quota, and all would share the superuser's reserve.
///
/// # Errors
/// What the system says.
pub(crate) fn with_what_is_needed<T: Send>(what: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    let on_thread = || {
        let own = rustix::thread::capabilities(None)?;
        let kept = CapabilitySets {
            effective: own.effective & NEEDED,
            permitted: own.permitted & NEEDED,
            inheritable: CapabilitySet::empty(),
        };
        if kept != own {
            rustix::thread::set_capabilities(None, kept)?;
        }
        Ok(what())
    };
    thread::scope(|scope| scope.spawn(on_thread).join().unwrap_or_else(|why| resume_unwind(why)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn acting_for_an_opener_is_seen_by_file_systems_and_ends() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can act for others");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let owner = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            let facts = std::fs::metadata(path).unwrap();
            (facts.uid(), facts.gid())
        };
        let acting = Opener::new(1234, 2345).act().unwrap();
        assert_eq!(owner("theirs"), (1234, 2345));
        drop(acting);
        assert_eq!(owner("own"), (0, 0));
        let _acting = Opener::new(u32::MAX, 0).act().unwrap();
        assert_eq!(owner("nobodys"), (NOBODY, 0));
    }

    #[test]
    fn a_serving_thread_has_no_capability_to_pass_quotas_and_reserves() {
        with_what_is_needed(|| {
            let left =
                thread::spawn(|| rustix::thread::capabilities(None).unwrap()).join().unwrap();
            let all = left.effective | left.permitted | left.inheritable;
            assert!(!all.contains(CapabilitySet::SYS_RESOURCE) && NEEDED.contains(all));
        })
        .unwrap();
    }
}
