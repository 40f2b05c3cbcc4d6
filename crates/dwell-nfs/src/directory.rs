// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names: listing, making and removing.

use std::collections::HashSet;

use crate::client::{Changed, Client, Found, ToPath};
use crate::error::{Error, Result, Why};
use crate::nfs3::{
    Attributes, ChangeAttributes, Create, CreateHow, Entries, Handle, Kind, List, ListNames,
    MakeDirectory, MakeLink, ReadLink, Remove, RemoveDirectory, Rename, SetAttributes, Space,
    SpaceLeft, Status,
};
use crate::procedure::Procedure;
use crate::replay::{Place, marked};
use crate::url::Url;
use crate::xdr::Reader;

/// More entries than this a directory may not have: a server that lists on and on is left.
const MOST_ENTRIES: usize = 16 << 20;
/// How often a listing is begun whose directory changes meanwhile.
const MOST_LISTINGS: u32 = 8;

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub found: Found,
}

/// What one part of a listing says of an entry.
struct Listed {
    name: Vec<u8>,
    cookie: u64,
    handle: Option<Handle>,
    attributes: Option<Attributes>,
}

/// A part of a listing, copied.
struct Part {
    listed: Vec<Listed>,
    verifier: [u8; 8],
    ends: bool,
}

impl Part {
    fn of(entries: Entries<'_>) -> Part {
        let listed = entries.entries.iter().map(|entry| Listed {
            name: entry.name.to_vec(),
            cookie: entry.cookie,
            handle: entry.handle,
            attributes: entry.attributes,
        });
        let listed = listed.collect();
        Part { listed, verifier: entries.verifier, ends: entries.ends }
    }
}

/// What came of a listing that was begun.
enum Ended {
    Whole(Vec<Item>),
    /// The directory changed meanwhile: the server does not know a cookie any more, or went back to
    /// an earlier one.
    Changed(Error),
}

/// Whether a name that came from a server may become part of a path here.
pub(crate) fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

impl Client {
    /// The entries of a directory, without `.` and `..`. A listing is begun anew where the
    /// directory changed meanwhile.
    ///
    /// # Errors
    /// What the server says; names that cannot be used; a listing that does not end.
    pub async fn list(&self, directory: Handle, path: &dyn ToPath) -> Result<Vec<Item>> {
        let mut begun = 0;
        loop {
            begun += 1;
            match self.list_once(directory, path).await? {
                Ended::Whole(items) => return Ok(items),
                Ended::Changed(error) if begun == MOST_LISTINGS => return Err(error),
                Ended::Changed(_) => {}
            }
        }
    }

    async fn list_once(&self, directory: Handle, path: &dyn ToPath) -> Result<Ended> {
        let wrong = |what: &str| path.error("listing", Why::Invalid(what.into()));
        let mut items = Vec::new();
        let (mut cookie, mut verifier) = (0, [0; 8]);
        let (mut seen, mut cookies) = (HashSet::new(), HashSet::new());
        loop {
            let part = match self.list_part(directory, cookie, verifier, path).await {
                Err(error) if cookie != 0 && error.status() == Some(Status::BAD_COOKIE) => {
                    return Ok(Ended::Changed(error));
                }
                part => part?,
            };
            let last_cookie = part.listed.last().map(|listed| listed.cookie);
            for Listed { name, cookie, handle, attributes } in part.listed {
                if !seen.insert((cookie, name.clone())) {
                    return Ok(Ended::Changed(wrong(
                        "the server lists the same entries again and again",
                    )));
                }
                if name == b"." || name == b".." {
                    continue;
                }
                if !is_safe(&name) {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    return Err(wrong(&format!("the server lists a name that is none: {name:?}")));
                }
                let found = match (handle, attributes) {
                    (Some(handle), Some(attributes)) => Some(Found { handle, attributes }),
                    (Some(handle), None) => match self.attributes(handle, path).await {
                        Err(error) if error.status() == Some(Status::STALE) => None,
                        found => Some(found?),
                    },
                    _ => self.look_up(directory, &name, path).await?,
                };
                // Removed since it was listed: not there.
                items.extend(found.map(|found| Item { name, found }));
                if seen.len() > MOST_ENTRIES {
                    return Err(wrong("the server lists more entries than a directory can have"));
                }
            }
            if part.ends {
                return Ok(Ended::Whole(items));
            }
            match last_cookie {
                Some(next) if cookies.insert(next) => (cookie, verifier) = (next, part.verifier),
                Some(_) => return Err(wrong("the server lists the same entries again and again")),
                None => return Err(wrong("the server lists nothing and says that there is more")),
            }
        }
    }

