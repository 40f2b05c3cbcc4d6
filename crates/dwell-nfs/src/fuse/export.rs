// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's requests, carried out by the client.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, Notifier};

use crate::client::{Client, Found};
use crate::connection::Payload;
use crate::directory::Item;
use crate::engine::Counters;
use crate::error::{Error, Result};
use crate::file::{RemoteFile, Writer};
use crate::nfs3::{Attributes, Handle, Kind, SetAttributes, Status, Time, access};

use super::Root;
use super::freshness::lifetime;
use super::nodes::Nodes;
use super::reserved::Reserved;

/// Entries that every directory has: itself and the one above.
pub(super) const DOTS: u64 = 2;

/// What errors call a file by: the kernel tells programs their number alone.
pub(super) const PATH: &str = "";

/// An error as the kernel takes it.
pub(super) type Errno = i32;
pub(super) type Outcome<T> = std::result::Result<T, Errno>;

pub(super) fn errno(error: &Error) -> Errno {
    error.errno()
}

/// Hears what no program can be told.
pub(super) type Told = Box<dyn FnMut(&Error) + Send>;

/// What the kernel is told of a file, and for how long it may believe it.
pub(super) struct Entry {
    pub attr: FileAttr,
    pub fresh: Duration,
}

/// The entries of a directory that is open.
struct Listing {
    items: Rc<Vec<Item>>,
    /// Whether the kernel has all of them.
    is_read: Cell<bool>,
    _kept: Reserved,
}

/// A mounted export.
pub(super) struct Export {
    pub(super) client: Rc<Client>,
    pub(super) nodes: RefCell<Nodes>,
    /// Bytes of what was written and is not known to be durable, and of listings.
    pub(super) kept: Rc<Cell<u64>>,
    pub(super) told: RefCell<Told>,
    /// Writes under way that no program hears of: to which file, and how many bytes.
    pub(super) unheard: RefCell<Vec<(u64, u64)>>,
    /// Directories that are open, as they were when they were first read.
    listings: RefCell<BTreeMap<u64, Option<Listing>>>,
    last: Cell<u64>,
    notifier: RefCell<Option<Notifier>>,
    most_name_bytes: Cell<u32>,
}

fn moment(time: Time) -> SystemTime {
    UNIX_EPOCH + Duration::new(time.seconds.into(), time.nanoseconds.min(999_999_999))
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Block => FileType::BlockDevice,
        Kind::Character => FileType::CharDevice,
        Kind::Link => FileType::Symlink,
        Kind::Socket => FileType::Socket,
        Kind::Pipe => FileType::NamedPipe,
    }
}

impl Export {
    pub fn new(client: Rc<Client>, told: Told) -> Rc<Export> {
        Rc::new(Export {
            client,
            kept: Rc::default(),
            told: RefCell::new(told),
            unheard: RefCell::default(),
            nodes: RefCell::default(),
            listings: RefCell::default(),
            last: Cell::new(0),
            notifier: RefCell::default(),
            most_name_bytes: Cell::new(0),
        })
    }

    /// The kernel has it mounted.
    pub fn began(&self, root: Root, notifier: Notifier) {
        self.nodes.borrow_mut().put_root(&root);
        *self.notifier.borrow_mut() = Some(notifier);
    }

    pub fn counters(&self) -> Counters {
        self.client.health().counters
    }

    fn handle(&self, number: u64) -> Outcome<Handle> {
        self.nodes.borrow().get(number).map(|node| node.handle).ok_or(libc::ESTALE)
    }

    pub(super) fn writer(&self, number: u64) -> Option<Rc<Writer>> {
        self.nodes.borrow().get(number).and_then(|node| node.writer.clone())
    }

