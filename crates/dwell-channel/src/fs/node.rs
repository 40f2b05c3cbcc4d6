// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that the kernel knows: numbers, handles that cannot be led astray, how often each was
//! looked up.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::charges::{Charge, Charges};
use super::passthrough::Backing;

/// The number of the mount's root in the kernel's protocol.
pub(super) const ROOT: u64 = 1;

/// Numbers from here on are ours: given where the backing file system's own could be ambiguous.
const OURS: u64 = 1 << 63;

/// A file of the backing directory that the kernel knows.
#[derive(Debug)]
pub(super) struct Node {
    /// Its number in the kernel's protocol, which is also what stat shows (but for the root).
    pub id: u64,
    /// Tells uses of the same number apart.
    pub generation: u64,
    /// Device and number in the backing file system.
    pub key: (u64, u64),
    pub kind: FileType,
    /// Opened files on it that a channel may write: what the kernel remembers of it may be old.
    pub granted: AtomicU32,
    /// What the kernel knows it by where it passes requests through.
    pub backing: Backing,
    /// O_PATH: names the file itself, whatever becomes of its names.
    handle: OwnedFd,
    lookups: AtomicU64,
    /// Where it was seen last: the parent's number, and the name.
    place: Mutex<(u64, OsString)>,
    /// The user whose look-up made it known; nobody's is the root. Given back after the handle is.
    _charge: Option<Room>,
}

/// Room for one more file that the kernel knows.
pub(super) type Room = Charge<Node>;

