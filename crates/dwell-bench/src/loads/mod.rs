// SPDX-License-Identifier: MIT OR Apache-2.0
//! What runs beside a measurement: CPU stressors, I/O programs, bystanders.
//!
//! They are processes, as in the papers, and not threads: the scheduler must weigh them against
//! the measurement as strangers. None survives the program that started it.

mod bystander;
mod calls;
mod counts;
mod job;
mod process;
mod sharer;

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use crate::fixture::{Fixture, TempFile};
use crate::result::Load;
use crate::subject::Subject;
use counts::Counts;
use job::{Job, Reader};
use process::Processes;
use sharer::Sharer;

pub use calls::{Calls, calls_per_second};
pub(crate) use job::pager_word;
pub use job::serve;

/// I/O programs of [`Load::Io`].
const IO_PROGRAMS: u64 = 4;
/// What each of them reads at once; a device with larger blocks is read by those.
const IO_BYTES: u64 = 4096;
/// Processes of [`Load::Arithmetic`].
const ARITHMETIC: usize = 9;
/// Processes of [`Load::Readers`], what each has to read, how much at once, and how long a disk
/// would take for that.
const READERS: u64 = 4;
const READER_SPAN_BYTES: u64 = 4 << 20;
const READER_PIECE_BYTES: u64 = 64 << 10;
const READER_PAUSE_US: u64 = 8_000;

/// What it takes to start any load.
#[derive(Clone, Debug)]
pub struct Means {
    /// Arguments that lead this very program to [`serve`], to which it hands on what follows them.
    pub hidden: Vec<String>,
    /// Number CPU stressors of [`Load::Cpu`].
    pub stressors: usize,
    /// Bystanders of [`Load::Bystander`].
    pub bystanders: usize,
    /// Directory on the machine's own disk, for the file that [`Load::Readers`] read.
    pub directory: PathBuf,
}

/// A running load. Dropping the guard ends it; so does the end of the program or of the *thread*
/// that started it, however it comes about, so start it from a thread that lives as long as the
/// measurement.
#[derive(Debug)]
pub struct Loads {
    processes: Processes,
    counts: Option<Counts>,
    /// After the processes that read it.
    _file: Option<TempFile>,
}

/// How far a load has got since it was started. Times are those of all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Turns that bystanders made.
    pub iterations: u64,
    /// The bystanders' CPU time in user mode, in steps of 10 ms.
    pub user_ns: u64,
    /// The bystanders' CPU time in the kernel, in steps of 10 ms.
    pub system_ns: u64,
}

/// Why a load cannot run beside measurements on a subject; `None` where it can.
pub fn unfit(load: Load, subject: &Subject) -> Option<String> {
    (load == Load::Io && dwell::open::is_scheme(&subject.address)).then(|| {
        let name = &subject.name;
        format!("{name} beside I/O programs: no other program can open an address of a scheme")
    })
}

impl Loads {
    /// Starts what a load names beside measurements on `subject`: nothing for [`Load::Idle`].
    ///
    /// # Errors
    /// A subject that is [`unfit`] or too short; a process or file that cannot be made.
    pub fn start(load: Load, subject: &Subject, means: &Means) -> Result<Self> {
        match load {
            Load::Idle => Ok(Self::of(Processes::none())),
            Load::Cpu => Self::stressors(means.stressors, &means.hidden),
            Load::Io => Self::io(subject, &means.hidden),
            Load::Arithmetic => {
                let jobs = (0..ARITHMETIC).map(|_| Job::Arithmetic);
                Processes::start("arithmetic processes", jobs, &means.hidden).map(Self::of)
            }
            Load::Readers => Self::readers(means),
            Load::Bystander => Self::bystanders(means.bystanders, &means.hidden),
        }
    }

