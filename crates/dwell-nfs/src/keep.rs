// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a copy keeps of its source beside the data: permission bits, owners, times.

use rustix::fs::{Timespec, Timestamps};

use crate::error::{Error, Result, Why, system};
use crate::nfs3::{Kind, SetAttributes, SetTime, Status, Time};
use crate::tree::{Facts, Node};

/// The attributes that a copy keeps, besides the usual permission bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    pub times: bool,
    /// Owners, and set-user-id, set-group-id and sticky bits.
    pub rights: bool,
}

const PERMISSIONS: u32 = 0o777;
const SPECIAL: u32 = 0o7000;
const STICKY: u32 = 0o1000;

/// Whether this user may not do that, or nobody there.
fn is_refused(error: &Error) -> bool {
    match &error.why {
        Why::Status(status) => {
            [Status::PERM, Status::ACCES, Status::INVAL, Status::NOTSUPP].contains(status)
        }
        Why::System(error) => [libc::EPERM, libc::EACCES, libc::EINVAL, libc::EOPNOTSUPP]
            .contains(&error.raw_os_error().unwrap_or_default()),
        _ => false,
    }
}

impl Node {
    /// Gives what was just copied, of which `there` is known, the permissions of its source, and
    /// what else is to be kept. The owner is set first: that takes set-user-id bits away.
    ///
    /// # Errors
    /// What the system or the server says.
    pub(crate) async fn take_after(&self, facts: &Facts, there: &Facts, keep: Keep) -> Result<()> {
        let mut mode = facts.mode & PERMISSIONS;
        if keep.rights {
            // Rights of one user are not given to another.
            let owned = self.own(facts, there).await?;
            mode |= facts.mode & if owned { SPECIAL } else { STICKY };
        } else if facts.kind == Kind::Directory {
            mode |= there.mode & SPECIAL;
        }
        // What it has already is not set once more: on a server that is a call. A new owner may
        // have changed it.
        let has_mode = facts.kind == Kind::Link || !keep.rights && there.mode == mode;
        let mode = (!has_mode).then_some(mode);
        let times = keep.times.then_some((facts.accessed, facts.modified));
        match self {
            Node::Local(local) => {
                let failed = || system("setting attributes", local.path());
                if let Some(mode) = mode {
                    local.set_mode(mode).map_err(failed())?;
                }
                if let Some((accessed, modified)) = times {
                    let at = |time: Time| Timespec {
                        tv_sec: time.seconds.into(),
                        tv_nsec: time.nanoseconds.into(),
                    };
                    let (last_access, last_modification) = (at(accessed), at(modified));
                    let times = Timestamps { last_access, last_modification };
                    local.set_times(&times).map_err(failed())?;
                }
                Ok(())
            }
            Node::Remote { client, handle, url } => {
                let mut to = SetAttributes { mode, ..SetAttributes::default() };
                if let Some((accessed, modified)) = times {
                    (to.accessed, to.modified) = (SetTime::To(accessed), SetTime::To(modified));
                }
                match to == SetAttributes::default() {
                    true => Ok(()),
                    false => client.change(*handle, to, url).await,
                }
            }
        }
    }

    /// Gives it the owner and the group of its source, as far as this user may: whether it has
    /// both.
    async fn own(&self, facts: &Facts, there: &Facts) -> Result<bool> {
        if (there.uid, there.gid) == (facts.uid, facts.gid) {
            return Ok(true);
        }
        for (uid, owns) in [(Some(facts.uid), true), (None, there.uid == facts.uid)] {
            let set = match self {
                Node::Local(local) => local
                    .set_owner(uid, Some(facts.gid))
                    .map_err(system("setting the owner", local.path())),
                Node::Remote { client, handle, url } => {
                    let gid = Some(facts.gid);
                    let to = SetAttributes { uid, gid, ..SetAttributes::default() };
                    client.change(*handle, to, url).await
                }
            };
            match set {
                Ok(()) => return Ok(owns),
                Err(error) if is_refused(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
