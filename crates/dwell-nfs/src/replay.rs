// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that may have been carried out twice, because they were sent again: the second copy finds
//! what the first has done, and the server calls that an error. Such an error is forgiven only
//! where the client can tell that the first copy succeeded.

use std::time::SystemTime;

use crate::client::{Client, Found, ToPath};
use crate::error::{Error, Result};
use crate::nfs3::{Handle, Kind, SetAttributes, SetTime, Status, Time};

/// These attributes with an access time that no other client gives: by it a client knows what it
/// made.
pub(crate) fn marked(attributes: SetAttributes) -> SetAttributes {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = u32::try_from(now.as_secs()).unwrap_or_default();
    let nanoseconds = crate::random::random() % 1_000_000_000;
    SetAttributes { accessed: SetTime::To(Time { seconds, nanoseconds }), ..attributes }
}

/// A name that a call was about.
pub(crate) struct Place<'p> {
    pub client: &'p Client,
    pub directory: Handle,
    pub name: &'p [u8],
    /// Told in errors.
    pub path: &'p dyn ToPath,
}

impl Place<'_> {
    /// What has the name now, where an error can be that of a second copy.
    async fn now(&self, error: &Error, resent: bool, as_told: Status) -> Option<Found> {
        if !resent || error.status() != Some(as_told) {
            return None;
        }
        self.client.look_up(self.directory, self.name, self.path).await.ok().flatten()
    }

    /// The error of making a file or directory with a mark, unless this client has made it.
    pub async fn unless_made(
        &self,
        error: Error,
        resent: bool,
        attributes: &SetAttributes,
    ) -> Result<Handle> {
        match self.now(&error, resent, Status::EXIST).await {
            Some(found) if SetTime::To(found.attributes.accessed) == attributes.accessed => {
                Ok(found.handle)
            }
            _ => Err(error),
        }
    }

    /// The error of making a symbolic link, unless it is there and leads to `target`.
    pub async fn unless_linked(&self, error: Error, resent: bool, target: &[u8]) -> Result<Handle> {
        let found = self.now(&error, resent, Status::EXIST).await;
        if let Some(found) = found.filter(|found| found.attributes.kind == Kind::Link)
            && let Ok(there) = self.client.read_link(found.handle, self.path).await
            && there == target
        {
            return Ok(found.handle);
        }
        Err(error)
    }

    /// The error of removing a name, unless what it stood for has lost a name since.
    pub async fn unless_removed(&self, error: Error, resent: bool, was: &Found) -> Result<()> {
        if !resent || error.status() != Some(Status::NOENT) {
            return Err(error);
        }
        match self.client.attributes(was.handle, self.path).await {
            Ok(now) if now.attributes.links < was.attributes.links => Ok(()),
            Err(gone) if gone.status() == Some(Status::STALE) => Ok(()),
            _ => Err(error),
        }
    }

    /// The error of giving a file this name, which a second copy has with `as_told`, unless the
    /// name stands for the file.
    pub async fn unless_named(
        &self,
        error: Error,
        resent: bool,
        as_told: Status,
        what: Handle,
    ) -> Result<()> {
        let Some(found) = self.now(&error, resent, as_told).await else { return Err(error) };
        if found.handle == what {
            return Ok(());
        }
        // Some servers have several handles for one file.
        let is_same = |file: Found| {
            let id = |found: &Found| (found.attributes.file_system, found.attributes.file);
            id(&file) == id(&found)
        };
        match self.client.attributes(what, self.path).await {
            Ok(file) if is_same(file) => Ok(()),
            _ => Err(error),
        }
    }
}
