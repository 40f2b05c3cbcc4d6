// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and directories here and on a server, behind one interface: what a copy is made between.

mod local;
mod place;
mod sides;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use dwell::executor::Handle as Tasks;

pub use local::Local;
pub(crate) use place::{Base, Place};
use sides::LocalSource;
pub use sides::{Source, Target};

use crate::client::{Client, Found};
use crate::directory::is_safe;
use crate::error::{Error, Result, engine, system};
use crate::file::{RemoteFile, Writer};
use crate::lineage::Identity;
use crate::memory::Memory;
use crate::nfs3::{Attributes, Handle, Kind, SetAttributes, Time};
use crate::url::Url;

/// Attributes of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length, in bytes.
    pub bytes: u64,
    /// Space it takes, in bytes: less than its length where it has holes.
    pub used_bytes: u64,
    /// Names it has.
    pub links: u32,
    /// Its file system, and its number there.
    pub file_system: u64,
    /// See [`Facts::file_system`].
    pub file: u64,
    /// Major and minor number, of devices.
    pub device: (u32, u32),
    /// Last written.
    pub modified: Time,
    /// Last read.
    pub accessed: Time,
    /// Last changed in any way.
    pub changed: Time,
    /// Whether the first two are its times, and not the nearest that the protocol has.
    pub times_fit: bool,
}

impl From<&Attributes> for Facts {
    fn from(found: &Attributes) -> Self {
        let Attributes { kind, mode, uid, gid, bytes, used_bytes, file, .. } = *found;
        let Attributes { modified, accessed, changed, links, file_system, device, .. } = *found;
        Facts {
            kind,
            mode: mode & 0o7777,
            uid,
            gid,
            bytes,
            used_bytes,
            links,
            file_system,
            file,
            device,
            modified,
            accessed,
            changed,
            times_fit: true,
        }
    }
}

/// A directory, a file, a link: here or on a server.
#[derive(Clone)]
pub enum Node {
    /// Here.
    Local(Local),
    /// There.
    Remote {
        /// The export it is in.
        client: Rc<Client>,
        /// Its handle.
        handle: Handle,
        /// Its address, for errors.
        url: Box<Url>,
    },
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Node::Local(local) => write!(f, "{}", local.path().display()),
            Node::Remote { url, .. } => write!(f, "{url}"),
        }
    }
}

impl Node {
    /// What it is known by among the directories that it is in.
    pub(crate) fn identity(&self, facts: &Facts) -> Identity {
        let handle = match self {
            Node::Local(_) => Handle::NONE,
            Node::Remote { handle, .. } => *handle,
        };
        (handle, facts.file_system, facts.file)
    }

    /// What it is.
    ///
    /// # Errors
    /// That it is not there; what the system or the server says.
    pub async fn facts(&self) -> Result<Facts> {
        match self {
            Node::Local(local) => local.facts().map_err(system("reading attributes", local.path())),
            Node::Remote { client, handle, url } => {
                client.attributes(*handle, url).await.map(|found| (&found.attributes).into())
            }
        }
    }

