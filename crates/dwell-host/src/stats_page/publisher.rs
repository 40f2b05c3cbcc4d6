// SPDX-License-Identifier: MIT OR Apache-2.0
//! Brings together what a process knows of its files, and writes it to its stats page.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dwell_policy::{Load, Ns};

use super::{Device, LearnerState, Passed, ProcessIo, Snapshot, StatsPage};
use dwell::clock;
use dwell::error::Result;
use dwell::file::File;
use dwell::learner::Learner;
use dwell::monitor::SystemMonitor;
use dwell::source::Source;

/// Whatever can tell what it did as one row of a stats page.
pub trait Told: Send + Sync {
    /// The row, without a name.
    fn tell(&self) -> Device;
}

impl<S: Source> Told for File<S>
where
    S::Queue: Send,
{
    fn tell(&self) -> Device {
        let class = self.parameters().profile.map(|profile| profile.class.as_str().to_owned());
        Device {
            name: String::new(),
            class: class.unwrap_or_default(),
            policy: self.policy().name().to_owned(),
            learner: self.learner().map_or(LearnerState::default(), Learner::state),
            regressed_percent: self.regressed_percent(),
            stats: self.stats(),
        }
    }
}

/// Counts what a process left to the kernel.
pub type PassedBy = Box<dyn Fn() -> Passed + Send + Sync>;

/// Publishes for a process: whoever opens files adds them, and the monitor's window, or whoever
/// likes, asks for the next publication.
pub struct Publisher {
    stats_page: StatsPage,
    parts: Mutex<Vec<(String, Arc<dyn Told>)>>,
    /// What files that are gone did.
    gone: Mutex<Snapshot>,
    passed: PassedBy,
    load: Mutex<Option<Load>>,
    /// Until when windows publish nothing. Held while one does.
    rests_until: Mutex<Ns>,
    /// What the kernel counts for this process: opened once, because each opening takes a number
    /// that the program may expect for itself.
    io: Option<std::fs::File>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Publisher {
    /// A publisher for a stats page of this process.
    pub fn new(stats_page: StatsPage) -> Publisher {
        Publisher {
            stats_page,
            parts: Mutex::default(),
            gone: Mutex::default(),
            passed: Box::new(Passed::default),
            load: Mutex::default(),
            rests_until: Mutex::default(),
            io: std::fs::File::open("/proc/self/io").ok(),
        }
    }

    /// Asks `passed` at each publication what was not decided.
    #[must_use]
    pub fn passed_by(mut self, passed: PassedBy) -> Publisher {
        self.passed = passed;
        self
    }

    /// The stats page.
    pub fn stats_page(&self) -> &StatsPage {
        &self.stats_page
    }

    /// Has a file told under a device's name; files of one name and class share a row. When nobody
    /// else holds the file any more, what it did remains.
    pub fn add(&self, device: &str, file: Arc<dyn Told>) {
        lock(&self.parts).push((device.to_owned(), file));
    }

    /// What there is to tell now.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = lock(&self.gone).clone();
        lock(&self.parts).retain(|(name, part)| {
            let last = Arc::strong_count(part) == 1;
            let device = Device { name: name.clone(), ..part.tell() };
            snapshot.add_device(&device);
            if last {
                lock(&self.gone).add_device(&device);
            }
            !last
        });
        // A few short lines.
        let mut io = [0; 512];
        let read = self.io.as_ref().and_then(|file| file.read_at(&mut io, 0).ok()).unwrap_or(0);
        Snapshot {
            header: self.stats_page.header().clone(),
            control: self.stats_page.control(),
            published_ns: clock::now(),
            processes: 1,
            passed: (self.passed)(),
            io: ProcessIo::parse(&String::from_utf8_lossy(&io[..read])),
            load: lock(&self.load).map(Into::into),
            devices: snapshot.devices,
        }
    }

    /// Writes what there is to tell.
    ///
    /// # Errors
    /// Those of [`StatsPage::publish`].
    pub fn publish(&self) -> Result<()> {
        self.stats_page.publish(&self.snapshot())
    }

    /// Publishes, and has windows publish nothing for a while: a process that is about to execute
    /// another program must not be interrupted by that in the middle of a publication.
    ///
    /// # Errors
    /// Those of [`StatsPage::publish`].
    pub fn publish_and_rest(&self, rest_ns: Ns) -> Result<()> {
        let mut rests_until = lock(&self.rests_until);
        *rests_until = clock::now() + rest_ns;
        self.publish()
    }

