// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller: a thread of root's daemon makes files as the caller, so that owner, group and
//! set-group-id come out as if the caller had made them itself.
#![allow(unsafe_code)]

use std::fs;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use crate::credentials::Opener;

/// The program that made a request, as the kernel names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// A thread of it; 0 where the kernel itself asks or the caller lives in another world of
    /// processes.
    pub tid: u32,
}

impl From<&fuser::Request> for Caller {
    fn from(request: &fuser::Request) -> Self {
        Caller { uid: request.uid(), gid: request.gid(), tid: request.pid() }
    }
}

/// What this daemon may be.
#[derive(Debug)]
pub(super) enum Callers {
    /// One user serves itself.
    One { gid: Gid },
    /// Root serves everybody.
    All { own_groups: Vec<Gid>, own: CapabilitySets, as_caller: CapabilitySets },
}

impl Callers {
    pub fn of_this_process() -> Result<Self, Errno> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Callers::One { gid: rustix::process::getegid() });
        }
        let own = rustix::thread::capabilities(None)?;
        // The kernel has checked what the caller may do before it asked; what is left is
        // set-group-id, which a file system takes from files of groups that their maker is not in.
        let as_caller = CapabilitySets { effective: own.permitted - CapabilitySet::FSETID, ..own };
        Ok(Callers::All { own_groups: rustix::process::getgroups()?, own, as_caller })
    }

    /// Until the result is dropped this thread acts as the caller.
    ///
    /// # Errors
    /// EOVERFLOW: the caller has no name in the daemon's user namespace.
    pub fn become_caller(&self, caller: Caller) -> Result<Acting<'_>, Errno> {
        if !self.differs(caller) {
            return Ok(self.nobody_else());
        }
        self.become_one_of(caller, &groups_of(caller.tid))
    }

    /// Whether this thread has to change to act as the caller.
    fn differs(&self, caller: Caller) -> bool {
        matches!(self, Callers::All { .. }) && (caller.uid, caller.gid) != (0, 0)
    }

    fn nobody_else(&self) -> Acting<'_> {
        Acting { callers: self, changed: false, thread: PhantomData }
    }

    /// As [`Callers::become_caller`], for what changes a file that `opener` opened. `groups`
    /// remembers those of that user's threads.
    ///
    /// # Errors
    /// As of [`Callers::become_caller`].
    pub fn become_writer(
        &self,
        caller: Caller,
        opener: Caller,
        groups: &Groups,
    ) -> Result<Acting<'_>, Errno> {
        if !self.differs(caller) {
            return Ok(self.nobody_else());
        }
        if (caller.uid, caller.gid) != (opener.uid, opener.gid) {
            return self.become_caller(caller);
        }
        self.become_one_of(caller, &groups.of(caller.tid))
    }

    fn become_one_of(&self, caller: Caller, groups: &[Gid]) -> Result<Acting<'_>, Errno> {
        let acting = self.nobody_else();
        let Callers::All { as_caller, .. } = self else { return Ok(acting) };
        if caller.uid == u32::MAX || caller.gid == u32::MAX {
            return Err(Errno::OVERFLOW);
        }
        // From here on dropping it undoes what was done, all or part.
        let acting = Acting { changed: true, ..acting };
        match rustix::thread::set_thread_groups(groups) {
            // A user namespace that may not choose groups.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        let unnamed = |_| Errno::OVERFLOW;
        rustix::thread::set_thread_res_gid(None, Gid::from_raw(caller.gid), None)
            .map_err(unnamed)?;
        if caller.uid != 0 {
            rustix::thread::set_thread_res_uid(None, Uid::from_raw(caller.uid), None)
                .map_err(unnamed)?;
            rustix::thread::set_capabilities(None, *as_caller)?;
        }
        Ok(acting)
    }

    /// Until the result is dropped this thread is nobody in no group, and has no capability but
    /// `kept`.
    ///
    /// # Errors
    /// EPERM: only root's daemon can.
    pub fn become_nobody(&self, kept: CapabilitySet) -> Result<Acting<'_>, Errno> {
        const NOBODY: u32 = 65534;
        let Callers::All { own, .. } = self else { return Err(Errno::PERM) };
        let acting = Acting { callers: self, changed: true, thread: PhantomData };
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(None, Gid::from_raw(NOBODY), None)?;
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(NOBODY), None)?;
        let effective = own.permitted & kept;
        rustix::thread::set_capabilities(None, CapabilitySets { effective, ..*own })?;
        Ok(acting)
    }

    /// The user as whom the data of what the caller opens is written.
    pub fn opener(&self, caller: Caller) -> Opener {
        match self {
            Callers::One { .. } => Opener::itself(),
            Callers::All { .. } => Opener::new(caller.uid, caller.gid),
        }
    }

    /// The group that a new file should have and this process cannot give it by acting as the
    /// caller.
    pub fn other_group(&self, caller: Caller) -> Option<Gid> {
        match self {
            Callers::One { gid } if gid.as_raw() != caller.gid => Some(Gid::from_raw(caller.gid)),
            _ => None,
        }
    }
}