    /// What a directory has by this name.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn get(&self, name: &[u8]) -> Result<Option<(Node, Facts)>> {
        match self {
            Node::Local(local) => {
                let local = local.inner(name);
                match local.facts() {
                    Ok(facts) => Ok(Some((Node::Local(local), facts))),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(system("reading attributes", local.path())(error)),
                }
            }
            Node::Remote { client, handle, url } => {
                let url = url.join(&String::from_utf8_lossy(name));
                let found = client.look_up(*handle, name, &url).await?;
                Ok(found.map(|found| Self::remote(client, &found, url)))
            }
        }
    }

    fn remote(client: &Rc<Client>, found: &Found, url: Url) -> (Node, Facts) {
        let (client, handle, url) = (client.clone(), found.handle, url.into());
        let node = Node::Remote { client, handle, url };
        (node, (&found.attributes).into())
    }

    /// What a directory has, in order of names.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn list(&self) -> Result<Vec<(Vec<u8>, Node, Facts)>> {
        let mut found = match self {
            Node::Local(local) => {
                let found = local.list().map_err(system("listing", local.path()))?;
                let node = |(name, local, facts)| (name, Node::Local(local), facts);
                found.into_iter().map(node).collect::<Vec<_>>()
            }
            Node::Remote { client, handle, url } => {
                let items = client.list(*handle, url).await?;
                let node = |item: crate::directory::Item| {
                    let url = url.join(&String::from_utf8_lossy(&item.name));
                    let (node, facts) = Self::remote(client, &item.found, url);
                    (item.name, node, facts)
                };
                items.into_iter().map(node).collect()
            }
        };
        found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        Ok(found)
    }

    /// Makes a directory in this one, or takes the one that is there. A link to one is none.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn make_directory(&self, name: &[u8], mode: u32) -> Result<Node> {
        // The copy must be able to write into it.
        let mode = mode & 0o777 | 0o700;
        match self {
            Node::Local(local) => {
                let local = local.inner(name);
                let is_one = || local.facts().is_ok_and(|there| there.kind == Kind::Directory);
                match local.make_directory(mode) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_one() => {}
                    made => made.map_err(system("making the directory", local.path()))?,
                }
                Ok(Node::Local(local))
            }
            Node::Remote { client, handle, url } => {
                let url = url.join(&String::from_utf8_lossy(name));
                let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                let made = client.make_directory(*handle, name, attributes, true, &url).await?;
                Ok(Node::Remote { client: client.clone(), handle: made, url: url.into() })
            }
        }
    }

    /// Makes a file in this directory, in place of one of this name that is left over, and opens it
    /// for writing: it, and whether there was one.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn create(
        &self,
        tasks: &Tasks,
        name: &[u8],
        mode: u32,
    ) -> Result<(Node, Target, bool)> {
        // The copy must be able to write into it.
        let mode = mode & 0o777 | 0o600;
        let mut is_left_over = false;
        let made = loop {
            let made = match self {
                Node::Local(local) => {
                    let local = local.inner(name);
                    let made = local.create(mode).map_err(system("creating", local.path()));
                    made.map(Node::Local)
                }
                Node::Remote { client, handle, url } => {
                    let url = url.join(&String::from_utf8_lossy(name));
                    let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                    let made = client.create_new(*handle, name, attributes, &url).await;
                    let (client, url) = (client.clone(), url.into());
                    made.map(|handle| Node::Remote { client, handle, url })
                }
            };
            match made {
                Err(error) if !is_left_over && error.errno() == libc::EEXIST => {
                    is_left_over = true;
                    self.remove(name).await?;
                }
                made => break made?,
            }
        };
        let target = made.open_to_write(tasks)?;
        Ok((made, target, is_left_over))
    }

    /// Holds the file open that was `found` here. A server's handle stands for one file anyway.
    ///
    /// # Errors
    /// That another file has its name by now, or that it has another name; what the system says.
    pub fn hold(&self, found: &Facts) -> Result<Node> {
        match self {
            Node::Local(local) => {
                local.hold(found).map(Node::Local).map_err(system("opening", local.path()))
            }
            Node::Remote { .. } => Ok(self.clone()),
        }
    }

    /// Opens a file for writing that is held or was created.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_to_write(&self, tasks: &Tasks) -> Result<Target> {
        match self {
            Node::Local(local) => {
                let opened = local.open_to_write().map_err(system("opening", local.path()))?;
                let open = || tasks.file(Arc::new(dwell::Options::new().open_descriptor(opened)?));
                open().map(Target::Local).map_err(|error| engine("opening", local.path(), error))
            }
            Node::Remote { client, handle, url } => {
                Ok(Target::Remote(Writer::new(RemoteFile::new(client, *handle, url))))
            }
        }
    }

    /// Removes a name of anything but a directory from this directory, if it has it.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn remove(&self, name: &[u8]) -> Result<()> {
        match self {
            Node::Local(local) => {
                let local = local.inner(name);
                match local.remove() {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(system("removing", local.path())(error))
                    }
                    _ => Ok(()),
                }
            }
            Node::Remote { client, handle, url } => {
                let url = url.join(&String::from_utf8_lossy(name));
                match client.look_up(*handle, name, &url).await? {
                    Some(found) => client.remove(*handle, name, &found, &url).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Its number, where it is here: by that [`Node::is`] knows it.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn number(&self) -> Result<u64> {
        match self {
            Node::Local(local) => local
                .facts()
                .map(|found| found.file)
                .map_err(system("reading attributes", local.path())),
            Node::Remote { .. } => Ok(0),
        }
    }

    /// Whether what was found by a name is this file, which had this number when it was opened.
    pub(crate) async fn is(&self, number: u64, found: &(Node, Facts)) -> bool {
        match (self, &found.0) {
            (Node::Local(_), _) => number == found.1.file,
            (Node::Remote { handle, .. }, Node::Remote { handle: there, .. })
                if handle == there =>
            {
                true
            }
            // Some servers have several handles for one file.
            _ => self.facts().await.is_ok_and(|facts| facts.file == found.1.file),
        }
    }

    /// What a name in this directory is called in messages.
    pub(crate) fn path_of(&self, name: &[u8]) -> String {
        match self {
            Node::Local(local) => local.inner(name).path().display().to_string(),
            Node::Remote { url, .. } => url.join(&String::from_utf8_lossy(name)).to_string(),
        }
    }

    /// Opens a file for reading, into `memory` where it is here.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self, tasks: &Tasks, memory: &Rc<RefCell<Memory>>) -> Result<Source> {
        match self {
            Node::Local(local) => LocalSource::open(local, tasks, memory).map(Source::Local),
            Node::Remote { client, handle, url } => {
                Ok(Source::Remote(RemoteFile::new(client, *handle, url)))
            }
        }
    }

    /// Gives a name in this directory to what has another name there.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn rename(&self, what: &Node, from: &[u8], to: &[u8]) -> Result<()> {
        match self {
            Node::Local(local) => {
                local.rename(from, to).map_err(system("renaming", local.inner(to).path()))
            }
            Node::Remote { client, handle, url } => {
                let url = url.join(&String::from_utf8_lossy(to));
                let what = match what {
                    Node::Remote { handle, .. } => *handle,
                    Node::Local(_) => Handle::NONE,
                };
                client.rename(*handle, from, to, what, &url).await
            }
        }
    }

    /// Where this symbolic link leads.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn link(&self) -> Result<Vec<u8>> {
        match self {
            Node::Local(local) => local.link().map_err(system("reading the link", local.path())),
            Node::Remote { client, handle, url } => client.read_link(*handle, url).await,
        }
    }

    /// Cuts a file that is held or was created, or makes it longer with zeros.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn set_length(&self, bytes: u64) -> Result<()> {
        match self {
            Node::Local(local) => local
                .open_to_write()
                .and_then(|file| file.set_len(bytes))
                .map_err(system("setting the length", local.path())),
            Node::Remote { client, handle, url } => {
                let to = SetAttributes { bytes: Some(bytes), ..SetAttributes::default() };
                client.change(*handle, to, url).await
            }
        }
    }
}

/// Whether a name may be made here.
pub(crate) fn checked<'n>(name: &'n [u8], of: &Node) -> Result<&'n [u8]> {
    match is_safe(name) {
        true => Ok(name),
        false => Err(Error::invalid(of, "no name for a file or directory")),
    }
}
