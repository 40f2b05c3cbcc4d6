// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pager: memory as the interface. A process of its own touches a region, so that its death is
//! one more outcome.

mod step;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use dwell_pager::{Access, Advice, Budget, Faults, Granule, Options, PAGE_BYTES, Region};
use tempfile::TempDir;

use crate::campaign::{Outcome, Surface};
use crate::compare::Counts;
use crate::pattern;
use crate::record::{Records, Seen};
use crate::shrink::minimal;
use crate::surface::Programs;
use step::{FILE_BYTES, can_be};

pub use step::{Kind, Step, steps};

struct Opened {
    region: Region,
    lane: Option<dwell_pager::Registered>,
    budget: Option<Arc<Budget>>,
    /// The region that squeezes it.
    other: Option<Region>,
}

fn of<T>(result: dwell::Result<T>) -> Seen {
    match result {
        Ok(_) => Seen::ok(0),
        Err(error) => {
            eprintln!("{error}");
            Seen::error(libc::EIO)
        }
    }
}

/// Carries out steps in this process.
///
/// # Errors
/// The steps cannot be read, or no region can be opened at all.
pub fn carry_out(steps: &Path, records: &Path, file: &Path) -> Result<()> {
    let steps: Vec<Step> = serde_json::from_slice(&std::fs::read(steps)?)?;
    let records = Records::open(records, steps.len())?;
    let mut opened: Option<Opened> = None;
    // Nobody waits for children.
    // SAFETY: a signal's number and a disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    for (number, step) in steps.iter().enumerate() {
        records.begin(number);
        let seen = match step {
            Step::Open { kind, pages, thread, registered, direct, granule, within } => {
                // The lane belongs to the region and goes first.
                if let Some(Opened { region, lane, .. }) = opened.take() {
                    drop(lane);
                    drop(region);
                }
                let writes = *kind == Kind::Shared;
                // A region writes whole pages, but a file may end within one.
                let direct = *direct && !writes;
                let source = dwell::Options::new().write(writes).direct(direct).open(file);
                let source = match source {
                    Err(_) if direct => dwell::Options::new().open(file)?,
                    source => source?,
                };
                let access = match kind {
                    Kind::Shared => Access::Shared,
                    Kind::ReadOnly => Access::ReadOnly,
                    Kind::Private => {
                        Access::Private { spill: Some(file.parent().context("no parent")?.into()) }
                    }
                };
                let faults = if *thread { Faults::Thread } else { Faults::Inline };
                let budget = within.then(|| Budget::new(pages * PAGE_BYTES)).transpose()?;
                let mut options = match &budget {
                    Some(budget) => Options::within(budget),
                    None => Options::new(pages * PAGE_BYTES),
                };
                if *granule > 0 {
                    options = options.granule(Granule::Bytes(granule * PAGE_BYTES));
                }
                let region = Region::open(source, &options.access(access).faults(faults))?;
                let lane = if *registered { Some(region.register_thread()?) } else { None };
                opened = Some(Opened { region, lane, budget, other: None });
                Seen::ok(0)
            }
            Step::Squeeze => {
                let opened = opened.as_mut().context("no region")?;
                if let (None, Some(budget)) = (opened.other.take(), &opened.budget) {
                    let options = Options::within(budget).nice(-20);
                    let other = Region::open(dwell::Options::new().open(file)?, &options)?;
                    other.prefault(0..other.len().min(32 * PAGE_BYTES))?;
                    opened.other = Some(other);
                }
                Seen::ok(0)
            }
            Step::Fork => {
                // SAFETY: the child calls nothing but what is allowed after a fork of several
                // threads.
                unsafe {
                    if libc::fork() == 0 {
                        libc::usleep(3_000);
                        libc::_exit(0);
                    }
                }
                Seen::ok(0)
            }
            Step::Die => {
                // SAFETY: ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                Seen::ok(0)
            }
            step => touched(&opened.as_ref().context("no region")?.region, step),
        };
        records.tell(number, seen);
    }
    if let Some(Opened { region, lane, .. }) = opened {
        drop(lane);
        region.close()?;
    }
    Ok(())
}

