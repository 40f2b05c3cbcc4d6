// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges that stay in memory, and the budget that they need.

use std::ops::Range;
use std::sync::Arc;

use dwell::{Error, Result};

use crate::mask::Quiet;
use crate::memory::PAGE_BYTES;
use crate::open;
use crate::region::{Mode, Region};
use crate::shared::{Books, Shared};
use crate::shares::LEAST_PAGES;

/// A range that stays in memory while this lives, so that system calls may be given it.
pub struct Pin {
    shared: Option<Arc<Shared>>,
    pages: Range<u32>,
}

impl Region {
    /// Brings a range of bytes into memory and keeps it there, so that system calls may be given
    /// it. With a budget as large as the file, all of it can be pinned. Where regions share a
    /// budget, others give memory up for it, which is waited for a second at most.
    ///
    /// # Errors
    /// As [`Region::prefault`]; more than the budget can hold, with the budget that would, or more
    /// than it can hold beside what other regions have pinned.
    pub fn pin(&self, range: Range<usize>) -> Result<Pin> {
        let pages = self.pages(&range)?;
        let (shared, budget) = match &self.mode {
            Mode::Paged { shared, budget, .. } => (shared, budget),
            Mode::Mapped { .. } => {
                self.populate(&range)?;
                return Ok(Pin { shared: None, pages });
            }
        };
        shared.here()?;
        let quiet = Quiet::new();
        match budget {
            Some(budget) => budget.pin(shared, &pages)?,
            None => {
                let mut books = shared.lock();
                shared.fits(&books, &pages)?;
                shared.count_pins(&mut books, &pages);
            }
        }
        let pin = Pin { shared: Some(shared.clone()), pages: pages.clone() };
        pages.into_iter().try_for_each(|page| shared.bring(page, quiet.mask()))?;
        Ok(pin)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        if !shared.is_here() {
            // In a forked child another thread may have held the lock, and holds it for ever.
            return;
        }
        let _quiet = Quiet::new();
        let mut books = shared.lock();
        for page in self.pages.clone() {
            shared.pages.pin(page, false);
            books.pinned -= u32::from(shared.pages.pins(page) == 0);
        }
    }
}

impl Shared {
    /// Pages of these that are not pinned yet.
    pub fn unpinned(&self, pages: &Range<u32>) -> u32 {
        pages.clone().filter(|page| self.pages.pins(*page) == 0).count() as u32
    }

    /// Whether the region's own budget holds these pages too, pinned.
    fn fits(&self, books: &Books, pages: &Range<u32>) -> Result<()> {
        let new = self.unpinned(pages);
        let pinned = books.pinned + new;
        // Pages that are not pinned need a few frames to come and go by.
        let needed = pinned + (open::LEAST_PAGES / 2).min(self.pages.count() - pinned);
        let budget = books.frames.budget();
        if needed <= budget {
            return Ok(());
        }
        let what = format!(
            "pinning {} KiB beside {} KiB that are pinned needs a budget of {} bytes; this one is of {}: pin \
             less at once, or open the region with a larger budget",
            kib(new),
            kib(books.pinned),
            needed as usize * PAGE_BYTES,
            budget as usize * PAGE_BYTES,
        );
        Err(Error::invalid(self.path(), what))
    }

    /// Counts pages as pinned, and has them stay.
    pub fn count_pins(&self, books: &mut Books, pages: &Range<u32>) {
        books.pinned += self.unpinned(pages);
        pages.clone().for_each(|page| self.pages.pin(page, true));
    }

    /// The least that the region keeps of a shared budget: what is pinned, and half of the least to
    /// come and go by.
    pub fn least(&self, pinned: u32) -> u32 {
        pinned.saturating_add(LEAST_PAGES / 2).min(self.pages.count()).max(LEAST_PAGES)
    }
}

fn kib(pages: u32) -> usize {
    pages as usize * (PAGE_BYTES / 1024)
}