impl Node {
    /// A path that leads to this very file.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd())
    }

    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }

    /// Where it was seen last.
    pub fn place(&self) -> (u64, OsString) {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers where it is now.
    pub fn moved(&self, parent: u64, name: &OsStr) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = (parent, name.to_owned());
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Nodes {
    tables: RwLock<Tables>,
    root: Arc<Node>,
    charges: Arc<Charges<Node>>,
}

#[derive(Debug, Default)]
struct Tables {
    by_id: HashMap<u64, Arc<Node>>,
    by_key: HashMap<(u64, u64), Arc<Node>>,
    made: u64,
}

/// A name in a directory, opened without following anything: no link, no mount, nothing above.
///
/// # Errors
/// What the kernel says; EXDEV where another file system is mounted on it.
pub(super) fn open_at(
    parent: impl AsFd,
    name: &OsStr,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    loop {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat2(&parent, name, flags, mode, resolve) {
            // The kernel could not rule out that a rename elsewhere led it astray; nor was anything
            // opened.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

pub(super) fn key(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Nodes {
    /// The nodes of the tree below an opened directory, and how many there may be.
    pub fn new(root: OwnedFd, charges: Arc<Charges<Node>>) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&root)?;
        let root = Arc::new(Node {
            id: ROOT,
            generation: 0,
            key: key(&stat),
            kind: FileType::from_raw_mode(stat.st_mode),
            granted: AtomicU32::new(0),
            backing: Backing::default(),
            handle: root,
            lookups: AtomicU64::new(1),
            place: Mutex::default(),
            _charge: None,
        });
        let mut tables = Tables::default();
        tables.by_id.insert(ROOT, root.clone());
        tables.by_key.insert(root.key, root.clone());
        Ok(Nodes { tables: RwLock::new(tables), root, charges })
    }

    /// The node of that number.
    ///
    /// # Errors
    /// ESTALE: the kernel was never told of it.
    pub fn get(&self, id: u64) -> Result<Arc<Node>, Errno> {
        if id == ROOT {
            return Ok(self.root.clone());
        }
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.by_id.get(&id).cloned().ok_or(Errno::STALE)
    }

    /// The node of a file by device and number, where the kernel knows it.
    pub fn known(&self, key: (u64, u64)) -> Option<Arc<Node>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).by_key.get(&key).cloned()
    }

    /// Finds a name and counts the look-up: one [`Nodes::forget`] has to follow.
    ///
    /// # Errors
    /// What the kernel says. ENFILE: it is a file that was not known, and there is no room.
    pub fn look_up(
        &self,
        parent: &Node,
        name: &OsStr,
        room: Option<Room>,
    ) -> Result<(Arc<Node>, Stat), Errno> {
        let handle = open_at(parent, name, OFlags::PATH, Mode::empty())?;
        let stat = rustix::fs::fstat(&handle)?;
        let node = self.count(&stat, handle, (parent.id, name), room)?;
        Ok((node, stat))
    }

    fn count(
        &self,
        stat: &Stat,
        handle: OwnedFd,
        (parent, name): (u64, &OsStr),
        room: Option<Room>,
    ) -> Result<Arc<Node>, Errno> {
        let key = key(stat);
        {
            // Nobody forgets meanwhile: that takes the lock for itself.
            let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(node) = tables.by_key.get(&key) {
                node.lookups.fetch_add(1, Ordering::Relaxed);
                node.moved(parent, name);
                return Ok(node.clone());
            }
        }
        let room = room.ok_or(Errno::NFILE)?;
        let account = room.account();
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = tables.by_key.get(&key) {
            node.lookups.fetch_add(1, Ordering::Relaxed);
            return Ok(node.clone());
        }
        tables.made += 1;
        let plain = key.0 == self.root.key.0 && key.1 > ROOT && key.1 < OURS;
        let node = Arc::new(Node {
            id: if plain { key.1 } else { OURS | tables.made },
            generation: tables.made,
            key,
            kind: FileType::from_raw_mode(stat.st_mode),
            granted: AtomicU32::new(0),
            backing: Backing::default(),
            handle,
            lookups: AtomicU64::new(1),
            place: Mutex::new((parent, name.to_owned())),
            _charge: Some(room),
        });
        self.charges.told(account, &node, node.kind == FileType::Directory);
        tables.by_id.insert(node.id, node.clone());
        tables.by_key.insert(key, node.clone());
        Ok(node)
    }

    /// The kernel forgets so many look-ups.
    pub fn forget(&self, id: u64, lookups: u64) {
        if id == ROOT {
            return;
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let Some(node) = tables.by_id.get(&id) else { return };
        let left = node.lookups.load(Ordering::Relaxed).saturating_sub(lookups);
        node.lookups.store(left, Ordering::Relaxed);
        if left == 0 {
            let key = node.key;
            tables.by_id.remove(&id);
            tables.by_key.remove(&key);
        }
    }

    pub fn len(&self) -> usize {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).by_id.len()
    }

    /// Room for one more file of that user's; `None` where old ones are to be forgotten first.
    pub fn room(&self, account: u32) -> Option<Room> {
        self.charges.take(account)
    }

    /// As [`Nodes::room`], and waits a little for files to be forgotten.
    ///
    /// # Errors
    /// ENFILE: none are.
    pub fn wait_for_room(&self, account: u32) -> Result<Room, Errno> {
        self.charges.wait(account).map_err(|_| Errno::NFILE)
    }

    /// Where files lie that the kernel should forget, at most so many of each user that is `asked`
    /// for; no directory but where that is said.
    pub fn oldest(
        &self,
        most: usize,
        directories: bool,
        asked: impl Fn(u32) -> bool,
    ) -> Vec<(u32, Vec<(u64, OsString)>)> {
        let fits = |node: &&Arc<Node>| directories || node.kind != FileType::Directory;
        let places =
            |nodes: Vec<Arc<Node>>| nodes.iter().filter(fits).map(|node| node.place()).collect();
        let users = self.charges.oldest(most, asked).into_iter();
        users.map(|(account, nodes)| (account, places(nodes))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn nodes(dir: &std::path::Path) -> Nodes {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
        Nodes::new(root, Charges::new(1000, false)).unwrap()
    }

    fn look_up(nodes: &Nodes, parent: &Node, name: &str) -> Result<(Arc<Node>, Stat), Errno> {
        nodes.look_up(parent, OsStr::new(name), nodes.room(1))
    }

    #[test]
    fn two_names_of_one_file_are_one_node_until_both_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "").unwrap();
        fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        let nodes = nodes(dir.path());
        let root = nodes.get(ROOT).unwrap();
        let (a, _) = look_up(&nodes, &root, "a").unwrap();
        let (b, _) = look_up(&nodes, &root, "b").unwrap();
        assert_eq!((a.id, a.generation), (b.id, b.generation));
        nodes.forget(a.id, 1);
        assert!(nodes.get(a.id).is_ok());
        nodes.forget(a.id, 1);
        assert_eq!(nodes.get(a.id).unwrap_err(), Errno::STALE);
        // Looked up anew it is told from its earlier self.
        let (again, _) = look_up(&nodes, &root, "a").unwrap();
        assert_ne!(again.generation, a.generation);
    }

    #[test]
    fn nothing_leads_out_of_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        symlink("/etc", dir.path().join("in/out")).unwrap();
        let nodes = nodes(&dir.path().join("in"));
        let root = nodes.get(ROOT).unwrap();
        // A link is the link itself; what it points to is never looked at.
        let (link, stat) = look_up(&nodes, &root, "out").unwrap();
        assert!(link.is_symlink());
        assert!(FileType::from_raw_mode(stat.st_mode).is_symlink());
        for name in ["..", "out/passwd", "/etc"] {
            assert!(look_up(&nodes, &root, name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_forgotten_root_stays() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = nodes(dir.path());
        nodes.forget(ROOT, u64::MAX);
        nodes.forget(12345, 1);
        assert_eq!(nodes.get(ROOT).unwrap().id, ROOT);
    }
}
