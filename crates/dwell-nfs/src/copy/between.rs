// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy between two places as a person names them: paths, or addresses.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use dwell::executor::Handle as Tasks;

use crate::client::Client;
use crate::copy::{Copy, Options, Progress, Watcher};
use crate::error::{Error, Result, Why, system};
use crate::nfs3::Kind;
use crate::tree::{Facts, Local, Node};
use crate::url::Url;

/// One side of a copy: a path, or an address.
enum Side {
    Here(PathBuf),
    There(Rc<Client>, Url),
}

impl Side {
    async fn of(tasks: &Tasks, text: &str) -> Result<Side> {
        if !Url::is_one(text) {
            return Ok(Side::Here(text.into()));
        }
        let url: Url = text.parse()?;
        Ok(Side::There(Client::mount(tasks, &url).await?, url))
    }

    fn client(&self) -> Option<Rc<Client>> {
        match self {
            Side::Here(_) => None,
            Side::There(client, _) => Some(client.clone()),
        }
    }

    /// The node there and its attributes, if there is one; with `follow`, that behind a symbolic
    /// link.
    async fn find(&self, follow: bool) -> Result<Option<(Node, Facts)>> {
        let local = |path: &PathBuf| match follow {
            true if path.is_dir() => Local::directory(path),
            _ => Local::at(path),
        };
        let find = |path| local(path).and_then(|local| Ok((local.facts()?, local)));
        match self {
            Side::Here(path) => match find(path) {
                Ok((facts, local)) => Ok(Some((Node::Local(local), facts))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::new("reading attributes", path.display(), error)),
            },
            Side::There(client, url) => {
                let found = match follow {
                    true => client.find_followed(url).await?,
                    false => client.find(url).await?,
                };
                Ok(found.map(|found| {
                    let (client, handle, url) = (client.clone(), found.handle, url.clone().into());
                    (Node::Remote { client, handle, url }, (&found.attributes).into())
                }))
            }
        }
    }

    /// The directory that its last name is in, and that name.
    async fn parent(&self) -> Result<(Node, Vec<u8>)> {
        match self {
            Side::Here(path) => {
                let whole = std::path::absolute(path)
                    .map_err(|error| Error::new("finding", path.display(), error))?;
                let name = whole.file_name().filter(|_| !path.ends_with(".."));
                let name = name.ok_or_else(|| {
                    Error::invalid(path.display(), "has no name of its own; name the file")
                })?;
                let parent = whole.parent().map(PathBuf::from).unwrap_or_default();
                let parent = Local::directory(&parent).map_err(system("opening", &parent))?;
                Ok((Node::Local(parent), name.as_bytes().to_vec()))
            }
            Side::There(client, url) => {
                let (handle, name) = client.parent(url).await?;
                let at = url.path.rfind('/').unwrap_or(0);
                let (client, parent) = (client.clone(), url.with_path(&url.path[..at]));
                let node = Node::Remote { client, handle, url: parent.into() };
                Ok((node, name.as_bytes().to_vec()))
            }
        }
    }

    fn name(&self) -> Option<Vec<u8>> {
        match self {
            Side::Here(path) => {
                let whole = || std::fs::canonicalize(path).ok();
                let name = path.file_name().map(ToOwned::to_owned);
                let name = name.or_else(|| Some(whole()?.file_name()?.to_owned()))?;
                Some(name.as_bytes().to_vec())
            }
            Side::There(client, url) => match client.names(url).pop() {
                Some(name) => Some(name.as_bytes().to_vec()),
                None => Some(url.path.rsplit('/').next()?.as_bytes().to_vec()),
            },
        }
    }
}

/// A copy goes from a node into a directory, by a name.
pub(super) struct Ends {
    pub from: Node,
    pub into: Node,
    pub name: Vec<u8>,
    pub clients: Vec<Rc<Client>>,
}

impl Ends {
    /// Finds them: `to` is the directory, if it is one and [`Options::onto`] does not forbid it, or
    /// else the name.
    pub async fn of(tasks: &Tasks, from: &str, to: &str, options: Options) -> Result<Ends> {
        let (source, target) = (Side::of(tasks, from).await?, Side::of(tasks, to).await?);
        let missing = || Error::new("", from, Why::Status(crate::nfs3::Status::NOENT));
        let (node, _) = source.find(false).await?.ok_or_else(missing)?;
        let (into, name) = match target.find(true).await? {
            Some((into, facts)) if facts.kind == Kind::Directory && !options.onto => {
                let name = source.name().filter(|name| !name.is_empty());
                (into, name.ok_or_else(|| Error::invalid(from, "has no name of its own"))?)
            }
            Some((_, facts)) if to.ends_with('/') && facts.kind != Kind::Directory => {
                return Err(Error::invalid(to, "is not a directory"));
            }
            None if to.ends_with('/') && !options.recursive => {
                return Err(Error::invalid(to, "there is no such directory"));
            }
            _ => target.parent().await?,
        };
        let clients = [source.client(), target.client()].into_iter().flatten().collect();
        Ok(Ends { from: node, into, name, clients })
    }

    /// Tells the servers that they are not used any more.
    pub async fn leave(clients: Vec<Rc<Client>>) {
        for client in clients {
            client.unmount().await;
        }
    }
}

/// Copies between two places, of which each is a path or an address: into `to`, if that is a
/// directory and [`Options::onto`] is not set, or else by its name. How it went, and how much could
/// not be copied.
///
/// # Errors
/// What keeps anything from being copied.
pub async fn between(
    tasks: &Tasks,
    from: &str,
    to: &str,
    options: Options,
    watcher: &dyn Watcher,
) -> Result<(Progress, u64)> {
    let Ends { from, into, name, clients } = Ends::of(tasks, from, to, options).await?;
    let copied = Copy::new(tasks, options, clients.clone(), watcher).run(from, into, &name).await;
    Ends::leave(clients).await;
    copied
}
