// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must be known of a program before it runs: its footprint and its working set (§4.1).

use crate::Params;
use crate::cache::{Level, Levels};
use crate::params::{FirstTouch, PAGE_BYTES};
use crate::program::{ProgramError, Source, Tape};
use crate::report::Accesses;
use crate::stack::{Curve, Stack};
use crate::table::{Entry, PageTable};
use crate::tlb::{self, Tlb};

/// A program alone, with all of its pages in DRAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The footprint: all pages that it touches, in rising order.
    pub pages: Vec<u64>,
    /// Of these, the pages whose first access stores and which the program does not have before its
    /// first instruction, in rising order: they are taken for new anonymous memory. The rest is of
    /// files, or was touched before and swapped.
    pub stored_first: Vec<u64>,
    /// LRU stack distances of the pages at which the last-level cache misses.
    pub curve: Curve,
    /// The least LRU memory that answers the asked-for part of those misses: its working set.
    pub working_set_pages: u64,
    /// Instructions.
    pub instructions: u64,
    /// Accesses by level.
    pub accesses: Accesses,
}

impl Survey {
    /// The pages that are on the device before the program runs.
    pub fn on_device(&self, params: &Params) -> Vec<u64> {
        match params.first_touch {
            FirstTouch::Storage => self.pages.clone(),
            FirstTouch::Zero => Vec::new(),
            FirstTouch::Anonymous => {
                let mut stored = self.stored_first.iter().peekable();
                let file = |page: &&u64| {
                    while stored.next_if(|other| *other < *page).is_some() {}
                    stored.peek() != Some(page)
                };
                self.pages.iter().filter(file).copied().collect()
            }
        }
    }
}

/// Executes a program over the caches alone. `go_on` is told now and then how many instructions
/// were executed; where it says `false` the answer is `None`.
pub fn survey(
    source: &dyn Source,
    params: &Params,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<Survey>, ProgramError> {
    let mut program = source.open()?;
    let (mut levels, _) = Levels::new(params, false);
    let line_shift = params.line_bytes.trailing_zeros();
    let frame_shift = 12 - line_shift;
    let mut known = Pages::new();
    let mut survey = Survey::default();
    let mut tape = Tape::default();
    let mut told = 0;
    loop {
        tape.clear();
        program.fill(&mut tape)?;
        if tape.is_empty() {
            break;
        }
        survey.instructions += tape.len() as u64;
        for &access in &tape.accesses {
            let (mut line, last) = (access.address() >> line_shift, access.last() >> line_shift);
            loop {
                let index = known.index(line >> frame_shift, access.is_store())?;
                let level =
                    levels.access(index << frame_shift | line as u32 & ((1 << frame_shift) - 1));
                match level {
                    Level::L1 => survey.accesses.l1 += 1,
                    Level::L2 => survey.accesses.l2 += 1,
                    Level::Llc | Level::LlcAhead => survey.accesses.llc += 1,
                    Level::Dram => {
                        survey.accesses.dram += 1;
                        known.stack.touch(index);
                    }
                }
                if line == last {
                    break;
                }
                line += 1;
            }
        }
        if survey.instructions - told >= 1 << 22 {
            told = survey.instructions;
            if !go_on(told) {
                return Ok(None);
            }
        }
    }
    survey.curve = known.stack.curve;
    survey.working_set_pages = survey.curve.pages_for(params.working_set_percent);
    survey.pages = known.pages;
    survey.pages.sort_unstable();
    survey.stored_first = known.stored_first;
    survey.stored_first.sort_unstable();
    let mut had = source.populated().iter().peekable();
    survey.stored_first.retain(|&page| {
        while had.next_if(|(first, count)| first + count <= page).is_some() {}
        had.peek().is_none_or(|(first, _)| page < *first)
    });
    Ok(Some(survey))
}

/// The pages of a program by the order of their first use.
struct Pages {
    table: PageTable,
    /// What was looked up before; it costs nothing.
    known: Tlb,
    pages: Vec<u64>,
    stored_first: Vec<u64>,
    stack: Stack,
}

impl Pages {
    fn new() -> Self {
        Pages {
            table: PageTable::default(),
            known: Tlb::new(&Params { tlb_entries: 0, ..Params::default() }),
            pages: Vec::new(),
            stored_first: Vec::new(),
            stack: Stack::default(),
        }
    }

    #[inline]
    fn index(&mut self, page: u64, stores: bool) -> Result<u32, ProgramError> {
        let index = self.known.get(page);
        if index != tlb::NONE { Ok(index) } else { self.look_up(page, stores) }
    }

    #[cold]
    fn look_up(&mut self, page: u64, stores: bool) -> Result<u32, ProgramError> {
        let slot = self.table.make(page);
        if self.table.at(slot).is_none() {
            if self.pages.len() >= 1 << 24 {
                let gib = (PAGE_BYTES << 24) >> 30;
                return Err(ProgramError(format!("touches more than {gib} GiB; cut the trace")));
            }
            self.table.put(slot, Entry::present(self.pages.len() as u32));
            self.pages.push(page);
            if stores {
                self.stored_first.push(page);
            }
        }
        let index = self.table.at(slot).frame();
        self.known.keep(page, index);
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::reg;
    use crate::synthetic::Script;

    #[test]
    fn a_page_that_is_stored_to_first_is_on_the_device_only_where_all_are() {
        let script = Script::new("a")
            .store(reg::RAX, reg::RBX, 0x1000, 8)
            .load(reg::RAX, reg::RBX, 0x1000, 8)
            .load(reg::RAX, reg::RBX, 0x3000, 8)
            .store(reg::RAX, reg::RBX, 0x3000, 8)
            .store(reg::RAX, reg::RBX, 0x5000, 8);
        let survey = survey(&script, &Params::default(), &mut |_| true).unwrap().unwrap();
        let on_device =
            |first_touch| survey.on_device(&Params { first_touch, ..Params::default() });
        assert_eq!(on_device(FirstTouch::Anonymous), [3]);
        assert_eq!(on_device(FirstTouch::Storage), [1, 3, 5]);
        assert!(on_device(FirstTouch::Zero).is_empty());
    }

    #[test]
    fn the_footprint_has_every_page_that_an_access_touches() {
        let script = Script::new("a").load(reg::RAX, reg::RBX, 0x5ffc, 8).store(
            reg::RAX,
            reg::RBX,
            0x1000,
            8,
        );
        let survey = survey(&script, &Params::default(), &mut |_| true).unwrap().unwrap();
        assert_eq!(survey.pages, [1, 5, 6]);
        assert_eq!((survey.instructions, survey.accesses.dram), (2, 3));
    }
}
