// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host page as a file: opened, checked and mapped; and what a doctor may read from it.

use super::member::{Ask, Member, PeerTotals, Report};
use super::procstat::parse_start_ticks;
use super::sync::WORDS;
use super::sys;
use super::table::{Field, Identity, Table};
use crate::shared_atomics::SharedAtomics;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Which processes share a host page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Those of one user: the file is the user's own, mode 0600.
    #[default]
    SameUser,
    /// Those of all users: mode 0666. A process that can open it can also truncate it, and a
    /// process that then looks at the page dies of SIGBUS. So this is only for hosts whose users
    /// trust each other.
    AllUsers,
}

impl Sharing {
    fn mode(self) -> u32 {
        match self {
            Sharing::SameUser => 0o600,
            Sharing::AllUsers => 0o666,
        }
    }
}

/// One process on the page, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its pid, in its own pid namespace.
    pub pid: u32,
    /// Spinners that it wants.
    pub spinners_wanted: u32,
    /// Spinners that it may have.
    pub spinners_leased: u32,
}

/// This process's part in the page that all Dwell processes of a host share. Where the page cannot
/// be used the process works alone, and [`HostPage::alone_because`] says why.
#[derive(Debug)]
pub struct HostPage {
    joined: Result<Joined, String>,
    full: bool,
}

#[derive(Debug)]
struct Joined {
    words: SharedAtomics,
    member: Member,
    pid: u32,
}

impl HostPage {
    /// Where the page of a user's processes lies unless somebody chooses another place.
    pub fn usual(uid: u32) -> PathBuf {
        Path::new("/dev/shm").join(format!("dwell-{uid}"))
    }

    /// A process on its own.
    pub fn none() -> HostPage {
        HostPage { joined: Err("no host page was asked for".to_string()), full: false }
    }

    /// Joins the page at `path`, which is created if need be.
    pub fn open(path: &Path, sharing: Sharing) -> HostPage {
        let joined = Joined::open(path, sharing)
            .map_err(|why| format!("host page {}: {why}", path.display()));
        HostPage { joined, full: false }
    }

    /// Why this process shares no limit with others; `None` when it does.
    pub fn alone_because(&self) -> Option<&str> {
        match &self.joined {
            Err(why) => Some(why),
            Ok(_) if self.full => Some("host page: all 256 slots are taken by live processes"),
            Ok(_) => None,
        }
    }

    /// All processes on the page, this one included, as they describe themselves.
    pub fn survey(&self) -> Vec<Peer> {
        let Ok(Joined { words, .. }) = &self.joined else { return Vec::new() };
        let Some(table) = Table::new(words) else { return Vec::new() };
        let seen = (0..=255).filter_map(|slot| table.identity(slot).map(|id| (slot, id)));
        seen.map(|(slot, identity)| Peer {
            pid: identity.pid(),
            spinners_wanted: table.get(slot, Field::Wanted).min(255) as u32,
            spinners_leased: table.get(slot, Field::Allowed).min(255) as u32,
        })
        .collect()
    }

    /// Publishes the last window and looks at the peers.
    pub(super) fn report(
        &mut self,
        now_ns: u64,
        cpus: impl Iterator<Item = u32>,
        own: &Report,
    ) -> PeerTotals {
        let Ok(Joined { words, member, .. }) = &mut self.joined else {
            return PeerTotals::default();
        };
        let Some(table) = Table::new(words) else { return PeerTotals::default() };
        member.set_cpus(cpus);
        self.full = !member.report(table, now_ns, own, &gone_from_here(member));
        member.peers(table, now_ns, own.group)
    }

    /// This process's share of its limit. A process alone has all of it.
    pub(super) fn share(&self, now_ns: u64, ask: &Ask) -> u32 {
        match self.member() {
            Some((member, table)) => member.share(table, now_ns, ask, &gone_from_here(member)),
            None => ask.limit,
        }
    }