    /// A file's attributes as they will be once the server has all that was written.
    fn entry(&self, number: u64, of: &Attributes) -> Entry {
        let bytes = of.bytes.max(self.writer(number).map_or(0, |writer| writer.end()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let attr = FileAttr {
            ino: INodeNo(number),
            size: bytes,
            blocks: of.used_bytes.div_ceil(512),
            atime: moment(of.accessed),
            mtime: moment(of.modified),
            ctime: moment(of.changed),
            crtime: UNIX_EPOCH,
            kind: file_type(of.kind),
            perm: (of.mode & 0o7777) as u16,
            nlink: of.links,
            uid: of.uid,
            gid: of.gid,
            rdev: libc::makedev(of.device.0, of.device.1) as u32,
            blksize: self.client.read_bytes().max(4096),
            flags: 0,
        };
        Entry { attr, fresh: lifetime(of, now, &self.client.url().caching) }
    }

    /// What was found, which the kernel is told of.
    pub fn told(&self, found: &Found) -> Entry {
        let number = self.nodes.borrow_mut().told(found);
        self.entry(number, &found.attributes)
    }

    pub fn forget(&self, number: u64, lookups: u64) {
        self.nodes.borrow_mut().forget(number, lookups);
    }

    async fn find(&self, parent: u64, name: &OsStr) -> Outcome<Option<Found>> {
        let parent = self.handle(parent)?;
        self.client.look_up(parent, name.as_bytes(), &PATH).await.map_err(|error| errno(&error))
    }

    async fn require(&self, parent: u64, name: &OsStr) -> Outcome<Found> {
        self.find(parent, name).await?.ok_or(libc::ENOENT)
    }

    pub async fn lookup(&self, parent: u64, name: &OsStr) -> Outcome<Entry> {
        Ok(self.told(&self.require(parent, name).await?))
    }

    pub async fn attributes(&self, number: u64) -> Outcome<Entry> {
        let found = self
            .client
            .attributes(self.handle(number)?, &PATH)
            .await
            .map_err(|error| errno(&error))?;
        Ok(self.entry(number, &found.attributes))
    }

    pub async fn change(&self, number: u64, to: SetAttributes) -> Outcome<Entry> {
        // What was written goes before: sent again later, it would undo a cut, and give the file
        // another time and lesser rights.
        self.commit(number).await?;
        // A killed program's writes may still be on their way: one that arrives after a cut would
        // undo it.
        let writer = self.writer(number).filter(|_| to.bytes.is_some());
        let _settled = match &writer {
            Some(writer) => Some(writer.settled().await),
            None => None,
        };
        self.client.change(self.handle(number)?, to, &PATH).await.map_err(|error| errno(&error))?;
        self.attributes(number).await
    }

    pub async fn link_target(&self, number: u64) -> Outcome<Vec<u8>> {
        self.client.read_link(self.handle(number)?, &PATH).await.map_err(|error| errno(&error))
    }

    /// The kernel is told of what was made.
    async fn made(&self, made: Result<Handle>) -> Outcome<Entry> {
        let made = made.map_err(|error| errno(&error))?;
        Ok(self.told(&self.client.attributes(made, &PATH).await.map_err(|error| errno(&error))?))
    }

    pub async fn make_directory(&self, parent: u64, name: &OsStr, mode: u32) -> Outcome<Entry> {
        let (parent, name) = (self.handle(parent)?, name.as_bytes());
        let made = self.client.make_directory(parent, name, of_mode(mode), false, &PATH);
        self.made(made.await).await
    }

    pub async fn make_link(&self, parent: u64, name: &OsStr, target: &[u8]) -> Outcome<Entry> {
        let parent = self.handle(parent)?;
        self.made(self.client.make_link(parent, name.as_bytes(), target, &PATH).await).await
    }

    pub async fn make_node(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        device: u32,
    ) -> Outcome<Entry> {
        let (parent, name) = (self.handle(parent)?, name.as_bytes());
        let kind = match mode & libc::S_IFMT {
            libc::S_IFIFO => Kind::Pipe,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFBLK => Kind::Block,
            libc::S_IFCHR => Kind::Character,
            libc::S_IFREG | 0 => {
                let made = self.client.create_exclusive(parent, name, of_mode(mode), &PATH);
                return self.made(made.await).await;
            }
            _ => return Err(libc::EINVAL),
        };
        let device = (libc::major(device.into()), libc::minor(device.into()));
        let made = self.client.make_node(parent, name, kind, device, of_mode(mode), &PATH);
        self.made(made.await).await
    }

    /// Has a file that is open keep its data under a hidden name when its name goes: the server
    /// knows nothing of files that are open. Whether it was one.
    async fn keep(&self, parent: u64, name: &OsStr, found: &Found) -> Outcome<bool> {
        let parent = self.handle(parent)?;
        let (number, before) = {
            let nodes = self.nodes.borrow();
            let number = nodes.of(&found.handle).filter(|_| found.attributes.links == 1);
            let open = number.and_then(|number| Some((number, nodes.get(number)?)));
            let Some((number, node)) = open.filter(|(_, node)| node.opens > 0) else {
                return Ok(false);
            };
            (number, node.kept.clone())
        };
        // Another name was only meant for it, if the program was killed that removed this one.
        if before.as_ref().is_some_and(|(at, kept)| (*at, &**kept) == (parent, name.as_bytes())) {
            return Ok(false);
        }
        let number_here = self.last.get() + 1;
        self.last.set(number_here);
        let hidden = format!(".nfs{:016x}{number_here:08x}", found.attributes.file);
        let (from, to) = (name.as_bytes(), hidden.as_bytes());
        let set = |kept| {
            if let Some(node) = self.nodes.borrow_mut().get_mut(number) {
                node.kept = kept;
            }
        };
        // Before: where the program is killed meanwhile, the server may still rename it.
        set(Some((parent, to.to_vec())));
        let renamed = self.client.rename(parent, from, to, found.handle, &PATH).await;
        renamed.inspect_err(|_| set(before)).map_err(|error| errno(&error))?;
        Ok(true)
    }

    pub async fn remove(&self, parent: u64, name: &OsStr) -> Outcome<()> {
        let found = self.require(parent, name).await?;
        if self.keep(parent, name, &found).await? {
            return Ok(());
        }
        let parent = self.handle(parent)?;
        self.client
            .remove(parent, name.as_bytes(), &found, &PATH)
            .await
            .map_err(|error| errno(&error))
    }

    pub async fn remove_directory(&self, parent: u64, name: &OsStr) -> Outcome<()> {
        let found = self.require(parent, name).await?;
        let item = Item { name: name.as_bytes().to_vec(), found };
        let parent = self.handle(parent)?;
        self.client.remove_directory(parent, &item, &PATH).await.map_err(|error| errno(&error))
    }

    pub async fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr)) -> Outcome<()> {
        let found = self.require(from.0, from.1).await?;
        if let Some(there) = self.find(to.0, to.1).await?
            && there.handle != found.handle
        {
            self.keep(to.0, to.1, &there).await?;
        }
        let from = (self.handle(from.0)?, from.1.as_bytes());
        let to = (self.handle(to.0)?, to.1.as_bytes());
        self.client.rename_to(from, to, found.handle, &PATH).await.map_err(|error| errno(&error))
    }

