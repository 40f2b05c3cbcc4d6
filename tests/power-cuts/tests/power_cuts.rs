// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a sync has vouched for survives a power cut at any point, whichever way it was written.
//! Runs in the VM that `vm/test` boots; anywhere else every test here skips. `DWELL_POWER_CUTS` is
//! how many points each test looks at.

use std::env;
use std::fs::{self, File as Plain};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use dwell::buffer::Aligned;
use dwell::{File, WaitPolicy, policy};
use dwell_channel::daemon::{Daemon, Options as DaemonOptions};
use dwell_channel::fs::{Channels, Options as Serving, Server, take_over};
use dwell_pager::{Access, Options as Paging, PAGE_BYTES, Region};
use dwell_power_cuts::device::{Marker, Recorded, looked_at, missing};
use dwell_power_cuts::log::Entry;
use dwell_power_cuts::records::{BLOCK, History, Random, block};

const BLOCKS: u64 = 48;
const DISK: &str = "/tmp/disk";

/// One way to write a file.
trait Surface {
    fn write(&mut self, at: u64, bytes: &[u8]);
    fn sync(&mut self);
    /// Whether every write is synced by itself.
    fn syncs_each(&self) -> bool {
        false
    }
}

/// Whether the file has all its blocks before the test begins, or grows.
#[derive(Clone, Copy, PartialEq)]
enum Length {
    Fixed,
    Grows,
}

fn cuts() -> usize {
    env::var("DWELL_POWER_CUTS").map_or(6, |text| text.parse().expect("DWELL_POWER_CUTS: a number"))
}

/// As [`tried`], of a way that keeps its promise.
fn survives<S: Surface>(length: Length, open: impl FnOnce(&Path) -> Result<S, String>) {
    if let Some(Err(what)) = tried(length, open) {
        panic!("{what}");
    }
}

/// Writes and syncs at random, cuts the power at many points and compares. `None` where that cannot
/// be done.
fn tried<S: Surface>(
    length: Length,
    open: impl FnOnce(&Path) -> Result<S, String>,
) -> Option<Result<(), String>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing() {
        println!("SKIP: {why}");
        return None;
    }
    let recorded = Recorded::mount(Path::new(DISK));
    let directory = Path::new(DISK).join("files");
    fs::create_dir(&directory).unwrap();
    let data = Plain::create(directory.join("data")).unwrap();
    if length == Length::Fixed {
        data.write_all_at(&vec![0; BLOCKS as usize * BLOCK], 0).unwrap();
    }
    drop(data);
    rustix::fs::sync();
    let marker = Marker::new().unwrap();
    marker.mark("begin").unwrap();

    let mut history = History::default();
    match open(&directory) {
        Ok(surface) => write_at_random(surface, length, &mut history, &marker),
        Err(why) => {
            println!("SKIP: {why}");
            return None;
        }
    }
    let (mut image, entries) = recorded.end();
    Some(cut(&mut image, &entries, &history))
}

fn write_at_random(
    mut surface: impl Surface,
    length: Length,
    history: &mut History,
    marker: &Marker,
) {
    let steps = (cuts() as u64).clamp(40, 400);
    let mut random = Random(0);
    for step in 0..steps {
        let room = if length == Length::Grows { 2 + step * BLOCKS / steps } else { BLOCKS };
        for _ in 0..=random.below(3) {
            let number = random.below(room) as usize;
            let version = history.write(number);
            surface.write((number * BLOCK) as u64, &block(number, version));
            if surface.syncs_each() {
                marker.mark(&format!("synced:{}", history.newest())).unwrap();
            }
        }
        if random.below(4) > 0 {
            surface.sync();
            marker.mark(&format!("synced:{}", history.newest())).unwrap();
        }
    }
}

