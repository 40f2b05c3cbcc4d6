// SPDX-License-Identifier: MIT OR Apache-2.0
//! The off switch: a file whose presence sends every request the kernel's own way.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dwell_policy::Ns;

use crate::error::{Error, Result};
use crate::monitor::host::HostPage;
use crate::monitor::sys::effective_uid;

/// Where Dwell is switched off: for the machine, and for one user's processes.
///
/// A file counts if it is a regular one with one name, and root's; the user's own counts for that
/// user. What it contains is only shown. An empty one that `touch` made counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffSwitch {
    /// Root's file, for all processes of the machine.
    pub machine: PathBuf,
    /// The user's own.
    pub own: PathBuf,
}

/// That Dwell is switched off, by whom and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Off {
    /// The file that says so.
    pub path: PathBuf,
    /// Whether it holds for the whole machine.
    pub machine: bool,
    /// Its owner.
    pub user: u32,
    /// When it was made, in seconds since 1970.
    pub since_unix_s: i64,
    /// What whoever made it wrote into it.
    pub note: String,
}

/// Longest note that is shown, in bytes.
const LONGEST_NOTE: u64 = 256;

/// Where root switches Dwell off for the machine.
const MACHINE: &str = "/run/dwell-off";

impl Default for OffSwitch {
    /// In the usual places.
    fn default() -> Self {
        OffSwitch::beside(&HostPage::usual(effective_uid()))
    }
}

impl OffSwitch {
    /// Root's usual file for the machine, and the user's own beside the page that the user's
    /// processes share.
    pub fn beside(host_page: &Path) -> OffSwitch {
        let mut own = host_page.as_os_str().to_owned();
        own.push("-off");
        OffSwitch { machine: MACHINE.into(), own: own.into() }
    }

    /// Whether Dwell is off for this process now: two looks at directories.
    pub fn is_off(&self) -> bool {
        self.file().is_some()
    }

    /// The file that switches Dwell off for this process, and its user; `None` where it is on. The
    /// machine's file comes first.
    pub fn off(&self) -> Option<Off> {
        let (path, found) = self.file()?;
        let note = note_of(path).unwrap_or_default();
        Some(Off {
            path: path.to_owned(),
            machine: path == self.machine,
            user: found.uid(),
            since_unix_s: found.mtime(),
            note,
        })
    }

    fn file(&self) -> Option<(&Path, Metadata)> {
        let files = [&*self.machine, &*self.own];
        files.into_iter().find_map(|path| Some((path, self.counting(path)?)))
    }

    /// One of the files, if it counts.
    fn counting(&self, path: &Path) -> Option<Metadata> {
        // Not what a link points to, whoever made it.
        let found = fs::symlink_metadata(path).ok()?;
        let owner = found.uid();
        let may = owner == 0 || *path == *self.own && owner == effective_uid();
        (found.is_file() && found.nlink() == 1 && may).then_some(found)
    }

    /// The file that this user can make.
    fn mine(&self) -> &Path {
        if effective_uid() == 0 { &self.machine } else { &self.own }
    }

    /// Switches Dwell off: root for all processes of the machine, anybody else for their own. One
    /// that is off already stays as it is.
    ///
    /// # Errors
    /// What the system refuses; a file of somebody else's in that place.
    pub fn turn_off(&self, note: &str) -> Result<Off> {
        let path = self.mine();
        if let (Some(_), Some(off)) = (self.counting(path), self.off()) {
            return Ok(off);
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.draft", std::process::id()));
        let draft = PathBuf::from(draft);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            // Every user's processes and `dwell top` may read why.
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&draft)
            .and_then(|mut file| file.write_all(format!("{note}\n").as_bytes()))
            // In place of whatever stands there and does not count, if that is this user's to
            // remove.
            .and_then(|()| fs::rename(&draft, path));
        if let Err(error) = made {
            let _ = fs::remove_file(&draft);
            return Err(Error::io("make", path, None, error));
        }
        self.off().ok_or_else(|| {
            Error::invalid(path, "was made and does not count; look at who changes it")
        })
    }

    /// Takes back what [`OffSwitch::turn_off`] by this user did. Returns the switch that still
    /// keeps Dwell off, if one does.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn turn_on(&self) -> Result<Option<Off>> {
        for path in [self.mine(), &self.own] {
            if self.counting(path).is_none() {
                continue;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", path, None, error));
                }
                _ => {}
            }
        }
        Ok(self.off())
    }
}

/// The first line of a file, without what could do more on a terminal than be read.
fn note_of(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let mut bytes = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    file.take(LONGEST_NOTE).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default().trim();
    Ok(line.chars().filter(|c| !c.is_control()).collect())
}

/// How long files without a monitor go without a look.
const LOOK_EVERY_NS: Ns = 100_000_000;

/// What files without a monitor saw last, in the lowest bit, and when to look again.
struct Seen(AtomicU64);

static SEEN: Seen = Seen(AtomicU64::new(0));