    pub async fn link(&self, number: u64, parent: u64, name: &OsStr) -> Outcome<Entry> {
        let found = self
            .client
            .attributes(self.handle(number)?, &PATH)
            .await
            .map_err(|error| errno(&error))?;
        let parent = self.handle(parent)?;
        let linked = self.client.link(&found, parent, name.as_bytes(), &PATH).await;
        self.made(linked.map(|()| found.handle)).await
    }

    /// What the server lets this user do, of what is asked: `R_OK`, `W_OK` and `X_OK`.
    pub async fn may(&self, number: u64, mask: i32) -> Outcome<()> {
        let (handle, kind) = {
            let nodes = self.nodes.borrow();
            let node = nodes.get(number).ok_or(libc::ESTALE)?;
            (node.handle, node.kind)
        };
        let directory = kind == Kind::Directory;
        let change = access::MODIFY | access::EXTEND;
        let mut wanted = 0;
        for (bit, of_file, of_directory) in [
            (libc::R_OK, access::READ, access::READ),
            (libc::W_OK, change, change | access::DELETE),
            (libc::X_OK, access::EXECUTE, access::LOOKUP),
        ] {
            if mask & bit != 0 {
                wanted |= if directory { of_directory } else { of_file };
            }
        }
        if wanted == 0 {
            return self.attributes(number).await.map(drop);
        }
        let granted =
            self.client.may(handle, wanted, &PATH).await.map_err(|error| errno(&error))?;
        // A directory in which nothing can be deleted may still have names added.
        let needed = wanted & !access::DELETE;
        if granted & needed == needed { Ok(()) } else { Err(libc::EACCES) }
    }

    /// Opens a file: the server is asked what it is now, whatever is believed. Whether its data is
    /// that of the last time.
    pub async fn open(&self, number: u64, flags: i32) -> Outcome<bool> {
        let mask = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => libc::R_OK,
            libc::O_WRONLY => libc::W_OK,
            _ => libc::R_OK | libc::W_OK,
        };
        self.may(number, mask).await?;
        let found = self
            .client
            .attributes(self.handle(number)?, &PATH)
            .await
            .map_err(|error| errno(&error))?;
        let stamp = Some((&found.attributes).into());
        let same = {
            let mut nodes = self.nodes.borrow_mut();
            let node = nodes.get_mut(number).ok_or(libc::ESTALE)?;
            node.opens += 1;
            std::mem::replace(&mut node.stamp, stamp) == stamp
        };
        if !same && let Some(notifier) = &*self.notifier.borrow() {
            // Its length may be another. What the kernel does not know it need not forget.
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
        Ok(same)
    }

