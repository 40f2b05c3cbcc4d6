// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as memory in one of the ways, within a limit that all of them have.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use dwell::monitor::sys::online_cpus;
use dwell_pager::{Access, Ahead, Board, Faults, Options, Region, Statistics};

use super::method::{Advice, Handler, Kind};
use super::task::Task;
use super::umap::Umap;
use super::work::PAGE_BYTES;
use crate::contender::policy_of;
use crate::fixture::{forget_pages, used_bytes};

/// What a process needs beside pages and the program's own arrays: page tables, rings, a region's
/// tables of pages and frames, what it allocates while it runs. A share of the limit and a number
/// of bytes.
const SPARE_SHARE: u64 = 32;
const SPARE_BYTES: u64 = 1 << 20;
/// The kernel charges a group for so much at once on each CPU, and may kill before it has taken
/// back what other CPUs did not use.
const CHARGED_AHEAD_BYTES: u64 = 64 * PAGE_BYTES as u64;
/// Fewer pages are no budget.
const LEAST_BYTES: u64 = 64 * PAGE_BYTES as u64;
/// No limit is made for less.
const LEAST_PAGED_BYTES: u64 = 4 << 20;
/// Nor for less than this many times what the kernel reads ahead at once. Two such reads can be
/// under way while a page faults; the kernel frees no page that is being read, waits for none, and
/// kills.
const READS_AHEAD: u64 = 3;

/// Copied at once from a file into memory that is swapped.
const COPIED_BYTES: usize = 1 << 20;
/// What UMap has beside its buffer: threads, descriptors of pages.
const UMAP_SPARE_BYTES: u64 = 1 << 20;

/// How long a handler's thread spins for a fault: always, as far as faults of a program go.
const SPINS_NS: u64 = 1_000_000_000;

/// A file as memory.
pub(super) enum Memory {
    Mapped(Mapping),
    Umap(Umap),
    Region(Region),
}

/// A file mapped by the kernel.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    advice: Advice,
}