/// Whether Dwell was off at the last look of files without a monitor: one relaxed load.
#[inline]
pub(crate) fn was_off() -> bool {
    SEEN.is_off()
}

/// Has files without a monitor look again, if it is time. Allocates nothing after the first time.
#[inline]
pub(crate) fn look_at_times(now: Ns) {
    static PLACES: OnceLock<OffSwitch> = OnceLock::new();
    if SEEN.is_due(now) {
        SEEN.look(now, PLACES.get_or_init(OffSwitch::default));
    }
}

impl Seen {
    #[inline]
    fn is_off(&self) -> bool {
        self.0.load(Relaxed) & 1 == 1
    }

    #[inline]
    fn is_due(&self, now: Ns) -> bool {
        now >= self.0.load(Relaxed)
    }

    #[cold]
    fn look(&self, now: Ns, places: &OffSwitch) {
        let before = self.0.load(Relaxed);
        let next = (now + LOOK_EVERY_NS) & !1;
        let meanwhile = next | before & 1;
        // One thread looks for all.
        if before <= now && self.0.compare_exchange(before, meanwhile, Relaxed, Relaxed).is_ok() {
            let after = next | u64::from(places.is_off());
            let _ = self.0.compare_exchange(meanwhile, after, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn places(dir: &Path) -> OffSwitch {
        OffSwitch { machine: dir.join("machine"), own: dir.join("own") }
    }

    #[test]
    fn the_user_who_switched_it_off_is_named_until_it_is_on_again() {
        let dir = tempfile::tempdir().unwrap();
        let switch = places(dir.path());
        assert!(!switch.is_off() && switch.off().is_none());
        let off = switch.turn_off("ada: alarm\u{1b}[2J\nmore").unwrap();
        assert_eq!((off.user, off.note.as_str()), (effective_uid(), "ada: alarm[2J"));
        assert_eq!(off.machine, effective_uid() == 0);
        assert!(switch.is_off() && off.since_unix_s > 1_600_000_000);
        // The first word stands.
        assert_eq!(switch.turn_off("later").unwrap(), off);
        assert_eq!(switch.turn_on().unwrap(), None);
        assert!(!switch.is_off());
        assert_eq!(switch.turn_on().unwrap(), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_empty_file_counts_and_a_link_a_directory_or_a_second_name_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let switch = places(dir.path());
        let other = dir.path().join("other");
        fs::write(&other, "").unwrap();
        symlink(&other, &switch.own).unwrap();
        assert!(!switch.is_off());
        fs::remove_file(&switch.own).unwrap();
        fs::hard_link(&other, &switch.own).unwrap();
        assert!(!switch.is_off());
        fs::remove_file(&switch.own).unwrap();
        fs::create_dir(&switch.own).unwrap();
        assert!(!switch.is_off());
        fs::remove_dir(&switch.own).unwrap();
        fs::write(&switch.own, "").unwrap();
        assert!(switch.is_off());
        assert_eq!(switch.off().unwrap().note, "");
    }

    #[test]
    fn switching_it_off_works_whatever_others_did_before() {
        let dir = tempfile::tempdir().unwrap();
        let switch = places(dir.path());
        let is_root = effective_uid() == 0;
        let (mine, other) = match is_root {
            true => (&switch.machine, &switch.own),
            false => (&switch.own, &switch.machine),
        };
        fs::write(other, "").unwrap();
        switch.turn_off("").unwrap();
        assert!(mine.exists());
        // Anybody else's file in root's place does not count, and stays.
        assert_eq!(switch.turn_on().unwrap(), None);
        assert!(!mine.exists() && other.exists() != is_root);
    }

    #[test]
    fn somebody_elses_file_switches_nothing_off() {
        if effective_uid() != 0 {
            return println!("SKIP: only root can give a file away");
        }
        let dir = tempfile::tempdir().unwrap();
        let switch = places(dir.path());
        for path in [&switch.machine, &switch.own] {
            fs::write(path, "").unwrap();
            chown(path, Some(12345), None).unwrap();
            assert!(!switch.is_off(), "{}", path.display());
        }
        // Root replaces what does not count, and leaves alone what is not in the way.
        assert!(switch.turn_off("").unwrap().machine);
        assert_eq!(switch.turn_on().unwrap(), None);
        assert!(switch.own.exists() && !switch.machine.exists());
    }

    #[test]
    fn without_a_monitor_it_is_looked_at_ten_times_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let (switch, seen) = (places(dir.path()), Seen(AtomicU64::new(0)));
        let off_at = |now| {
            if seen.is_due(now) {
                seen.look(now, &switch);
            }
            seen.is_off()
        };
        assert!(!off_at(1_000_000_001));
        switch.turn_off("").unwrap();
        assert!(!off_at(1_099_999_999));
        assert!(off_at(1_100_000_002) && off_at(1_150_000_000));
        switch.turn_on().unwrap();
        assert!(off_at(1_199_999_999) && !off_at(1_200_000_005));
    }
}