    /// Publishes at the end of each window of a monitor, from its thread, as long as both live.
    /// While nobody makes requests, windows are a second long.
    pub fn each_window(self: &Arc<Self>, monitor: &SystemMonitor) {
        // The monitor's thread keeps no publisher alive, whose files keep the monitor alive.
        let publisher = Arc::downgrade(self);
        monitor.each_window(Box::new(move |load| {
            let Some(publisher) = publisher.upgrade() else { return false };
            *lock(&publisher.load) = Some(load);
            let rests_until = lock(&publisher.rests_until);
            clock::now() < *rests_until || publisher.publish().is_ok()
        }));
    }

    /// Ends the stats page, leaves the figures to the run ([`StatsPage::settle`]) and returns them.
    /// A window that publishes at this moment changes neither.
    pub fn settle(&self) -> Snapshot {
        let last = self.snapshot();
        self.stats_page.settle(&last);
        last
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{Header, gather, read};
    use super::*;
    use dwell::monitor::Config;

    #[test]
    fn files_are_told_by_device_while_they_are_open_and_afterwards() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        std::fs::write(&path, vec![7u8; 8192]).unwrap();
        let dir = parent.path().join("dwell");
        let header = Header { run: 3, ..Header::default() };
        let passed = Box::new(|| Passed { calls: 2, bytes: 9 });
        let publisher = Publisher::new(StatsPage::create(&dir, &header).unwrap()).passed_by(passed);
        let open = || Arc::new(dwell::Options::new().open(&path).unwrap());
        let (one, other) = (open(), open());
        publisher.add("vda", one.clone());
        publisher.add("vda", other.clone());
        one.read_exact_at(&mut [0u8; 4096], 0).unwrap();
        other.read_exact_at(&mut [0u8; 4096], 0).unwrap();
        drop(other);
        for _ in 0..2 {
            publisher.publish().unwrap();
            let told = read(publisher.stats_page().path()).unwrap();
            assert_eq!(told.devices.len(), 1);
            let device = &told.devices[0];
            assert_eq!((device.name.as_str(), device.policy.as_str()), ("vda", "adaptive"));
            assert_eq!((device.stats.requests(), device.stats.bytes_read), (2, 8192));
            assert_eq!(device.stats.latency.cached.count(), 2);
            assert!(device.learner.learns && told.io.rchar > 0);
            assert_eq!(told.passed, Passed { calls: 2, bytes: 9 });
        }
        drop(one);
        publisher.settle();
        // This process is the run's own root, so the run goes on.
        assert_eq!(gather(&dir, 3).unwrap().stats().bytes_read, 8192);
    }

    #[test]
    fn figures_are_kept_though_a_window_is_being_published() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("dwell");
        let header = Header { run: 5, ..Header::default() };
        let passed = Box::new(|| Passed { calls: 4, bytes: 9 });
        let publisher = Publisher::new(StatsPage::create(&dir, &header).unwrap()).passed_by(passed);
        let publisher = Arc::new(publisher);
        // As the monitor's thread does for as long as it publishes.
        let window = publisher.clone();
        assert_eq!(publisher.settle().passed.calls, 4);
        drop(publisher);
        window.publish().unwrap();
        drop(window);
        let gathered = gather(&dir, 5).unwrap();
        assert_eq!((gathered.processes, gathered.passed.calls), (1, 4));
    }

    #[test]
    fn each_window_is_published_while_the_publisher_lives() {
        let parent = tempfile::tempdir().unwrap();
        let stats_page =
            StatsPage::create(&parent.path().join("dwell"), &Header::default()).unwrap();
        let path = stats_page.path().to_owned();
        let config = Config { window: Duration::from_millis(50), ..Config::default() };
        let monitor = SystemMonitor::start(config).unwrap();
        let publisher = Arc::new(Publisher::new(stats_page));
        publisher.each_window(&monitor);
        let began = Instant::now();
        while read(&path).unwrap().load.is_none() {
            assert!(began.elapsed() < Duration::from_secs(20), "nothing was published");
            std::thread::sleep(Duration::from_millis(5));
        }
        // A window may be publishing at this moment.
        let began = Instant::now();
        drop(publisher);
        while path.exists() {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the stats page outlives its publisher"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
