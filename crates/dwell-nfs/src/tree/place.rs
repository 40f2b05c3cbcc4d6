// SPDX-License-Identifier: MIT OR Apache-2.0
//! How files and directories get to another thread, which reaches them by a descriptor or a client
//! of its own.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use dwell::executor::Handle as Tasks;

use super::{Local, Node};
use crate::client::Client;
use crate::error::{Result, system};
use crate::nfs3::Handle;
use crate::url::Url;

/// By what another thread reaches one side of a copy.
pub(crate) enum Base {
    /// The directory here that everything on this side is reached from.
    Here(OwnedFd),
    /// The export to be mounted.
    There(Box<Url>),
}

/// Where something is on one side of a copy, on any thread.
pub(crate) enum Place {
    /// Its path from the directory that is held, and as a person calls it.
    Here { below: PathBuf, path: PathBuf },
    /// As in [`Node::Remote`].
    There { handle: Handle, url: Box<Url> },
}

impl Base {
    /// Reaches the side from the calling thread, whose tasks these are.
    ///
    /// # Errors
    /// As [`Client::mount`].
    pub async fn open(self, tasks: &Tasks) -> Result<Node> {
        match self {
            Base::Here(held) => Ok(Node::Local(Local::holding(held))),
            Base::There(url) => {
                let client = Client::mount(tasks, &url).await?;
                Ok(Node::Remote { handle: client.root(), client, url })
            }
        }
    }
}

impl Node {
    /// By what another thread reaches the side that it is on.
    ///
    /// # Errors
    /// What the system says: no descriptor is left, say.
    pub(crate) fn base(&self) -> Result<Base> {
        match self {
            Node::Local(local) => {
                let held = local.duplicate().map_err(system("opening", local.path()))?;
                Ok(Base::Here(held))
            }
            Node::Remote { client, .. } => Ok(Base::There(client.same_export().into())),
        }
    }

    /// Where it is.
    pub(crate) fn into_place(self) -> Place {
        match self {
            Node::Local(local) => {
                let (below, path) = local.into_paths();
                Place::Here { below, path }
            }
            Node::Remote { handle, url, .. } => Place::There { handle, url },
        }
    }

    /// The node at a place of the side that this one is on.
    pub(crate) fn at(&self, place: Place) -> Node {
        match (self, place) {
            (Node::Local(local), Place::Here { below, path }) => {
                Node::Local(local.reached(below, path))
            }
            (Node::Remote { client, .. }, Place::There { handle, url }) => {
                Node::Remote { client: client.clone(), handle, url }
            }
            _ => unreachable!("a place belongs to the side that it was taken from"),
        }
    }

    /// The export, if it is on a server.
    pub(crate) fn client(&self) -> Option<&Rc<Client>> {
        match self {
            Node::Local(_) => None,
            Node::Remote { client, .. } => Some(client),
        }
    }
}