fn touched(region: &Region, step: &Step) -> Seen {
    let memory = region.as_ptr();
    let write = |memory: *mut u8, at: usize, bytes: usize, seed: u64| {
        for (place, byte) in pattern::bytes(bytes, seed).into_iter().enumerate() {
            // SAFETY: within the region, which outlives the access; parts are disjoint.
            unsafe { memory.add(at + place).write_volatile(byte) };
        }
    };
    match step {
        Step::Read { at, bytes } => {
            // SAFETY: as above.
            let read = |place: usize| unsafe { memory.add(at + place).read_volatile() };
            let copy: Vec<u8> = (0..*bytes).map(read).collect();
            Seen { digest: pattern::digest(&copy), ..Seen::ok(0) }
        }
        Step::Write { at, bytes, seed } => {
            write(memory, *at, *bytes, *seed);
            Seen::ok(0)
        }
        Step::Together { parts } => {
            let start = memory as usize;
            std::thread::scope(|scope| {
                for (place, (at, bytes, seed)) in parts.iter().enumerate() {
                    scope.spawn(move || {
                        let _lane = (place % 2 == 0).then(|| region.register_thread());
                        write(start as *mut u8, *at, *bytes, *seed);
                    });
                }
            });
            Seen::ok(0)
        }
        Step::Sync => of(region.sync()),
        Step::SyncRange { at, bytes } => of(region.sync_range(*at..at + bytes)),
        Step::DontNeed { at, bytes } => of(region.advise(*at..at + bytes, Advice::DontNeed)),
        Step::WillNeed { at, bytes } => of(region.advise(*at..at + bytes, Advice::WillNeed)),
        Step::Advise { at, bytes, random } => {
            let advice = if *random { Advice::Random } else { Advice::Sequential };
            of(region.advise(*at..at + bytes, advice))
        }
        Step::Hint { at } => {
            region.hint(*at);
            Seen::ok(0)
        }
        Step::Prefault { at, bytes } => of(region.prefault(*at..at + bytes)),
        Step::Pin { at, bytes } => match region.pin(*at..at + bytes) {
            Err(error) => of(Err::<(), _>(error)),
            Ok(_pin) => {
                // SAFETY: a new descriptor of memory, and pinned bytes of the region.
                unsafe {
                    let file = libc::memfd_create(c"pinned".as_ptr(), 0);
                    let wrote = libc::write(file, memory.add(*at).cast(), *bytes);
                    let mut copy = vec![0u8; *bytes];
                    libc::pread(file, copy.as_mut_ptr().cast(), *bytes, 0);
                    libc::close(file);
                    Seen { ret: wrote as i64, digest: pattern::digest(&copy), ..Seen::default() }
                }
            }
        },
        Step::Open { .. } | Step::Squeeze | Step::Fork | Step::Die => Seen::ok(0),
    }
}

/// Regions over one file, one process per seed.
pub struct Pager {
    programs: Programs,
    scratch: TempDir,
}

impl Pager {
    /// Looks whether there can be regions here.
    ///
    /// # Errors
    /// There cannot.
    pub fn new(programs: &Programs) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = TempDir::with_prefix_in("dwell-exerciser-pager-", parent)?;
        let path = scratch.path().join("probe");
        std::fs::write(&path, vec![1; 1 << 20])?;
        for faults in [Faults::Inline, Faults::Thread] {
            let file = Arc::new(dwell::Options::new().write(true).open(&path)?);
            let options = Options::new(1 << 18).access(Access::Shared).faults(faults);
            if let Err(error) = Region::open(file, &options) {
                return Err(crate::surface::Missing(error.to_string()).into());
            }
        }
        Ok(Pager { programs: programs.clone(), scratch })
    }

    /// What came of each step, whether the process was killed, and what differed.
    fn run(&self, steps: &[Step]) -> Result<(Vec<Option<Seen>>, bool, Option<String>)> {
        let of = |name: &str| self.scratch.path().join(name);
        let [text, memory, file, said] = ["steps", "records", "file", "said"].map(of);
        let _ = std::fs::remove_file(&memory);
        std::fs::write(&text, serde_json::to_vec(steps)?)?;
        let content = pattern::bytes(FILE_BYTES, 1);
        std::fs::write(&file, &content)?;
        let records = Records::open(&memory, steps.len())?;
        let mut command = Command::new(&self.programs.exerciser);
        command.arg("--pager-steps").args([&text, &memory, &file]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&said)?);
        let status = command.status()?;
        let seen: Vec<_> = (0..steps.len()).map(|step| records.seen(step)).collect();
        let dies = steps.last() == Some(&Step::Die);
        let words = std::fs::read_to_string(&said).unwrap_or_default();
        let killed = status.signal() == Some(libc::SIGKILL);
        let fine = if dies { killed } else { status.success() };
        let trouble = (!fine).then(|| format!("{status}: {}", words.trim()));
        let found = std::fs::read(&file)?;
        let wrong = wrong(steps, &seen, &content, &found, dies);
        let both = |what: String| match &trouble {
            Some(trouble) => format!("{what}; {trouble}"),
            None => what,
        };
        Ok((seen, killed && dies, wrong.map(both).or(trouble)))
    }
}

