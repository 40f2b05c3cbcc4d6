// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a copy makes that has no data of its own: symbolic links, special files, further names of
//! files.

use std::io;

use crate::copy::{Copy, Job};
use crate::error::{Error, Result, Why, system};
use crate::nfs3::{Kind, SetAttributes, Status};
use crate::resume;
use crate::tree::{Facts, Node, checked};

/// Something without data.
enum Dataless<'a> {
    /// A symbolic link, and where it leads.
    Link(Vec<u8>),
    /// A device, a socket or a pipe.
    Special(&'a Facts),
    /// One more name of a file.
    Name(&'a Node),
}

/// A file that was copied and has more names.
pub(crate) struct Named {
    pub into: Node,
    pub name: Vec<u8>,
}

impl Node {
    /// Makes something in this directory, where nothing has the name.
    async fn make(&self, name: &[u8], what: &Dataless<'_>) -> Result<Node> {
        match self {
            Node::Local(local) => {
                let local = local.inner(name);
                let (action, made) = match what {
                    Dataless::Link(target) => ("making the link", local.make_link(target)),
                    Dataless::Special(facts) => {
                        ("making the special file", local.make_special(facts))
                    }
                    Dataless::Name(Node::Local(file)) => ("linking", local.make_name(file)),
                    Dataless::Name(_) => return Err(elsewhere(&local.path().display())),
                };
                made.map_err(system(action, local.path()))?;
                Ok(Node::Local(local))
            }
            Node::Remote { client, handle, url } => {
                let url = url.join(&String::from_utf8_lossy(name));
                let made = match what {
                    Dataless::Link(target) => client.make_link(*handle, name, target, &url).await?,
                    Dataless::Special(facts) => {
                        let mode = Some(facts.mode & 0o777);
                        let attributes = SetAttributes { mode, ..SetAttributes::default() };
                        let Facts { kind, device, .. } = **facts;
                        client.make_node(*handle, name, kind, device, attributes, &url).await?
                    }
                    Dataless::Name(Node::Remote { handle: file, .. }) => {
                        let found = client.attributes(*file, &url).await?;
                        client.link(&found, *handle, name, &url).await?;
                        *file
                    }
                    Dataless::Name(_) => return Err(elsewhere(&url)),
                };
                Ok(Node::Remote { client: client.clone(), handle: made, url: url.into() })
            }
        }
    }

    /// Makes something in this directory, in place of what is left over by this name.
    async fn make_instead(&self, name: &[u8], what: &Dataless<'_>) -> Result<Node> {
        match self.make(name, what).await {
            Err(error) if error.errno() == libc::EEXIST => {
                self.remove(name).await?;
                self.make(name, what).await
            }
            made => made,
        }
    }
}

fn elsewhere(path: &dyn std::fmt::Display) -> Error {
    Error::new("linking", path, io::Error::from_raw_os_error(libc::EXDEV))
}

impl Copy<'_> {
    /// Makes a symbolic link or a special file beside what has its name, so that there is always
    /// one or the other.
    pub(crate) async fn dataless(&self, job: &Job) -> Result<()> {
        let what = match job.facts.kind {
            Kind::Link => Dataless::Link(job.from.link().await?),
            _ => Dataless::Special(&job.facts),
        };
        self.place(job, &what, self.options.times || job.facts.kind != Kind::Link).await
    }

    /// Gives a file that was copied one more name.
    pub(crate) async fn name(&self, job: &Job, first: &Named) -> Result<()> {
        let Some((file, _)) = first.into.get(&first.name).await? else {
            let path = first.into.path_of(&first.name);
            return Err(Error::new("linking", path, Why::Status(Status::NOENT)));
        };
        self.place(job, &Dataless::Name(&file), false).await
    }

    async fn place(&self, job: &Job, what: &Dataless<'_>, keeps: bool) -> Result<()> {
        let Job { from, facts, into, name, .. } = job;
        let name = checked(name, from)?;
        let (part, _) = resume::names(name);
        self.touch(into);
        let made = into.make_instead(&part, what).await?;
        let done = async {
            if keeps {
                made.take_after(facts, &made.facts().await?, self.keep()).await?;
            }
            into.rename(&made, &part, name).await
        };
        let done = done.await;
        // Of two names of one file, renaming one to the other leaves both.
        if (done.is_err() || matches!(what, Dataless::Name(_)))
            && let Err(error) = into.remove(&part).await
        {
            self.watcher.noted(&error.to_string());
        }
        done
    }
}