    pub async fn create(&self, parent: u64, name: &OsStr, mode: u32, flags: i32) -> Outcome<Entry> {
        let (parent, name) = (self.handle(parent)?, name.as_bytes());
        let made = match flags & libc::O_EXCL {
            0 => self.client.create(parent, name, of_mode(mode), &PATH).await,
            _ => self.client.create_exclusive(parent, name, of_mode(mode), &PATH).await,
        };
        let entry = self.made(made).await?;
        if let Some(node) = self.nodes.borrow_mut().get_mut(entry.attr.ino.0) {
            node.opens += 1;
        }
        Ok(entry)
    }

    pub async fn read(&self, number: u64, offset: u64, bytes: u32) -> Outcome<Payload> {
        match self.writer(number) {
            Some(writer) => writer.read(offset, bytes).await,
            None => {
                let handle = self.handle(number)?;
                RemoteFile::new(&self.client, handle, PATH).read(offset, bytes).await
            }
        }
        .map_err(|error| errno(&error))
    }

    pub fn open_directory(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.listings.borrow_mut().insert(self.last.get(), None);
        self.last.get()
    }

    pub fn release_directory(&self, handle: u64) {
        self.listings.borrow_mut().remove(&handle);
    }

    /// The entries of a directory, as they were when its first ones were asked for.
    pub async fn list(&self, number: u64, handle: u64, from: u64) -> Outcome<Rc<Vec<Item>>> {
        let known = {
            let listings = self.listings.borrow();
            let listing = listings.get(&handle).and_then(Option::as_ref).filter(|_| from > 0);
            listing.map(|listing| listing.items.clone())
        };
        let items = match known {
            Some(known) => known,
            None => {
                let directory = self.handle(number)?;
                let items = self.client.list(directory, &PATH).await;
                let items = Rc::new(items.map_err(|error| errno(&error))?);
                self.keep_listing(handle, &items);
                items
            }
        };
        // The kernel asks once more when it has all of them.
        if from >= items.len() as u64 + DOTS
            && let Some(Some(listing)) = self.listings.borrow().get(&handle)
        {
            listing.is_read.set(true);
        }
        Ok(items)
    }

    /// Keeps a listing until its directory is closed. Where there is no room for it, the oldest of
    /// those go that were read to their end. A program goes on with another by the number of an
    /// entry, which means nothing in a newer listing.
    fn keep_listing(&self, handle: u64, items: &Rc<Vec<Item>>) {
        let bytes = items.iter().map(|item| size_of::<Item>() + item.name.len()).sum::<usize>();
        let kept = Reserved::new(&self.kept, bytes as u64);
        let mut listings = self.listings.borrow_mut();
        for (_, older) in listings.range_mut(..handle) {
            if self.kept.get() <= self.client.url().kept_bytes {
                break;
            }
            older.take_if(|listing| listing.is_read.get());
        }
        // A killed program's directory may have been closed meanwhile.
        if let Some(place) = listings.get_mut(&handle) {
            let (items, is_read) = (items.clone(), Cell::new(false));
            *place = Some(Listing { items, is_read, _kept: kept });
        }
    }

    pub async fn space(&self) -> Outcome<(crate::nfs3::SpaceLeft, u32, u32)> {
        let root = self.handle(super::nodes::ROOT)?;
        let space = self.client.space(root, &PATH).await.map_err(|error| errno(&error))?;
        if self.most_name_bytes.get() == 0 {
            let most = match self.client.name_limits(root, &PATH).await {
                Ok(limits) => limits.most_name_bytes,
                Err(error) if error.status() == Some(Status::NOTSUPP) => 255,
                Err(error) => return Err(errno(&error)),
            };
            self.most_name_bytes.set(most.max(1));
        }
        Ok((space, self.most_name_bytes.get(), self.client.write_bytes().max(4096)))
    }
}

fn of_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() }
}

/// A name as it was listed.
pub(super) fn name_of(item: &Item) -> OsString {
    OsString::from_vec(item.name.clone())
}
