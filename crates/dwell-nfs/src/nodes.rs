// SPDX-License-Identifier: MIT OR Apache-2.0
//! Special files, further names of a file, and files that one client alone has made.

use crate::client::{Changed, Client, Found, ToPath};
use crate::error::Result;
use crate::nfs3::{
    Create, CreateHow, Handle, Kind, Link, MakeNode, NameLimits, Names, SetAttributes, Status,
    Verifier,
};
use crate::replay::{Place, marked};

impl Client {
    /// Makes a file that must not be there (`O_CREAT` with `O_EXCL`): of several clients that try,
    /// one succeeds, also where its call is sent again. A server without exclusive creation is
    /// asked for a guarded one.
    ///
    /// # Errors
    /// What the server says.
    pub async fn create_exclusive(
        &self,
        directory: Handle,
        name: &[u8],
        attributes: SetAttributes,
        path: &dyn ToPath,
    ) -> Result<Handle> {
        let call = Create { directory, name, how: CreateHow::Exclusive(verifier()) };
        let made = match self.call("creating", path, &call, |made| made).await {
            Ok((handle, _)) => self.made(handle, directory, name, path).await?,
            Err(error) if error.status() == Some(Status::NOTSUPP) => {
                return self.create_new(directory, name, attributes, path).await;
            }
            Err(error) => return Err(error),
        };
        // The server may keep the verifier in the file's times until they are set.
        let (accessed, modified) = (crate::nfs3::SetTime::Now, crate::nfs3::SetTime::Now);
        let attributes = SetAttributes { accessed, modified, ..attributes };
        self.change(made, attributes, path).await?;
        Ok(made)
    }

    /// Makes a device, a socket or a named pipe. `device` is its major and minor number.
    ///
    /// # Errors
    /// What the server says.
    pub async fn make_node(
        &self,
        directory: Handle,
        name: &[u8],
        kind: Kind,
        device: (u32, u32),
        attributes: SetAttributes,
        path: &dyn ToPath,
    ) -> Result<Handle> {
        let attributes = marked(attributes);
        let call = MakeNode { directory, name, kind, attributes, device };
        match self.call_changing("making the special file", path, &call).await {
            Changed { outcome: Ok((handle, _)), .. } => {
                self.made(handle, directory, name, path).await
            }
            Changed { outcome: Err(error), resent } => {
                let place = Place { client: self, directory, name, path };
                place.unless_made(error, resent, &attributes).await
            }
        }
    }

    /// Gives a file one more name; `file` is what is known of it.
    ///
    /// # Errors
    /// What the server says: that it is a directory, or has too many names.
    pub async fn link(
        &self,
        file: &Found,
        directory: Handle,
        name: &[u8],
        path: &dyn ToPath,
    ) -> Result<()> {
        let call = Link { file: file.handle, directory, name };
        match self.call_changing("linking", path, &call).await {
            Changed { outcome: Err(error), resent } => {
                let place = Place { client: self, directory, name, path };
                place.unless_named(error, resent, Status::EXIST, file.handle).await
            }
            done => done.outcome,
        }
    }

    /// What names and links can be where a file is.
    ///
    /// # Errors
    /// What the server says.
    pub async fn name_limits(&self, file: Handle, path: &dyn ToPath) -> Result<Names> {
        self.call("asking for limits of names", path, &NameLimits(file), |names| names).await
    }
}

/// What no other client gives.
fn verifier() -> Verifier {
    let mut verifier = [0; 8];
    let (first, second) = verifier.split_at_mut(4);
    first.copy_from_slice(&crate::random::random().to_be_bytes());
    second.copy_from_slice(&crate::random::random().to_be_bytes());
    verifier
}
