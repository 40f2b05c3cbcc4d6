// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing back what was written to a shared region, while the program goes on.

use std::ops::Range;
use std::sync::PoisonError;

use dwell::buffer::Aligned;
use dwell::{Error, Result};
use dwell_policy::{Decision, Mode, Reason, Route};

use crate::fault::await_change;
use crate::frames::Kind;
use crate::mask::{Mask, Quiet};
use crate::options::PAGE_BYTES;
use crate::pages::{DIRTY, SYNCING, State};
use crate::shared::Shared;
use crate::stats::add;
use crate::uffd::Found;

/// Pages written by one request at most.
const PAGES: usize = 64;
/// Ranges that one look at the page map tells.
const RANGES: usize = 64;

/// Writes all pages of a range back that were written to. All are tried; the first error is told.
pub(crate) fn write_back(sh: &Shared, pages: Range<u32>) -> Result<()> {
    let _one = sh.one_sync.lock().unwrap_or_else(PoisonError::into_inner);
    let mut first = Ok(());
    let mut buffer = Aligned::new(PAGES * PAGE_BYTES);
    beside(sh, pages.clone(), &mut buffer, &mut first);
    let mut at = pages.start;
    while at < pages.end {
        let mut found = [Found::default(); RANGES];
        let (start, end) = (sh.area.at(at as usize), sh.area.at(pages.end as usize));
        let (count, walked) = sh
            .uffd
            .written(start, end, false, &mut found)
            .map_err(|error| Error::io("PAGEMAP_SCAN", sh.path(), None, error))?;
        for range in &found[..count] {
            let page_of = |address: u64| ((address as usize - sh.area.start()) / PAGE_BYTES) as u32;
            let (mut page, end) = (page_of(range.start), page_of(range.end));
            while page < end {
                let count = (end - page).min(PAGES as u32);
                present(sh, page..page + count, &mut buffer, &mut first);
                page += count;
            }
        }
        at = ((walked - sh.area.start()) / PAGE_BYTES) as u32;
        if count == 0 && walked <= start {
            break;
        }
    }
    // Those that left the region meanwhile.
    beside(sh, pages, &mut buffer, &mut first);
    first
}

/// Pages that have left the region and wait to be written, and those that somebody is writing or moving.
fn beside(sh: &Shared, pages: Range<u32>, buffer: &mut [u8], first: &mut Result<()>) {
    for page in pages {
        loop {
            let word = sh.pages.get(page);
            match State::of(word) {
                State::Moving | State::Writing => {
                    let seen = {
                        let _quiet = Quiet::new();
                        let _books = sh.lock();
                        match sh.pages.state(page) {
                            State::Moving | State::Writing => sh.pages.expect_change(page),
                            _ => continue,
                        }
                    };
                    let leaves = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Sync);
                    await_change(sh, page, seen, &leaves, Mask::ALL);
                }
                State::Standby if word & DIRTY != 0 => {
                    if write_standby(sh, page, &mut buffer[..PAGE_BYTES], first) {
                        break;
                    }
                }
                _ => break,
            }
        }
    }
}

/// Whether the page was dealt with.
fn write_standby(sh: &Shared, page: u32, buffer: &mut [u8], first: &mut Result<()>) -> bool {
    let frame = {
        let _quiet = Quiet::new();
        let mut books = sh.lock();
        let word = sh.pages.get(page);
        if State::of(word) != State::Standby || word & DIRTY == 0 {
            return false;
        }
        let frame = sh.pages.frame(page);
        books.frames.unlink(frame);
        sh.pages.set(page, State::Writing, DIRTY);
        buffer.copy_from_slice(sh.pool.page(frame as usize));
        frame
    };
    let written = write(sh, page, &buffer[..sh.bytes_of(page, 1)], first);
    let _quiet = Quiet::new();
    let mut books = sh.lock();
    sh.pages.set(page, State::Standby, if written { 0 } else { DIRTY });
    books.frames.hold(frame, page, if written { Kind::STANDBY } else { Kind::DIRTY });
    add(&sh.counters.written_back, u64::from(written));
    true
}

/// Pages of the region, all of them written to when last looked at. They stay meanwhile, so that nobody
/// takes them for clean between the moment that they are protected again and the end of their write.
fn present(sh: &Shared, pages: Range<u32>, buffer: &mut [u8], first: &mut Result<()>) {
    let mut page = pages.start;
    while page < pages.end {
        let run = {
            let _quiet = Quiet::new();
            let mut books = sh.lock();
            let is_here = |page: u32| sh.pages.state(page) == State::Present;
            let begin = (page..pages.end).find(|page| is_here(*page));
            let Some(begin) = begin else { return };
            let end = (begin..pages.end).find(|page| !is_here(*page)).unwrap_or(pages.end);
            (begin..end).for_each(|page| sh.pages.mark(page, SYNCING, 0));
            books.syncing += end - begin;
            begin..end
        };
        page = run.end;
        write_run(sh, run.clone(), buffer, first);
        let _quiet = Quiet::new();
        let mut books = sh.lock();
        books.syncing -= run.end - run.start;
        run.for_each(|page| sh.pages.mark(page, 0, SYNCING));
    }
}

fn write_run(sh: &Shared, run: Range<u32>, buffer: &mut [u8], first: &mut Result<()>) {
    let (start, end) = (sh.area.at(run.start as usize), sh.area.at(run.end as usize));
    let mut found = [Found::default(); PAGES];
    // From here on what is written counts anew.
    let ranges = match sh.uffd.written(start, end, true, &mut found) {
        Ok((ranges, _)) => ranges,
        Err(error) => {
            keep(first, Error::io("PAGEMAP_SCAN", sh.path(), None, error));
            return;
        }
    };
    for range in &found[..ranges] {
        let from = ((range.start as usize - sh.area.start()) / PAGE_BYTES) as u32;
        let count = (range.end - range.start) as usize / PAGE_BYTES;
        // A device may write to what is pinned, which no page table tells: it counts as written until then.
        for page in (from..from + count as u32).filter(|page| sh.pages.pins(*page) > 0) {
            let _ = sh.uffd.protect(sh.area.at(page as usize), PAGE_BYTES, false);
        }
        for step in 0..count {
            let place = &mut buffer[step * PAGE_BYTES..][..PAGE_BYTES];
            sh.area.snapshot(from as usize + step, place);
        }
        let bytes = sh.bytes_of(from, count as u32);
        if write(sh, from, &buffer[..bytes], first) {
            add(&sh.counters.written_back, count as u64);
        } else {
            // They are not as the source has them.
            let (start, bytes) = (range.start as usize, (range.end - range.start) as usize);
            let _ = sh.uffd.protect(start, bytes, false);
        }
    }
}

fn write(sh: &Shared, page: u32, bytes: &[u8], first: &mut Result<()>) -> bool {
    let offset = u64::from(page) * PAGE_BYTES as u64;
    match sh.file.write_all_at(bytes, offset) {
        Ok(()) => true,
        Err(error) => {
            add(&sh.counters.write_errors, 1);
            keep(first, error);
            false
        }
    }
}

fn keep(first: &mut Result<()>, error: Error) {
    if first.is_ok() {
        *first = Err(error);
    }
}
