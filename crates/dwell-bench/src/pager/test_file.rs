// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes memory: files made for a run, on devices made for it, and what is there already.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use dwell_host::profile::DeviceProfile;
use dwell_workloads::csr;

use super::method::Method;
use super::work::{Order, PAGE_BYTES, Program, Visits, Work};
use super::{Entry, limit_bytes};
use crate::fixture::{Fixture as _, TempFile};
use crate::result::Device;
use crate::stand::Kind;
use crate::subject::{Probing, Subject};
use crate::workload::spec::FileSystemKind;
use crate::workload::{Place, PlaceKind};

/// Room for a file system's own data, beside a file as long as this again.
const ROOM_BYTES: u64 = 8 << 20;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Data,
    Graph,
    /// Nobody knows: whoever asks for a walk says that it is a graph.
    Any,
}

/// A file or address, and what is known of its device. What was made for it is gone with it.
#[derive(Debug)]
pub struct TestFile {
    /// For the report.
    pub device: Device,
    /// The file, or an address that only regions reach.
    pub address: PathBuf,
    /// What a probe learned.
    pub profile: Option<DeviceProfile>,
    /// Of an emulated device: what its wake-up costs.
    pub emulated: Option<String>,
    /// Length.
    pub bytes: u64,
    holds: Holds,
    /// After what lies on it.
    _made: (Option<TempFile>, Option<Place>),
}

/// The work asked for on a test file, whatever its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Twice as many visits as it has pages: all of each page, or one word where the order is
    /// random.
    Visits(Order),
    /// A walk over a graph.
    Graph(Program),
    /// Sorting all of it, which changes it.
    Sort,
}

impl Ask {
    /// The work on a test file of this length.
    pub fn work(self, bytes: u64) -> Work {
        match self {
            Ask::Graph(program) => Work::Graph(program),
            Ask::Sort => Work::Sort,
            Ask::Visits(order) => Work::Visits(Visits {
                order,
                visits: 2 * (bytes / PAGE_BYTES as u64),
                whole: order != Order::Random,
                turns: 0,
                timed: false,
            }),
        }
    }

    fn fits(self, holds: Holds) -> bool {
        match self {
            Ask::Visits(_) => holds != Holds::Graph,
            // Nobody's own file is overwritten.
            Ask::Sort => holds == Holds::Data,
            Ask::Graph(_) => holds != Holds::Data,
        }
    }
}

/// How long, by whom, and within how much memory.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Contenders.
    pub methods: Vec<Method>,
    /// A test file is so many times as long as what may be in memory of it.
    pub over: u64,
    /// Longest time that visits take, in nanoseconds.
    pub most_ns: u64,
}

impl TestFile {
    /// A file of random bytes on a place.
    pub fn with_data(place: Place, bytes: u64) -> Result<Self, String> {
        let file = TempFile::new(place.path(), bytes).map_err(|why| why.to_string())?;
        Ok(TestFile {
            device: place.describe(),
            address: file.path().to_owned(),
            profile: place.profile.clone(),
            emulated: None,
            bytes: file.size_bytes(),
            holds: Holds::Data,
            _made: (Some(file), Some(place)),
        })
    }

    /// An R-MAT graph of 2^`scale` vertices on a place.
    ///
    /// # Errors
    /// A place without room for it.
    pub fn with_graph(place: Place, scale: u32) -> Result<Self> {
        let address = place.path().join("graph.csr");
        csr::generate(scale, &address).map_err(|why| anyhow!(why))?;
        let bytes = std::fs::metadata(&address).context("the graph's file")?.len();
        Ok(TestFile {
            device: place.describe(),
            address,
            profile: place.profile.clone(),
            emulated: None,
            bytes,
            holds: Holds::Graph,
            _made: (None, Some(place)),
        })
    }

    /// The test file of a subject that is there already.
    pub fn of(subject: &Subject) -> Self {
        TestFile {
            device: subject.describe(),
            address: subject.address.clone(),
            profile: subject.profile.clone(),
            emulated: subject.emulated.clone(),
            bytes: subject.bytes,
            holds: Holds::Any,
            _made: (None, None),
        }
    }