    /// Starts CPU stressors.
    pub fn stressors<S: AsRef<OsStr>>(count: usize, hidden: &[S]) -> Result<Self> {
        let jobs = (0..count).map(|_| Job::Crunch);
        Processes::start("CPU stressors", jobs, hidden).map(Self::of)
    }

    /// Starts bystanders, whose progress is counted.
    pub fn bystanders<S: AsRef<OsStr>>(count: usize, hidden: &[S]) -> Result<Self> {
        let counts = Counts::new(count)?;
        let path = counts.path();
        let jobs = (0..count).map(|slot| Job::Bystand { counts: path.clone(), slot });
        let processes = Processes::start("bystanders", jobs, hidden)?;
        Ok(Loads { processes, counts: Some(counts), _file: None })
    }

    /// Starts processes that read at random under a policy of Dwell, each on its host page, and
    /// count their requests.
    ///
    /// # Errors
    /// Processes or memory that were refused.
    pub fn sharers(
        count: usize,
        subject: &Subject,
        policy: &str,
        page: impl Fn(usize) -> PathBuf,
        hidden: &[String],
    ) -> Result<Self> {
        let counts = Counts::new(count)?;
        let jobs = (0..count).map(|slot| {
            Job::Share(Box::new(Sharer {
                page: page(slot),
                policy: policy.to_owned(),
                path: subject.address.clone(),
                bytes: subject.bytes,
                direct: subject.direct,
                profile: subject.profile.clone(),
                counts: counts.path(),
                slot,
            }))
        });
        let processes = Processes::start("processes on a host page", jobs, hidden)?;
        Ok(Loads { processes, counts: Some(counts), _file: None })
    }

    fn io(subject: &Subject, hidden: &[String]) -> Result<Self> {
        if let Some(why) = unfit(Load::Io, subject) {
            bail!("{why}");
        }
        let piece_bytes = IO_BYTES.max(subject.block_bytes);
        let span_bytes = subject.bytes / IO_PROGRAMS / piece_bytes * piece_bytes;
        ensure!(
            span_bytes > 0,
            "{}: {} bytes are too few for {IO_PROGRAMS} I/O programs",
            subject.name,
            subject.bytes
        );
        let jobs = (0..IO_PROGRAMS).map(|i| {
            Job::Read(Reader {
                path: subject.address.clone(),
                direct: subject.direct,
                from_bytes: i * span_bytes,
                span_bytes,
                piece_bytes,
                random_seed: Some(i + 1),
                pause_us: 0,
            })
        });
        Processes::start("I/O programs", jobs, hidden).map(Self::of)
    }

    fn readers(means: &Means) -> Result<Self> {
        let file = TempFile::new(&means.directory, READERS * READER_SPAN_BYTES)?;
        file.direct()?;
        let jobs = (0..READERS).map(|i| {
            Job::Read(Reader {
                path: file.path().into(),
                direct: true,
                from_bytes: i * READER_SPAN_BYTES,
                span_bytes: READER_SPAN_BYTES,
                piece_bytes: READER_PIECE_BYTES,
                random_seed: None,
                pause_us: READER_PAUSE_US,
            })
        });
        let processes = Processes::start("disk readers", jobs, &means.hidden)?;
        Ok(Loads { processes, counts: None, _file: Some(file) })
    }

    fn of(processes: Processes) -> Self {
        Loads { processes, counts: None, _file: None }
    }

    /// How many processes it has.
    pub fn count(&self) -> usize {
        self.processes.count()
    }

    /// Their process ids.
    pub fn ids(&self) -> Vec<u32> {
        self.processes.ids().collect()
    }

    /// How far it has got.
    pub fn seen(&self) -> Seen {
        let mut seen = Seen { cpu_ns: self.processes.cpu_ns(), ..Seen::default() };
        if let Some(counts) = &self.counts {
            seen.iterations = counts.sum();
            (seen.user_ns, seen.system_ns) = self.processes.split_ns();
        }
        seen
    }