    /// Whether this process may have a first spinner in the middle of a window.
    pub(super) fn take_first(&self, now_ns: u64, ask: &Ask) -> bool {
        match self.member() {
            Some((member, table)) => member.take_first(table, now_ns, ask, &gone_from_here(member)),
            None => true,
        }
    }

    /// Spinners that other processes of our CPUs may have.
    pub(super) fn taken(&self, now_ns: u64) -> u32 {
        self.member()
            .map_or(0, |(member, table)| member.taken(table, now_ns, &gone_from_here(member)))
    }

    fn member(&self) -> Option<(&Member, Table<'_>)> {
        let Joined { words, member, .. } = self.joined.as_ref().ok().filter(|_| !self.full)?;
        Some((member, Table::new(words)?))
    }
}

impl Drop for HostPage {
    fn drop(&mut self) {
        if let Ok(Joined { words, member, pid }) = &mut self.joined
            // A forked child has no part of its own: the parent keeps the slot.
            && *pid == std::process::id()
            && let Some(table) = Table::new(words)
        {
            member.leave(table);
        }
    }
}

/// Asks the kernel whether a process of our pid namespace is dead; of others nothing is known. A
/// pid that another process has by now is found dead later, by its silence: to read when that
/// process began would take a descriptor, and with it a number that the program may expect for its
/// own.
fn gone_from_here(member: &Member) -> impl Fn(Identity) -> bool + use<> {
    let namespace = member.identity().namespace();
    move |who| who.namespace() == namespace && sys::no_such_process(who.pid() as i32)
}

impl Joined {
    fn open(path: &Path, sharing: Sharing) -> Result<Joined, String> {
        let words = shared_words(path, sharing, WORDS)?;
        if !Table::new(&words).is_some_and(Table::admit) {
            return Err("is of another version of Dwell; end its processes and remove it, \
                        or choose another path"
                .to_string());
        }
        let pid = std::process::id();
        let start_ticks = fs::read_to_string("/proc/self/stat")
            .ok()
            .and_then(|text| parse_start_ticks(&text))
            .ok_or("cannot read this process's start time from /proc/self/stat")?;
        let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
        let member = Member::new(Identity::new(pid, start_ticks, namespace));
        Ok(Joined { words, member, pid })
    }
}

/// So many words of the file at `path`, which is created if need be, shared with all who open it.
pub(crate) fn shared_words(
    path: &Path,
    sharing: Sharing,
    words: usize,
) -> Result<SharedAtomics, String> {
    let bytes = words as u64 * 8;
    let file = open_or_create(path, sharing).map_err(|e| e.to_string())?;
    // The creator of the file may still be about to set its mode.
    let mut checked = check(&file, sharing, bytes);
    for _ in 0..5 {
        if checked.is_ok() || file.metadata().is_ok_and(|m| m.len() > 0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        checked = check(&file, sharing, bytes);
    }
    checked?;
    sys::allocate(&file, bytes as i64)
        .map_err(|e| format!("cannot allocate {bytes} bytes ({e}); choose a tmpfs"))?;
    check(&file, sharing, bytes)?;
    SharedAtomics::of_file(&file, words).map_err(|e| e.to_string())
}

fn open_or_create(path: &Path, sharing: Sharing) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(sharing.mode())
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK);
    for _ in 0..5 {
        match options.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        match options.clone().create_new(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Ok(file) => {
                // Whatever the umask says.
                file.set_permissions(Permissions::from_mode(sharing.mode()))?;
                return Ok(file);
            }
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "comes and goes; choose another path"))
}