    /// What a place must have room for.
    pub fn room_bytes(file_bytes: u64) -> u64 {
        2 * file_bytes + ROOM_BYTES
    }

    /// Bytes of a graph's file.
    pub fn graph_bytes(scale: u32) -> u64 {
        72 << scale
    }

    fn limit_bytes(&self, work: Work, terms: &Terms) -> u64 {
        limit_bytes(work, &self.address, self.bytes, self.bytes / terms.over.max(1))
    }

    /// Work on it.
    pub fn entry(&self, work: Work, terms: &Terms) -> Entry {
        Entry {
            device: self.device.name.clone(),
            address: self.address.clone(),
            profile: self.profile.clone(),
            work,
            methods: terms.methods.clone(),
            limit_bytes: self.limit_bytes(work, terms),
            most_ns: terms.most_ns,
            emulated: self.emulated.clone(),
        }
    }
}

/// What a run without figures asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Addresses of files or devices that are there already; without any, files are made.
    pub paths: Vec<PathBuf>,
    /// What to make files on.
    pub on: Vec<Kind>,
    /// Length of files of random bytes.
    pub bytes: u64,
    /// Of graphs: vertices, as a power of two.
    pub scale: u32,
    /// A directory on the machine's own disk.
    pub directory: PathBuf,
    /// The kinds of work to do on each test file.
    pub asks: Vec<Ask>,
    /// By whom, and within how much memory.
    pub terms: Terms,
}

/// All test files of a run, and what could not be made.
#[derive(Debug, Default)]
pub struct TestFiles {
    all: Vec<TestFile>,
    /// What could not be made, and why.
    pub left_out: Vec<String>,
}

impl Setup {
    /// Makes what is to be measured on, and probes it.
    ///
    /// # Errors
    /// A named device that cannot be opened; a made one that cannot be probed.
    pub fn make(&self, probing: &Probing) -> Result<TestFiles> {
        let mut test_files = TestFiles::default();
        for path in &self.paths {
            let name = path.display().to_string();
            test_files.all.push(TestFile::of(&Subject::new(name, path, false, None, probing)?));
        }
        if !self.paths.is_empty() {
            return Ok(test_files);
        }
        let place = |kind: Kind, bytes: u64| {
            let (made, room) = (PlaceKind::Made(kind), TestFile::room_bytes(bytes));
            Place::make(&made, FileSystemKind::Ext4, room, &self.directory, probing)
        };
        for &kind in &self.on {
            let mut put = |made: Result<TestFile, String>| match made {
                Ok(test_file) => test_files.all.push(test_file),
                Err(why) => test_files.left_out.push(format!("{}: {why}", kind.as_str())),
            };
            if self.asks.iter().any(|ask| ask.fits(Holds::Data)) {
                let place = place(kind, self.bytes)?.map_err(|why| why.to_string());
                put(place.and_then(|place| TestFile::with_data(place, self.bytes)));
            }
            if self.asks.iter().any(|ask| ask.fits(Holds::Graph)) {
                match place(kind, TestFile::graph_bytes(self.scale))? {
                    Ok(place) => put(Ok(TestFile::with_graph(place, self.scale)?)),
                    Err(why) => put(Err(why.to_string())),
                }
            }
        }
        Ok(test_files)
    }
}

impl TestFiles {
    /// Their devices, for the report.
    pub fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> = Vec::new();
        for test_file in &self.all {
            if devices.iter().all(|known| known.name != test_file.device.name) {
                devices.push(test_file.device.clone());
            }
        }
        devices
    }

    /// What there is to do.
    ///
    /// # Errors
    /// Nothing to do it on.
    pub fn entries(&self, setup: &Setup) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for test_file in &self.all {
            let asks = setup.asks.iter().filter(|ask| ask.fits(test_file.holds));
            entries
                .extend(asks.map(|ask| test_file.entry(ask.work(test_file.bytes), &setup.terms)));
        }
        ensure!(!entries.is_empty(), "nothing to measure on: {}", self.left_out.join("; "));
        Ok(entries)
    }
}