    /// Fails if a process has ended: a measurement beside it is then worth nothing. Ask after
    /// each round.
    pub fn check(&mut self) -> Result<()> {
        self.processes.check()
    }
}

impl Seen {
    /// What came since.
    pub fn since(self, earlier: &Self) -> Self {
        Seen {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            iterations: self.iterations.saturating_sub(earlier.iterations),
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::time::Duration;

    use dwell::parameters::DeviceParameters;

    use super::*;
    use crate::fixture::LoopOnTmpfs;
    use crate::fixture::tests::{child_test, eventually};

    /// Arguments that lead this test program to [`helper`].
    const HIDDEN: [&str; 4] = ["--ignored", "--exact", "loads::tests::helper", "help-now"];

    #[test]
    #[ignore = "run by other tests as a child"]
    fn helper() {
        let arguments: Vec<String> = std::env::args().collect();
        if arguments.iter().any(|argument| argument == "help-now") {
            serve(&arguments).unwrap();
        }
    }

    const ALL: [Load; 5] = [Load::Cpu, Load::Io, Load::Arithmetic, Load::Readers, Load::Bystander];

    fn means() -> Means {
        Means {
            hidden: HIDDEN.map(String::from).into(),
            stressors: 2,
            bystanders: 2,
            directory: std::env::temp_dir(),
        }
    }

    fn subject(path: &Path, bytes: u64) -> Subject {
        Subject {
            name: "test".into(),
            address: path.into(),
            direct: false,
            write: false,
            parameters: DeviceParameters::default(),
            profile: None,
            description: "test".into(),
            emulated: None,
            bytes,
            block_bytes: 512,
        }
    }

    /// The load, or `None` after saying why the test is skipped.
    fn or_skip(load: Load, subject: &Subject) -> Option<Loads> {
        let started = Loads::start(load, subject, &means());
        match started {
            Err(why) if load == Load::Readers => {
                println!("SKIP: {why:#}");
                None
            }
            started => Some(started.unwrap()),
        }
    }

    #[test]
    #[ignore = "run by other tests as a child"]
    fn parent() {
        if std::env::args().any(|argument| argument == "parent-now") {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            let subject = subject(file.path(), 1 << 20);
            let loads: Vec<Loads> =
                ALL.into_iter().filter_map(|load| or_skip(load, &subject)).collect();
            let ids: Vec<u32> = loads.iter().flat_map(Loads::ids).collect();
            println!("\nfile {}\nids {ids:?}", file.path().display());
            std::thread::sleep(Duration::from_secs(60));
        }
    }

    fn is_gone(id: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{id}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }

    #[test]
    fn every_load_runs_is_summed_up_and_is_reaped_on_drop() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let subject = subject(file.path(), 1 << 20);
        assert_eq!(Loads::start(Load::Idle, &subject, &means()).unwrap().count(), 0);
        for load in ALL {
            let Some(mut loads) = or_skip(load, &subject) else { continue };
            let ids = loads.ids();
            let expected = match load {
                Load::Cpu | Load::Bystander => 2,
                Load::Io | Load::Readers => 4,
                _ => 9,
            };
            assert_eq!((ids.len(), loads.count()), (expected, expected), "{load}");
            let before = loads.seen();
            let enough = if load == Load::Readers { 1_000_000 } else { 20_000_000 };
            eventually("it gets no CPU time", || loads.seen().since(&before).cpu_ns > enough);
            loads.check().unwrap();
            drop(loads);
            for id in ids {
                assert!(!Path::new(&format!("/proc/{id}")).exists(), "{id} was not reaped");
            }
        }
    }

    #[test]
    fn bystanders_count_their_turns_and_time() {
        let mut loads = Loads::bystanders(2, &HIDDEN).unwrap();
        let before = loads.seen();
        eventually("they make no turns", || loads.seen().iterations > before.iterations + 1000);
        eventually("no user time is seen", || loads.seen().user_ns > 0);
        assert_eq!(loads.seen().user_ns % 10_000_000, 0);
        loads.check().unwrap();
    }

    #[test]
    fn readers_share_a_page() {
        let place = tempfile::tempdir().unwrap();
        let (page, path) = (place.path().join("page"), place.path().join("file"));
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let (subject, hidden) = (subject(&path, 1 << 20), HIDDEN.map(String::from));
        let mut readers =
            Loads::sharers(2, &subject, "adaptive", |_| page.clone(), &hidden).unwrap();
        eventually("they read nothing", || readers.seen().iterations > 100);
        let observer = dwell::monitor::HostPage::open(&page, Default::default());
        eventually("they are not on the page", || observer.survey().len() == 2);
        readers.check().unwrap();
    }

    #[test]
    fn io_programs_read_the_very_device() {
        let device = match LoopOnTmpfs::new(8 << 20) {
            Ok(device) => device,
            Err(why) => return println!("SKIP: {why}"),
        };
        let name = device.path().file_name().unwrap().to_str().unwrap().to_owned();
        let reads = || {
            let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
            stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let subject = Subject { direct: true, ..subject(device.path(), 8 << 20) };
        let mut loads = Loads::start(Load::Io, &subject, &means()).unwrap();
        let before = reads();
        eventually("the device is not read", || reads() > before + 100);
        loads.check().unwrap();
    }

    #[test]
    fn an_early_end_is_noticed_and_named() {
        let mut loads = Loads::stressors(1, &["--list"]).unwrap();
        let [id] = loads.ids()[..] else { panic!("one was started") };
        eventually("it does not end", || is_gone(id));
        let error = loads.check().unwrap_err().to_string();
        assert!(error.contains("CPU stressors ended early"), "{error}");
        // A program that cannot read what it is to read ends, too.
        let missing = subject(Path::new("/nonexistent"), 1 << 20);
        let mut loads = Loads::start(Load::Io, &missing, &means()).unwrap();
        let ids = loads.ids();
        eventually("they do not end", || ids.iter().all(|&id| is_gone(id)));
        assert!(loads.check().unwrap_err().to_string().contains("I/O programs"));
    }

    #[test]
    fn a_load_that_cannot_be_made_is_refused_by_name() {
        let emulated = subject(Path::new("emu:z-nand"), 1 << 20);
        let error = Loads::start(Load::Io, &emulated, &means()).unwrap_err().to_string();
        assert!(error.starts_with("test beside") && error.contains("scheme"), "{error}");
        assert!(ALL.into_iter().filter(|&load| unfit(load, &emulated).is_some()).eq([Load::Io]));
        let short = subject(Path::new("/dev/null"), 4096);
        let error = Loads::start(Load::Io, &short, &means()).unwrap_err().to_string();
        assert!(error.contains("test") && error.contains("4096"), "{error}");
        let elsewhere = Means { directory: "/nonexistent".into(), ..means() };
        let error = Loads::start(Load::Readers, &short, &elsewhere).unwrap_err().to_string();
        assert!(error.contains("/nonexistent"), "{error}");
    }

    #[test]
    fn they_die_with_a_killed_parent() {
        let mut parent = child_test("loads::tests::parent", "parent-now");
        let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        let mut file = None;
        let mut ids: Vec<u32> = Vec::new();
        for line in lines.map(Result::unwrap) {
            if let Some(path) = line.strip_prefix("file ") {
                file = Some(path.to_owned());
            } else if let Some(list) = line.strip_prefix("ids ") {
                let list = list.trim_matches(['[', ']']).split(", ");
                ids = list.map(|id| id.parse().unwrap()).collect();
                break;
            }
        }
        assert!(ids.len() >= 17, "{ids:?}");
        parent.kill().unwrap();
        parent.wait().unwrap();
        for id in ids {
            eventually("a process outlived its parent", || is_gone(id));
        }
        fs::remove_file(file.unwrap()).unwrap();
    }
}