fn check(file: &File, sharing: Sharing, bytes: u64) -> Result<(), String> {
    let meta = file.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("is not a regular file; choose another path".to_string());
    }
    let (owner, me) = (meta.uid(), sys::effective_uid());
    if sharing == Sharing::SameUser && owner != me {
        return Err(format!("belongs to user {owner}, not to {me}; choose another path"));
    }
    let mode = meta.mode() & 0o7777;
    if mode != sharing.mode() {
        return Err(format!("has mode {mode:04o}, not {:04o}; remove it", sharing.mode()));
    }
    if meta.len() != 0 && meta.len() != bytes {
        return Err(format!("has {} bytes, not {bytes}; remove it", meta.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::os::unix::fs::symlink;

    const BYTES: u64 = WORDS as u64 * 8;

    fn why(path: &Path) -> String {
        HostPage::open(path, Sharing::SameUser).alone_because().unwrap_or("").to_string()
    }

    #[test]
    fn an_unusable_page_is_named_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let page = path("page");
        assert_eq!(HostPage::open(&page, Sharing::SameUser).alone_because(), None);
        let meta = fs::metadata(&page).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (BYTES, 0o600));

        symlink(&page, path("link")).unwrap();
        fs::create_dir(path("dir")).unwrap();
        for (name, reason) in [("link", "symbolic"), ("dir", "directory"), ("no/page", "No such")] {
            assert!(why(&path(name)).contains(reason), "{name}: {}", why(&path(name)));
        }
        fs::set_permissions(&page, Permissions::from_mode(0o640)).unwrap();
        assert!(why(&page).contains("mode 0640, not 0600"));
        fs::set_permissions(&page, Permissions::from_mode(0o600)).unwrap();
        assert!(HostPage::open(&page, Sharing::AllUsers).alone_because().unwrap().contains("mode"));
        fs::write(&page, "short").unwrap();
        assert!(why(&page).contains("has 5 bytes"));
        fs::write(&page, vec![7; BYTES as usize]).unwrap();
        assert!(why(&page).contains("another version"));
        assert!(HostPage::none().alone_because().is_some());
    }

    #[test]
    fn any_bytes_in_the_page_are_survived() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let magic = super::super::table::MAGIC.to_ne_bytes();
        for fill in [0u8, 1, 0x55, 0xff] {
            let mut bytes = vec![fill; BYTES as usize];
            bytes[..8].copy_from_slice(&magic);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let mut page = HostPage::open(&path, Sharing::SameUser);
            assert!(page.survey().len() <= 256);
            for window in 0..100 {
                let now_ns = clock::now() + window * 100_000_000;
                let own = Report { elapsed_ns: 0, spin_ns: u64::MAX, ..Report::default() };
                let peers = page.report(now_ns, 0..1024, &own);
                assert!(peers.spin_cpus.is_finite() && peers.spin_cpus <= 65_536.0);
                let ask = Ask { limit: 3, wanted: 2, window_ms: 100, turn_ms: 1000 };
                assert!(page.share(now_ns, &ask) <= 3);
                page.take_first(now_ns, &ask);
            }
        }
    }

    #[test]
    fn a_process_leaves_its_slot_and_a_dead_ones_slot_is_reclaimed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        let mut page = HostPage::open(&path, Sharing::SameUser);
        let now_ns = clock::now();
        let own = Report { elapsed_ns: 1, period_ms: 100, ..Report::default() };
        page.report(now_ns, 0..2, &own);
        assert_eq!(page.survey()[0].pid, std::process::id());

        // A process that started at another time had our pid before us.
        let Ok(Joined { words, member, .. }) = &page.joined else { panic!() };
        let table = Table::new(words).unwrap();
        let me = member.identity();
        let before_us = Identity(me.0 ^ 1 << 20);
        // The highest pid that a kernel can be told to give.
        let of_none = Identity(me.0 | 0x3f_ffff << 42);
        assert!(gone_from_here(member)(of_none) && !gone_from_here(member)(me));
        let ghost = member.slot().unwrap().wrapping_add(1);
        assert!(table.change_identity(ghost, None, Some(before_us)));
        table.set(ghost, Field::HeartbeatNs, now_ns);
        assert_eq!(page.survey().len(), 2);
        page.report(now_ns + 60_000_000_000, 0..2, &own);
        assert_eq!(page.survey().len(), 1);

        let observer = HostPage::open(&path, Sharing::SameUser);
        drop(page);
        assert_eq!(observer.survey(), []);
    }
}