    async fn list_part(
        &self,
        directory: Handle,
        cookie: u64,
        verifier: [u8; 8],
        path: &dyn ToPath,
    ) -> Result<Part> {
        let bytes = self.listing_bytes();
        let call = List { directory, cookie, verifier, bytes };
        if self.lists_attributes().get() {
            match self.entries(&call, path).await {
                Err(error) if unsupported(&error) => self.lists_attributes().set(false),
                part => return part,
            }
        }
        self.entries(&ListNames(call), path).await
    }

    async fn entries<C>(&self, call: &C, path: &dyn ToPath) -> Result<Part>
    where
        C: for<'a> Procedure<Results<'a> = crate::nfs3::Answer<Entries<'a>>>,
    {
        let failed = |why| path.error("listing", why);
        let results = self.bytes(call, None).await.map_err(failed)?;
        let answer = call.read(&mut Reader::new(&results)).map_err(|bad| failed(bad.into()))?;
        answer.map(Part::of).map_err(|status| failed(Why::Status(status)))
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// What the server says.
    pub async fn read_link(&self, link: Handle, path: &dyn ToPath) -> Result<Vec<u8>> {
        let failed = |why| path.error("reading the link", why);
        let call = ReadLink(link);
        let results = self.bytes(&call, None).await.map_err(failed)?;
        let answer = call.read(&mut Reader::new(&results)).map_err(|bad| failed(bad.into()))?;
        answer.map(<[u8]>::to_vec).map_err(|status| failed(Why::Status(status)))
    }

    /// How full the file system is that a file is on.
    ///
    /// # Errors
    /// What the server says.
    pub async fn space(&self, file: Handle, path: &dyn ToPath) -> Result<SpaceLeft> {
        self.call("reading the space left", path, &Space(file), |space| space).await
    }

    /// What the caller may do with a file, of what is asked ([`crate::nfs3::access`]).
    ///
    /// # Errors
    /// What the server says.
    pub async fn may(&self, file: Handle, wanted: u32, path: &dyn ToPath) -> Result<u32> {
        let call = crate::nfs3::Access { file, wanted };
        self.call("asking for access", path, &call, |granted| granted).await
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// What the server says.
    pub async fn change(&self, file: Handle, to: SetAttributes, path: &dyn ToPath) -> Result<()> {
        let call = ChangeAttributes { file, to };
        self.call("setting attributes", path, &call, |()| ()).await
    }

    /// Makes a file, or opens the one that is there.
    ///
    /// # Errors
    /// What the server says.
    pub async fn create(
        &self,
        directory: Handle,
        name: &[u8],
        attributes: SetAttributes,
        path: &dyn ToPath,
    ) -> Result<Handle> {
        let call = Create { directory, name, how: CreateHow::Unchecked(attributes) };
        let (handle, _) = self.call("creating", path, &call, |made| made).await?;
        self.made(handle, directory, name, path).await
    }

    /// Makes a file, which must not be there. Its access time is this client's mark.
    ///
    /// # Errors
    /// What the server says.
    pub async fn create_new(
        &self,
        directory: Handle,
        name: &[u8],
        attributes: SetAttributes,
        path: &dyn ToPath,
    ) -> Result<Handle> {
        let attributes = marked(attributes);
        let call = Create { directory, name, how: CreateHow::Guarded(attributes) };
        let place = Place { client: self, directory, name, path };
        let (handle, _) = match self.call_changing("creating", path, &call).await {
            Changed { outcome: Err(error), resent } => {
                return place.unless_made(error, resent, &attributes).await;
            }
            Changed { outcome: Ok(made), .. } => made,
        };
        self.made(handle, directory, name, path).await
    }

    pub(crate) async fn made(
        &self,
        handle: Option<Handle>,
        directory: Handle,
        name: &[u8],
        path: &dyn ToPath,
    ) -> Result<Handle> {
        match handle {
            Some(handle) => Ok(handle),
            None => match self.look_up(directory, name, path).await? {
                Some(found) => Ok(found.handle),
                None => Err(path.error("creating", Why::Status(Status::NOENT))),
            },
        }
    }

    /// Makes a directory; with `may_exist`, one that is there will do. Its access time is this
    /// client's mark.
    ///
    /// # Errors
    /// What the server says.
    pub async fn make_directory(
        &self,
        directory: Handle,
        name: &[u8],
        attributes: SetAttributes,
        may_exist: bool,
        path: &dyn ToPath,
    ) -> Result<Handle> {
        let attributes = marked(attributes);
        let call = MakeDirectory { directory, name, attributes };
        let Changed { outcome, resent } =
            self.call_changing("making the directory", path, &call).await;
        match outcome {
            Ok((handle, _)) => self.made(handle, directory, name, path).await,
            Err(error) if may_exist && error.status() == Some(Status::EXIST) => {
                match self.look_up(directory, name, path).await? {
                    Some(found) if found.attributes.kind == Kind::Directory => Ok(found.handle),
                    _ => Err(error),
                }
            }
            Err(error) => {
                let place = Place { client: self, directory, name, path };
                place.unless_made(error, resent, &attributes).await
            }
        }
    }

    /// Makes the directory of an address; with `parents`, those above it too, and ones that are
    /// there will do.
    ///
    /// # Errors
    /// What the server says.
    pub async fn make_directories(
        &self,
        url: &Url,
        attributes: SetAttributes,
        parents: bool,
    ) -> Result<()> {
        if !parents {
            let (parent, name) = self.parent(url).await?;
            let name = name.as_bytes();
            return self.make_directory(parent, name, attributes, false, url).await.map(|_| ());
        }
        let mut here = self.root();
        let mut path = url.with_path(self.export());
        for name in self.names(url) {
            path = path.join(name);
            here = match self.find_followed(&path).await? {
                Some(found) if found.attributes.kind == Kind::Directory => found.handle,
                _ => self.make_directory(here, name.as_bytes(), attributes, true, url).await?,
            };
        }
        Ok(())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// What the server says.
    pub async fn make_link(
        &self,
        directory: Handle,
        name: &[u8],
        target: &[u8],
        path: &dyn ToPath,
    ) -> Result<Handle> {
        let attributes = SetAttributes::default();
        let call = MakeLink { directory, name, attributes, target };
        match self.call_changing("making the link", path, &call).await {
            Changed { outcome: Ok((handle, _)), .. } => {
                self.made(handle, directory, name, path).await
            }
            Changed { outcome: Err(error), resent } => {
                let place = Place { client: self, directory, name, path };
                place.unless_linked(error, resent, target).await
            }
        }
    }

    /// Removes a name of anything but a directory; `was` is what it stands for.
    ///
    /// # Errors
    /// What the server says.
    pub async fn remove(
        &self,
        directory: Handle,
        name: &[u8],
        was: &Found,
        path: &dyn ToPath,
    ) -> Result<()> {
        let call = Remove { directory, name };
        match self.call_changing("removing", path, &call).await {
            Changed { outcome: Err(error), resent } => {
                let place = Place { client: self, directory, name, path };
                place.unless_removed(error, resent, was).await
            }
            done => done.outcome,
        }
    }

    /// Gives a file another name in the same directory; one that has the name is replaced. `what`
    /// is the file's handle.
    ///
    /// # Errors
    /// What the server says.
    pub async fn rename(
        &self,
        directory: Handle,
        from: &[u8],
        to: &[u8],
        what: Handle,
        path: &dyn ToPath,
    ) -> Result<()> {
        self.rename_to((directory, from), (directory, to), what, path).await
    }

    /// The same between directories.
    ///
    /// # Errors
    /// What the server says.
    pub async fn rename_to(
        &self,
        from: (Handle, &[u8]),
        (directory, to): (Handle, &[u8]),
        what: Handle,
        path: &dyn ToPath,
    ) -> Result<()> {
        let call = Rename { from, to: (directory, to) };
        match self.call_changing("renaming", path, &call).await {
            Changed { outcome: Err(error), resent } => {
                let place = Place { client: self, directory, name: to, path };
                place.unless_named(error, resent, Status::NOENT, what).await
            }
            done => done.outcome,
        }
    }

    /// Removes an empty directory; `item` is what is known of it.
    ///
    /// # Errors
    /// What the server says.
    pub async fn remove_directory(
        &self,
        parent: Handle,
        item: &Item,
        url: &dyn ToPath,
    ) -> Result<()> {
        let call = RemoveDirectory { directory: parent, name: &item.name };
        match self.call_changing("removing the directory", url, &call).await {
            Changed { outcome: Err(error), resent } => {
                let (directory, name) = (parent, &item.name[..]);
                let place = Place { client: self, directory, name, path: url };
                place.unless_removed(error, resent, &item.found).await
            }
            done => done.outcome,
        }
    }

    /// The directory that an address's last name is in, and that name.
    ///
    /// # Errors
    /// An address of an export itself; a directory that is not there.
    pub async fn parent<'u>(&self, url: &'u Url) -> Result<(Handle, &'u str)> {
        let Some(name) = self.names(url).pop() else {
            return Err(Error::invalid(url, "the export itself; name something in it"));
        };
        let path = url.path.rfind('/').map_or("", |at| &url.path[..at]);
        let parent = self.require_followed(&url.with_path(path)).await?;
        match parent.attributes.kind {
            Kind::Directory => Ok((parent.handle, name)),
            _ => Err(Error::new("looking up", url, Why::Status(Status::NOTDIR))),
        }
    }
}

fn unsupported(error: &Error) -> bool {
    use crate::engine::Failure;
    use crate::rpc::Refusal;
    let refused = matches!(error.why, Why::Failure(Failure::Refused(Refusal::NoProcedure)));
    refused || error.status() == Some(Status::NOTSUPP)
}