/// This thread acts as somebody else.
#[derive(Debug)]
pub(super) struct Acting<'a> {
    callers: &'a Callers,
    changed: bool,
    /// An identity belongs to the thread that took it on.
    thread: PhantomData<*const ()>,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let (true, Callers::All { own_groups, own, .. }) = (self.changed, self.callers) else {
            return;
        };
        let back = rustix::thread::set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| rustix::thread::set_capabilities(None, *own))
            .and_then(|()| rustix::thread::set_thread_res_gid(None, Gid::ROOT, None))
            .and_then(|()| match rustix::thread::set_thread_groups(own_groups) {
                Err(Errno::PERM) => Ok(()),
                set => set,
            });
        // The kernel grants root's saved identity its return; a thread that serves others as the
        // wrong user must not live on.
        assert!(back.is_ok(), "cannot become root again after acting for a caller: {back:?}");
    }
}

/// Threads that write to one open file whose groups are remembered.
const MOST_WRITERS: usize = 16;

/// The groups of the threads that write to one open file: to look them up takes longer than most
/// writes. Threads of one user may have different ones.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<Vec<(u32, Arc<[Gid]>)>>);

impl Groups {
    fn of(&self, tid: u32) -> Arc<[Gid]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, groups)) = known.iter().find(|(writer, _)| *writer == tid) {
            return groups.clone();
        }
        if known.len() == MOST_WRITERS {
            known.clear();
        }
        let groups: Arc<[Gid]> = groups_of(tid).into();
        known.push((tid, groups.clone()));
        groups
    }
}

/// The supplementary groups of a thread that waits for an answer; none where it cannot be seen.
fn groups_of(tid: u32) -> Vec<Gid> {
    if tid == 0 {
        return Vec::new();
    }
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|gid| gid.parse().ok()).map(Gid::from_raw).collect()
}

thread_local! {
    /// Whether this thread has a umask of its own.
    static OWN_UMASK: bool = {
        // SAFETY: descriptors stay shared; only umask and working directory become the thread's
        // own, and no code here depends on the working directory.
        let own = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) };
        own.is_ok()
    };
}

/// Gives this thread the caller's umask, which the backing file system applies unless a default ACL
/// stands in its place.
///
/// # Errors
/// EPERM: the system lets no thread have its own umask.
pub(super) fn take_umask(umask: u32) -> Result<(), Errno> {
    if !OWN_UMASK.with(|own| *own) {
        return Err(Errno::PERM);
    }
    rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_file_made_as_somebody_is_theirs_and_this_thread_is_itself_again() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can act for others");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let callers = Callers::of_this_process().unwrap();
        {
            let _acting = callers.become_caller(Caller { uid: 1234, gid: 2345, tid: 0 }).unwrap();
            // The directory is root's alone: what the kernel has checked is not checked again.
            fs::write(dir.path().join("theirs"), "").unwrap();
        }
        fs::write(dir.path().join("mine"), "").unwrap();
        let owner = |name: &str| {
            let facts = fs::metadata(dir.path().join(name)).unwrap();
            (facts.uid(), facts.gid())
        };
        assert_eq!((owner("theirs"), owner("mine")), ((1234, 2345), (0, 0)));
        let nobody = Caller { uid: u32::MAX, gid: 0, tid: 0 };
        assert_eq!(callers.become_caller(nobody).unwrap_err(), Errno::OVERFLOW);
    }

    #[test]
    fn a_writer_has_its_own_groups_whoever_of_the_same_user_wrote_first() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can act for others");
            return;
        }
        let callers = Callers::of_this_process().unwrap();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let ends = std::sync::Mutex::new(ends);
        std::thread::scope(|scope| {
            let (ends, groups) = (&ends, Groups::default());
            let member = |group| {
                let (say, said) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    rustix::thread::set_thread_groups(&[Gid::from_raw(group)]).unwrap();
                    say.send(rustix::thread::gettid().as_raw_pid() as u32).unwrap();
                    // Until the test lets go of the other end.
                    let _ = ends.lock().unwrap().recv();
                });
                Caller { uid: 1234, gid: 2345, tid: said.recv().unwrap() }
            };
            let writers = [7, 8].map(|group| (member(group), group));
            let opener = writers[0].0;
            for (writer, group) in [writers[1], writers[0], writers[1]] {
                let _acting = callers.become_writer(writer, opener, &groups).unwrap();
                assert_eq!(rustix::process::getgroups().unwrap(), [Gid::from_raw(group)]);
            }
            drop(end);
        });
    }

    #[test]
    fn a_umask_stays_within_its_thread() {
        let before = rustix::process::umask(Mode::from_raw_mode(0o022));
        std::thread::spawn(|| take_umask(0o777).unwrap()).join().unwrap();
        assert_eq!(rustix::process::umask(before).as_raw_mode(), 0o022);
    }

    #[test]
    fn groups_are_those_of_the_thread() {
        let own = rustix::process::getgroups().unwrap();
        assert_eq!(groups_of(std::process::id()), own);
        assert_eq!(groups_of(0), []);
    }
}