/// Replays the record, and looks at points that are spread over it.
fn cut(image: &mut [u8], entries: &[Entry], history: &History) -> Result<(), String> {
    let begin = |entry: &Entry| matches!(entry, Entry::Mark(text) if text == "begin");
    let begin = entries.iter().position(begin).expect("the record has its first mark");
    let mut random = Random(1);
    let mut points: Vec<usize> = (0..cuts().saturating_sub(1))
        .map(|_| begin + random.below((entries.len() - begin) as u64) as usize)
        .collect();
    points.push(entries.len() - 1);
    points.sort_unstable();
    points.dedup();

    let (mut applied, mut acknowledged, mut most) = (0, 0, 0);
    for point in points {
        for entry in &entries[applied..=point] {
            entry.apply(image);
            if let Entry::Mark(text) = entry
                && let Some(version) = text.strip_prefix("synced:")
            {
                acknowledged = version.parse().unwrap();
            }
        }
        applied = point + 1;
        let found = looked_at(image, |at| fs::read(at.join("files/data")).unwrap());
        history.check(&found, acknowledged).map_err(|what| {
            let (last, count) = (&entries[point], entries.len());
            format!("power cut after entry {point} of {count} ({last:?}): {what}")
        })?;
        most = acknowledged;
    }
    assert!(most > 0, "no sync was recorded");
    Ok(())
}

/// Says that it has synced, and has not.
struct Forgetful(Plain);

impl Surface for Forgetful {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }

    fn sync(&mut self) {}
}

#[test]
fn a_sync_that_does_nothing_is_found_out() {
    let opened = |dir: &Path| Plain::options().write(true).open(dir.join("data"));
    let found = tried(Length::Fixed, |dir| opened(dir).map(Forgetful).map_err(|e| e.to_string()));
    if let Some(found) = found {
        assert!(found.unwrap_err().contains("was synced"));
    }
}

struct Library {
    file: File,
    syncs_each: bool,
}

impl Library {
    fn open(path: &Path, policy: Arc<dyn WaitPolicy>, syncs_each: bool) -> Result<Library, String> {
        let file = dwell::Options::new().write(true).policy(policy).sync(syncs_each).open(path);
        Ok(Library { file: file.map_err(|error| error.to_string())?, syncs_each })
    }
}

impl Surface for Library {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    fn sync(&mut self) {
        self.file.sync_data().unwrap();
    }

    fn syncs_each(&self) -> bool {
        self.syncs_each
    }
}

#[test]
fn data_synced_by_a_file_survives_a_power_cut() {
    for policy in [Arc::new(policy::Spin) as Arc<dyn WaitPolicy>, Arc::new(policy::Block)] {
        survives(Length::Grows, |dir| Library::open(&dir.join("data"), policy, false));
    }
}

#[test]
fn each_write_to_a_file_opened_for_synced_writes_survives_a_power_cut() {
    survives(Length::Grows, |dir| Library::open(&dir.join("data"), Arc::new(policy::Spin), true));
}

/// Direct writes, several in flight, then a sync.
struct Direct(File, Vec<(u64, Vec<u8>)>);

impl Surface for Direct {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.1.push((at, bytes.to_vec()));
    }

    fn sync(&mut self) {
        let mut pipeline = self.0.pipeline::<Aligned>(4).unwrap();
        for (at, bytes) in self.1.drain(..) {
            // Two writes to one block in flight would land in any order.
            let mut buffer = Aligned::new(BLOCK);
            buffer.copy_from_slice(&bytes);
            pipeline.write_at(buffer, at).map_err(|(error, _)| error).unwrap();
            assert_eq!(pipeline.next().unwrap().result.unwrap(), BLOCK);
        }
        drop(pipeline);
        self.0.sync().unwrap();
    }
}

#[test]
fn data_written_directly_by_a_pipeline_and_synced_survives_a_power_cut() {
    survives(Length::Fixed, |dir| {
        let file = dwell::Options::new().write(true).direct(true).policy(Arc::new(policy::Spin));
        file.open(dir.join("data")).map(|file| Direct(file, Vec::new())).map_err(|e| e.to_string())
    });
}

/// A mount that serves the directory; dropped after what uses it.
struct Mounted {
    _server: Server,
    mount: PathBuf,
}

impl Mounted {
    fn serve(directory: &Path) -> Result<Mounted, String> {
        let (backing, mount) = (directory.to_owned(), PathBuf::from("/tmp/served"));
        fs::create_dir_all(&mount).unwrap();
        let serving = Serving {
            backing,
            mount: mount.clone(),
            private: false,
            threads: 4,
            passthrough: true,
        };
        take_over(&serving).map_err(|error| error.to_string())?;
        let daemon = Arc::new(Daemon::start(DaemonOptions::default()).unwrap());
        let server = Server::start(&serving, daemon, Channels::default);
        Ok(Mounted { _server: server.map_err(|error| error.to_string())?, mount })
    }
}

