// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel counts of a disk's queue: requests under way, and how large requests are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dwell_policy::Backlog;

/// Size of a request that is assumed until one has completed, in bytes.
const USUAL_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// Columns of `stat`: completed reads and their sectors, writes and theirs, requests under way.
const READS: usize = 0;
const READ_SECTORS: usize = 2;
const WRITES: usize = 4;
const WRITTEN_SECTORS: usize = 6;
const UNDER_WAY: usize = 8;

/// The queue of one whole disk.
#[derive(Debug)]
pub(crate) struct DiskQueue {
    stat: File,
    completed: u64,
    sectors: u64,
    mean_bytes: u64,
}

impl DiskQueue {
    /// The disk that has the block device of this number (`major:minor`), in a mounted sysfs;
    /// `None` where there is none. A partition's requests are those of its disk.
    pub fn open(sysfs: &Path, number: &str) -> Option<DiskQueue> {
        let device = sysfs.join("dev/block").join(number);
        let disk = if device.join("partition").exists() { device.join("..") } else { device };
        let stat = File::open(disk.join("stat")).ok()?;
        let mut queue = DiskQueue { stat, completed: 0, sectors: 0, mean_bytes: USUAL_BYTES };
        queue.look()?;
        queue.mean_bytes = USUAL_BYTES;
        Some(queue)
    }

    /// The requests under way now. Their bytes are as many as those have had that completed since
    /// the last look.
    pub fn look(&mut self) -> Option<Backlog> {
        let mut text = [0; 512];
        let length = self.stat.read_at(&mut text, 0).ok()?;
        let columns = std::str::from_utf8(&text[..length]).ok()?;
        let columns: Vec<u64> =
            columns.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let of = |column: usize| columns.get(column).copied();
        let completed = of(READS)? + of(WRITES)?;
        let sectors = of(READ_SECTORS)? + of(WRITTEN_SECTORS)?;
        let (more, moved) =
            (completed.saturating_sub(self.completed), sectors.saturating_sub(self.sectors));
        if let Some(mean) = (moved * SECTOR_BYTES).checked_div(more) {
            self.mean_bytes = mean;
        }
        (self.completed, self.sectors) = (completed, sectors);
        let requests = of(UNDER_WAY)?.min(1 << 16) as u32;
        Some(Backlog { bytes: u64::from(requests) * self.mean_bytes, requests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn requests_under_way_are_as_large_as_those_that_completed() {
        let sysfs = tempfile::tempdir().unwrap();
        let disk = sysfs.path().join("devices/disk");
        fs::create_dir_all(disk.join("disk1")).unwrap();
        fs::create_dir_all(sysfs.path().join("dev/block")).unwrap();
        fs::write(disk.join("disk1/partition"), "1").unwrap();
        fs::write(disk.join("disk1/stat"), "0 0 0 0 0 0 0 0 0 0 0").unwrap();
        for (number, device) in [("8:0", "devices/disk"), ("8:1", "devices/disk/disk1")] {
            let link = sysfs.path().join("dev/block").join(number);
            std::os::unix::fs::symlink(sysfs.path().join(device), link).unwrap();
        }
        let say = |text: &str| fs::write(disk.join("stat"), text).unwrap();
        say("100 0 800 5 20 0 160 5 3 9 9 0 0 0 0 0 0\n");
        for number in ["8:0", "8:1"] {
            say("100 0 800 5 20 0 160 5 3 9 9 0 0 0 0 0 0\n");
            let mut queue = DiskQueue::open(sysfs.path(), number).unwrap();
            assert_eq!(queue.look(), Some(Backlog { bytes: 3 * 4096, requests: 3 }));
            // Two reads of 64 KiB and two writes of 32 KiB.
            say("102 0 1056 5 22 0 288 5 2 9 9\n");
            assert_eq!(queue.look(), Some(Backlog { bytes: 2 * 49152, requests: 2 }));
            say("102 0 1056 5 22 0 288 5 0 9 9\n");
            assert_eq!(queue.look(), Some(Backlog::default()));
            say("nothing of the kind\n");
            assert_eq!(queue.look(), None);
        }
        assert!(DiskQueue::open(sysfs.path(), "9:9").is_none());
    }
}
