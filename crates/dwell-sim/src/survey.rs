// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must be known of a program before it runs: its footprint and its working set (§4.1).

use crate::Params;
use crate::cache::{Level, Levels};
use crate::frames::Translations;
use crate::params::PAGE_BYTES;
use crate::program::{ProgramError, Source, Tape};
use crate::report::Accesses;
use crate::table::{Entry, PageTable};

/// A program alone, with all of its pages in DRAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The footprint: all pages that it touches, in rising order.
    pub pages: Vec<u64>,
    /// How many pages answer the asked-for part of its last-level cache's misses: its working set.
    pub working_set_pages: u64,
    /// Instructions.
    pub instructions: u64,
    /// Accesses by level.
    pub accesses: Accesses,
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
    let mut known = Pages::default();
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
                let index = known.index(line >> frame_shift)?;
                let level =
                    levels.access(index << frame_shift | line as u32 & ((1 << frame_shift) - 1));
                match level {
                    Level::L1 => survey.accesses.l1 += 1,
                    Level::L2 => survey.accesses.l2 += 1,
                    Level::Llc | Level::LlcAhead => survey.accesses.llc += 1,
                    Level::Dram => {
                        survey.accesses.dram += 1;
                        known.misses[index as usize] += 1;
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
    survey.working_set_pages = known.working_set(params.working_set_percent);
    survey.pages = known.pages;
    survey.pages.sort_unstable();
    Ok(Some(survey))
}

/// The pages of a program by the order of their first use.
#[derive(Default)]
struct Pages {
    table: PageTable,
    translations: Translations,
    pages: Vec<u64>,
    misses: Vec<u64>,
}

impl Pages {
    #[inline]
    fn index(&mut self, page: u64) -> Result<u32, ProgramError> {
        let index = self.translations.get(page);
        if index != u32::MAX { Ok(index) } else { self.look_up(page) }
    }

    #[cold]
    fn look_up(&mut self, page: u64) -> Result<u32, ProgramError> {
        let slot = self.table.make(page);
        if self.table.at(slot).is_none() {
            if self.pages.len() >= 1 << 24 {
                let gib = (PAGE_BYTES << 24) >> 30;
                return Err(ProgramError(format!("touches more than {gib} GiB; cut the trace")));
            }
            self.table.put(slot, Entry::present(self.pages.len() as u32));
            self.pages.push(page);
            self.misses.push(0);
        }
        let index = self.table.at(slot).frame();
        self.translations.keep(page, index);
        Ok(index)
    }

    /// The fewest pages that answer more than `percent` of the misses, or all of them at 100.
    fn working_set(&self, percent: f64) -> u64 {
        let mut misses = self.misses.clone();
        misses.sort_unstable_by_key(|&misses| std::cmp::Reverse(misses));
        let total: u64 = misses.iter().sum();
        let wanted = total as f64 * percent / 100.0;
        let mut answered = 0;
        for (pages, misses) in misses.iter().enumerate() {
            if answered as f64 > wanted || answered == total {
                return pages as u64;
            }
            answered += misses;
        }
        misses.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::reg;
    use crate::synthetic::Script;

    #[test]
    fn the_working_set_is_the_fewest_pages_that_answer_most_misses() {
        let pages = Pages { misses: vec![1, 50, 0, 48, 1], ..Pages::default() };
        assert_eq!(pages.working_set(97.0), 2);
        assert_eq!(pages.working_set(98.0), 3, "98 of 100 is not more than 98 %");
        assert_eq!(pages.working_set(100.0), 4);
        assert_eq!(Pages::default().working_set(99.0), 0);
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