/// Plain calls on a served mount. Every other sync is an fdatasync.
struct ByKernel(Plain, #[allow(dead_code)] Mounted, u64);

impl Surface for ByKernel {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }

    fn sync(&mut self) {
        self.2 += 1;
        if self.2.is_multiple_of(2) { self.0.sync_all() } else { self.0.sync_data() }.unwrap();
    }
}

#[test]
fn data_synced_through_a_served_mount_survives_a_power_cut() {
    survives(Length::Grows, |dir| {
        let mounted = Mounted::serve(dir)?;
        let file = Plain::options().write(true).open(mounted.mount.join("data")).unwrap();
        Ok(ByKernel(file, mounted, 0))
    });
}

/// Writes through a channel to a served file.
struct ByChannel(Library, #[allow(dead_code)] Mounted);

impl Surface for ByChannel {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn sync(&mut self) {
        self.0.sync();
    }
}

#[test]
fn data_synced_by_a_channel_survives_a_power_cut() {
    for length in [Length::Fixed, Length::Grows] {
        survives(length, |dir| {
            let mounted = Mounted::serve(dir)?;
            dwell_channel::client::register();
            let address = format!("chan:{}", mounted.mount.join("data").display());
            let library = Library::open(Path::new(&address), Arc::new(policy::Spin), false)?;
            Ok(ByChannel(library, mounted))
        });
    }
}

/// What `dwell run` says in the end.
const TOLD: &str = "/tmp/dwell-run-told";

/// A program that knows nothing of Dwell, under `dwell run`: orders go to it by a pipe, and it says
/// when each is done.
struct Preloaded {
    child: Child,
    syncs: u64,
}

impl Preloaded {
    fn start(data: &Path, policy: &str) -> Result<Preloaded, String> {
        let (dwell, writer) = (Path::new("/bin/dwell"), Path::new("/bin/power-cut-writer"));
        if !dwell.exists() || !writer.exists() {
            return Err("the guest has no dwell, or no program to run under it".to_owned());
        }
        // Requests are decided from the first one on.
        let settings = "leave_alone_ms = 0\n[[device]]\nmatch = \"*\"\nclass = \"fast\"\n";
        fs::write("/tmp/dwell.toml", settings).unwrap();
        let mut command = Command::new(dwell);
        command.args(["run", "-v", "--policy", policy, "--"]).arg(writer).arg(data);
        command.env("DWELL_SYSTEM_CONFIG", "/tmp/dwell.toml").stderr(Plain::create(TOLD).unwrap());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Ok(Preloaded { child, syncs: 0 })
    }

    fn order(&mut self, parts: &[&[u8]]) {
        let to = self.child.stdin.as_mut().unwrap();
        to.write_all(&parts.concat()).unwrap();
        let mut done = [0];
        self.child.stdout.as_mut().unwrap().read_exact(&mut done).unwrap();
    }
}

impl Surface for Preloaded {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.order(&[b"w", &at.to_le_bytes(), bytes]);
    }

    fn sync(&mut self) {
        self.syncs += 1;
        self.order(&[if self.syncs.is_multiple_of(2) { b"S" } else { b"s" }]);
    }
}

impl Drop for Preloaded {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait();
        if !std::thread::panicking() {
            let told = fs::read_to_string(TOLD).unwrap();
            assert!(status.unwrap().success(), "{told}");
            // Otherwise the kernel's own way alone was tested.
            assert!(told.contains(" decided") && !told.contains(" 0 decided"), "{told}");
        }
    }
}

#[test]
fn data_synced_by_a_program_under_dwell_run_survives_a_power_cut() {
    for policy in ["spin", "hybrid", "block"] {
        survives(Length::Fixed, |dir| Preloaded::start(&dir.join("data"), policy));
    }
}

/// Writes to memory that a pager keeps, with room for a third of the file.
struct Paged(Region);

impl Surface for Paged {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        // SAFETY: within the region, which this thread alone writes.
        unsafe {
            let to = self.0.as_ptr().add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn sync(&mut self) {
        self.0.sync().unwrap();
    }
}

#[test]
fn data_synced_by_a_paged_region_survives_a_power_cut() {
    survives(Length::Fixed, |dir| {
        let file =
            dwell::Options::new().write(true).open(dir.join("data")).map_err(|e| e.to_string())?;
        let options = Paging::new(BLOCKS as usize / 3 * PAGE_BYTES).access(Access::Shared);
        Region::open(file, &options).map(Paged).map_err(|error| error.to_string())
    });
}