impl Mapping {
    fn of(path: &Path, advice: Advice, writes: bool) -> Result<Self> {
        let name = path.display();
        let file = File::options().read(true).write(writes).open(path);
        let file = file.with_context(|| format!("open {name}"))?;
        let bytes = usize::try_from(file.metadata()?.len()).context("a file too long to map")?;
        // SAFETY: the kernel chooses where, and checks the rest.
        let start = unsafe {
            let access = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
            let shared = libc::MAP_SHARED;
            libc::mmap(std::ptr::null_mut(), bytes, access, shared, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(error).with_context(|| format!("map {name}"));
        }
        let start = NonNull::new(start.cast()).context("mapped at zero")?;
        Ok(Mapping { start, bytes, advice })
    }

    /// Gives the kernel its advice.
    fn advise(&self) -> Result<()> {
        let advice = match self.advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::Populate => libc::MADV_POPULATE_READ,
            Advice::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: within the mapping; this advice changes no byte of it.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()).context("advice on a mapping"),
        }
    }

    /// Anonymous memory with the bytes of a file, which are in memory no longer than they are
    /// copied.
    fn copy_of(path: &Path) -> Result<Self> {
        let name = path.display();
        let mut file = File::open(path).with_context(|| format!("open {name}"))?;
        let bytes = usize::try_from(file.metadata()?.len()).context("a file too long to copy")?;
        // SAFETY: the kernel chooses where, and checks the rest.
        let start = unsafe {
            let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
            libc::mmap(std::ptr::null_mut(), bytes, access, private | libc::MAP_ANONYMOUS, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("anonymous memory");
        }
        let start = NonNull::new(start.cast::<u8>()).context("mapped at zero")?;
        let mapping = Mapping { start, bytes, advice: Advice::Normal };
        // SAFETY: just mapped, and nobody else has it.
        let memory = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) };
        for part in memory.chunks_mut(COPIED_BYTES) {
            file.read_exact(part).with_context(|| format!("read {name}"))?;
            forget_pages(path).with_context(|| format!("dropping the pages of {name}"))?;
        }
        Ok(mapping)
    }

    fn will_need(&self, bytes: Range<usize>) {
        let begin = bytes.start.min(self.bytes) / PAGE_BYTES * PAGE_BYTES;
        let length = bytes.end.min(self.bytes).saturating_sub(begin);
        // SAFETY: within the mapping; the advice changes no byte of it, and one that is not
        // followed does no harm.
        unsafe {
            libc::madvise(self.start.as_ptr().add(begin).cast(), length, libc::MADV_WILLNEED)
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length; nothing borrowed from it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Memory {
    /// Makes what a task names memory.
    ///
    /// # Errors
    /// What the system or the source refuses; a limit that leaves no room for pages.
    pub(super) fn of(task: &Task) -> Result<Self> {
        let (handler, ahead, policy, stages) = match &task.method.kind {
            Kind::Region { handler, ahead, policy, stages } => (handler, ahead, policy, *stages),
            Kind::Swap => return Ok(Memory::Mapped(Mapping::copy_of(&task.address)?)),
            Kind::Umap { page_bytes } => {
                let length = std::fs::metadata(&task.address)?.len();
                let budget_bytes = budget(task, length)?.saturating_sub(UMAP_SPARE_BYTES);
                return Ok(Memory::Umap(Umap::of(
                    &task.address,
                    *page_bytes,
                    budget_bytes,
                    task.work.writes(),
                )?));
            }
            Kind::Mmap | Kind::Device { .. } => {
                return Ok(Memory::Mapped(Mapping::of(
                    &task.address,
                    task.method.advice,
                    task.work.writes(),
                )?));
            }
        };
        let file = task.open(&policy_of(policy)?)?;
        let budget_bytes = budget(task, file.bytes()?)?;
        let board = match &task.board {
            Some(path) => Board::shared(path)?,
            None => Board::of_process(),
        };
        let faults = match handler {
            Handler::Inline => Faults::Inline,
            _ => Faults::Thread,
        };
        let mut options = Options::new(budget_bytes as usize)
            .faults(faults)
            .policy(policy_of(policy)?)
            .stages(stages)
            .board(board);
        if *handler == Handler::OtherCpuSpins {
            options = options.handler_spins_ns(SPINS_NS);
        }
        if task.work.writes() {
            options = options.access(Access::Shared);
        }
        if !ahead {
            options = options.ahead(Ahead::Nothing);
        }
        let region = Region::open(Arc::new(file), &options)
            .with_context(|| format!("a region of {}", task.address.display()))?;
        let advice = match task.method.advice {
            Advice::Normal => dwell_pager::Advice::Normal,
            Advice::Random => dwell_pager::Advice::Random,
            Advice::Sequential => dwell_pager::Advice::Sequential,
            other => bail!("a region follows no advice of the kind {other:?}"),
        };
        region.advise(0..region.len(), advice)?;
        Ok(Memory::Region(region))
    }

    /// Gives the kernel its advice, when the time counts already: some advice has it read the file.
    pub(super) fn advise(&self) -> Result<()> {
        match self {
            Memory::Mapped(mapping) => mapping.advise(),
            Memory::Umap(_) | Memory::Region(_) => Ok(()),
        }
    }

    fn as_parts(&self) -> (*mut u8, usize) {
        match self {
            Memory::Mapped(mapping) => (mapping.start.as_ptr(), mapping.bytes),
            Memory::Umap(umap) => umap.as_parts(),
            Memory::Region(region) => (region.as_ptr(), region.len()),
        }
    }

    /// The memory as words, to be written to.
    ///
    /// # Errors
    /// Memory that begins within a word.
    pub(super) fn words(&mut self) -> Result<&mut [u64]> {
        let (start, bytes) = self.as_parts();
        let start = start.cast::<u64>();
        ensure!(start.is_aligned(), "the memory begins within a word");
        // SAFETY: aligned, mapped for as long as this lives, and borrowed from it alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, bytes / 8) })
    }

    /// The memory.
    pub(super) fn bytes(&self) -> &[u8] {
        let (start, bytes) = self.as_parts();
        // SAFETY: mapped for as long as this lives, and nobody writes to the file meanwhile.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// Tells that bytes will be read soon.
    pub(super) fn hint(&self, bytes: Range<usize>) {
        match self {
            Memory::Mapped(mapping) => mapping.will_need(bytes),
            Memory::Umap(_) => {}
            Memory::Region(region) => {
                for page in bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) {
                    // A full ring loses what comes last; the pages are read when they are touched.
                    region.hint(page * PAGE_BYTES);
                }
            }
        }
    }

    /// Lets the calling thread fault as cheaply as it can, while what is returned lives.
    pub(super) fn register(&self) -> Result<Option<dwell_pager::Registered>> {
        match self {
            Memory::Mapped(_) | Memory::Umap(_) => Ok(None),
            Memory::Region(region) => Ok(Some(region.register_thread()?)),
        }
    }

    /// What a region counted.
    pub(super) fn statistics(&self) -> Option<Statistics> {
        match self {
            Memory::Mapped(_) | Memory::Umap(_) => None,
            Memory::Region(region) => Some(region.statistics()),
        }
    }
}

/// The bytes that no pages are to take, whatever the limit.
fn spare_bytes() -> u64 {
    SPARE_BYTES + u64::from(online_cpus().unwrap_or(1)) * CHARGED_AHEAD_BYTES
}

/// A limit that leaves `paged_bytes` for pages of a file.
pub(super) fn limit_bytes(private_bytes: u64, paged_bytes: u64, read_ahead_bytes: u64) -> u64 {
    let least = LEAST_PAGED_BYTES.max(READS_AHEAD.saturating_mul(read_ahead_bytes));
    let sum = private_bytes + paged_bytes.max(least) + spare_bytes();
    sum + sum.div_ceil(SPARE_SHARE - 1)
}

/// The most that the kernel reads ahead at once of a file; 0 of what is no file, or where it does
/// not say.
pub(super) fn read_ahead_bytes(address: &Path) -> u64 {
    let Ok(metadata) = std::fs::metadata(address) else { return 0 };
    let device = metadata.dev();
    let numbers = format!("{}:{}", libc::major(device), libc::minor(device));
    // A partition has its disk's; a file system without a device has its own.
    let places = [
        format!("/sys/dev/block/{numbers}/queue"),
        format!("/sys/dev/block/{numbers}/../queue"),
        format!("/sys/class/bdi/{numbers}"),
    ];
    let read = |at: &String| std::fs::read_to_string(format!("{at}/read_ahead_kb")).ok();
    let text = places.iter().find_map(read).unwrap_or_default();
    text.trim().parse::<u64>().unwrap_or(0) << 10
}

/// The part of the limit that remains for a region's pages, in bytes. The kernel would have the
/// same memory for the pages of a mapped file.
fn budget(task: &Task, mapped_bytes: u64) -> Result<u64> {
    let used = match &task.group {
        None => 0,
        Some(group) => {
            let read = || format!("cannot read what {} has", group.display());
            used_bytes(group).with_context(read)?
        }
    };
    let limit = task.limit_bytes;
    let taken = used + task.work.private_bytes(mapped_bytes) + spare_bytes() + limit / SPARE_SHARE;
    match limit.checked_sub(taken) {
        Some(left) if left >= LEAST_BYTES => Ok(left / PAGE_BYTES as u64 * PAGE_BYTES as u64),
        _ => bail!("a limit of {limit} bytes leaves no room for pages: {taken} are taken"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a mapping that its page table has.
    fn mapped_bytes(mapping: &Mapping) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", mapping.start.as_ptr() as usize);
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&begin));
        let line = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    #[test]
    fn the_kernel_reads_nothing_of_a_mapping_before_the_time_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, vec![1; 1 << 20]).unwrap();
        for advice in [Advice::WillNeed, Advice::Populate] {
            let mapping = Mapping::of(file.path(), advice, false).unwrap();
            assert_eq!(mapped_bytes(&mapping), 0);
            mapping.advise().unwrap();
            assert_eq!(
                mapped_bytes(&mapping),
                if advice == Advice::Populate { 1 << 20 } else { 0 }
            );
        }
    }
}