/// What differs from a model of bytes, if something does.
fn wrong(
    steps: &[Step],
    seen: &[Option<Seen>],
    content: &[u8],
    found: &[u8],
    dies: bool,
) -> Option<String> {
    let mut file = content.to_vec();
    let mut memory = content.to_vec();
    let mut kind = Kind::ReadOnly;
    // What each page was like since it was last known to be in the file.
    let mut versions: Vec<Vec<Vec<u8>>> = vec![Vec::new(); FILE_BYTES.div_ceil(PAGE_BYTES)];
    let page_of = |bytes: &[u8], page: usize| {
        bytes[page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(FILE_BYTES)].to_vec()
    };
    for (number, step) in steps.iter().enumerate() {
        if *step == Step::Die {
            break;
        }
        let Some(seen) = seen[number] else {
            return Some(format!("step {number} was not carried out"));
        };
        let mut expected = Seen::ok(0);
        let mut wrote = |memory: &mut Vec<u8>, at: usize, bytes: usize, seed: u64| {
            memory[at..at + bytes].copy_from_slice(&pattern::bytes(bytes, seed));
            // Written byte by byte: a page may leave half written, so only its ends count.
            let pages = at / PAGE_BYTES..(at + bytes).div_ceil(PAGE_BYTES);
            for (page, versions) in versions.iter_mut().enumerate() {
                if pages.contains(&page) {
                    versions.push(page_of(memory, page));
                }
            }
        };
        match step {
            Step::Open { kind: next, .. } => {
                if kind == Kind::Shared {
                    file.clone_from(&memory);
                    versions.iter_mut().for_each(Vec::clear);
                }
                memory.clone_from(&file);
                kind = *next;
            }
            Step::Write { at, bytes, seed } => wrote(&mut memory, *at, *bytes, *seed),
            Step::Together { parts } => {
                for (at, bytes, seed) in parts {
                    wrote(&mut memory, *at, *bytes, *seed);
                }
            }
            Step::Read { at, bytes } => {
                expected.digest = pattern::digest(&memory[*at..at + bytes]);
            }
            Step::Pin { at, bytes } => {
                expected.ret = *bytes as i64;
                expected.digest = pattern::digest(&memory[*at..at + bytes]);
            }
            Step::Sync if kind == Kind::Shared => {
                file.clone_from(&memory);
                versions.iter_mut().for_each(Vec::clear);
            }
            Step::SyncRange { at, bytes } | Step::DontNeed { at, bytes } => {
                let pages = at / PAGE_BYTES..(at + bytes).div_ceil(PAGE_BYTES);
                let range = pages.start * PAGE_BYTES..(pages.end * PAGE_BYTES).min(FILE_BYTES);
                let drops = matches!(step, Step::DontNeed { .. });
                if kind == Kind::Shared {
                    file[range.clone()].copy_from_slice(&memory[range]);
                    pages.for_each(|page| versions[page].clear());
                } else if drops {
                    memory[range.clone()].copy_from_slice(&file[range]);
                }
            }
            _ => {}
        }
        if kind != Kind::Shared {
            versions.iter_mut().for_each(Vec::clear);
        }
        if seen != expected {
            return Some(format!("step {number} ({step:?}): expected {expected:?}, got {seen:?}"));
        }
    }
    if !dies && kind == Kind::Shared {
        file.clone_from(&memory);
    }
    if found.len() != FILE_BYTES {
        return Some(format!(
            "the file has {} bytes at the end, should have {FILE_BYTES}",
            found.len()
        ));
    }
    for (page, versions) in versions.iter().enumerate() {
        let is = page_of(found, page);
        let fine = is == page_of(&file, page) || dies && versions.contains(&is);
        // Several threads' parts of one page reach it in any order.
        let vague = dies && versions.len() > 1;
        if !fine && !vague {
            let place = is.iter().zip(page_of(&file, page)).position(|(is, was)| *is != was);
            return Some(format!(
                "page {page} of the file is wrong at the end, from its byte {place:?} on"
            ));
        }
    }
    None
}

impl Surface for Pager {
    fn exercise(&mut self, seed: u64, lines: usize, counts: &mut Counts) -> Result<Outcome> {
        let steps = steps(seed, lines);
        let (seen, killed, found) = self.run(&steps)?;
        let mut outcome = Outcome { kills: (killed.into(), 0), ..Outcome::default() };
        for (step, seen) in steps.iter().zip(&seen) {
            let dead = *step == Step::Die;
            if seen.is_some() || dead {
                let (tried, done) = counts.entry(step.kind()).or_default();
                *tried += 1;
                *done += u64::from(seen.is_none_or(|seen| !seen.failed()));
                outcome.operations += 1;
            }
        }
        if let Some(first) = found {
            let mut last = first.clone();
            let small = minimal(&steps, 300, |some| {
                match can_be(some).then(|| self.run(some)).transpose() {
                    Ok(Some((.., Some(what)))) => {
                        last = what;
                        true
                    }
                    _ => false,
                }
            });
            let list: Vec<String> = small.iter().map(|step| format!("  {step:?}")).collect();
            outcome.difference = Some(format!(
                "a difference\n first seen: {first}\n smallest: {last}\n{}",
                list.join("\n")
            ));
        }
        Ok(outcome)
    }

    fn listed(&self, seed: u64, lines: usize) -> String {
        steps(seed, lines).iter().map(|step| format!("  {step:?}\n")).collect()
    }
}
