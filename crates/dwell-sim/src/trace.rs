// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded traces as programs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dwell_trace::{Event, Reader};

use crate::isa::{Decode, Instr};
use crate::program::{Access, Dictionary, Executed, Program, ProgramError, Source, Tape};

/// A recorded trace. Its code is decoded once; each execution reads the file anew.
pub struct Recorded {
    name: String,
    path: PathBuf,
    dictionary: Arc<Dictionary>,
    blocks: Arc<[Block]>,
    instructions: u64,
    unknown: u64,
    limit: u64,
    populated: Vec<(u64, u64)>,
}

/// One block as it is put on a tape: a whole run is two copies.
struct Block {
    steps: Box<[Executed]>,
    /// What each address of a run is: an access without its address, and whether it is read and
    /// then written.
    accesses: Box<[(Access, bool)]>,
    /// Whether some access is two, or an instruction has more of them than a step can hold.
    by_step: bool,
}

/// How much of a trace is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Instructions at most.
    pub limit: u64,
    /// Whether a file that ends early will do, as far as it goes.
    pub partial: bool,
}

impl Extent {
    /// All of it, of a whole file.
    pub const WHOLE: Extent = Extent { limit: u64::MAX, partial: false };
}

fn failed(error: dwell_trace::Error) -> ProgramError {
    ProgramError(error.to_string())
}

impl Recorded {
    /// Opens the trace at `path`, of which so much is to be executed.
    ///
    /// # Errors
    /// The file is no trace, or ends before the instructions that `extent` asks for.
    pub fn open(name: &str, path: &Path, extent: Extent) -> Result<Recorded, ProgramError> {
        let reader = Reader::open(path).map_err(failed)?;
        let limit = extent.limit;
        if let Some(at) = reader.cut_short_at()
            && !extent.partial
            && reader.instructions() < limit
        {
            let (path, whole) = (path.display(), reader.instructions());
            return Err(ProgramError(format!(
                "{path}: ends early at byte {at}, after {whole} instructions; record it again, or \
                 simulate what is there with --partial"
            )));
        }
        let code = reader.dictionary();
        let mut decode = Decode::new();
        let mut unknown = 0;
        let instrs = code.instructions().iter().map(|instruction| {
            // Bytes that the decoder does not know as an instruction touch no register that we know
            // of.
            decode.one(instruction.address, code.bytes_of(instruction)).map_or_else(
                |_| {
                    unknown += 1;
                    Instr::NOTHING
                },
                |(instr, _)| instr,
            )
        });
        let dictionary = Arc::new(Dictionary::new(instrs.collect()));
        let blocks = code.blocks().iter().map(|block| {
            let sites = code.sites_of(block);
            let accesses = sites.iter().map(|site| {
                let size = u32::from(site.size);
                let reads = site.kind.reads();
                let access = if reads { Access::load(0, size) } else { Access::store(0, size) };
                (access, reads && site.kind.writes())
            });
            let accesses: Box<[_]> = accesses.collect();
            let (mut steps, mut most) = (Tape::default(), 0);
            for at in 0..block.instruction_count {
                let mine = sites.iter().zip(&accesses).filter(|(site, _)| site.instruction == at);
                let count = mine.count();
                most = most.max(count);
                let count = count.min(Executed::MAX_ACCESSES);
                steps.push_count(block.first_instruction + u32::from(at), count);
            }
            let by_step = most > Executed::MAX_ACCESSES || accesses.iter().any(|(_, both)| *both);
            Block { steps: steps.steps.into(), accesses, by_step }
        });
        Ok(Recorded {
            name: name.into(),
            path: path.into(),
            dictionary,
            blocks: blocks.collect(),
            instructions: reader.instructions().min(limit),
            unknown,
            limit,
            populated: reader.about().populated.clone(),
        })
    }

    /// Instructions that an execution has.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Static instructions that the decoder did not know; they touch no register.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }
}

impl Source for Recorded {
    fn name(&self) -> &str {
        &self.name
    }

    fn dictionary(&self) -> Arc<Dictionary> {
        self.dictionary.clone()
    }

    fn populated(&self) -> &[(u64, u64)] {
        &self.populated
    }

    fn open(&self) -> Result<Box<dyn Program>, ProgramError> {
        let reader = Reader::open(&self.path).map_err(failed)?;
        Ok(Box::new(Playing { reader, blocks: self.blocks.clone(), left: self.limit }))
    }
}

struct Playing {
    reader: Reader,
    blocks: Arc<[Block]>,
    left: u64,
}

impl Program for Playing {
    fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
        let stop = tape.len() + 4096.min(self.left as usize);
        while tape.len() < stop {
            let Some(event) = self.reader.next_event().map_err(failed)? else { break };
            let Event::Block(run) = event else { continue };
            let block = self.blocks.get(run.id as usize).ok_or_else(|| {
                ProgramError("the trace changed while it was read; start again".into())
            })?;
            let before = tape.len();
            // An address of 0 is an access whose condition did not hold.
            if block.by_step || run.addresses.contains(&0) {
                step_by_step(block, &run, tape);
            } else {
                tape.steps.extend_from_slice(&block.steps);
                let accesses = block.accesses.iter().zip(run.addresses);
                tape.accesses.extend(accesses.map(|((access, _), &address)| access.at(address)));
            }
            self.left = self.left.saturating_sub((tape.len() - before) as u64);
        }
        Ok(())
    }
}

/// A run some of whose accesses were not made, or are two.
fn step_by_step(block: &Block, run: &dwell_trace::Run<'_>, tape: &mut Tape) {
    let mut next = 0;
    for executed in run.instructions() {
        let mut count = 0;
        for &address in executed.addresses {
            let (access, both) = block.accesses[next];
            next += 1;
            if address == 0 || count + usize::from(both) >= Executed::MAX_ACCESSES {
                continue;
            }
            tape.accesses.push(access.at(address));
            if both {
                tape.accesses.push(access.at(address).as_store());
            }
            count += 1 + usize::from(both);
        }
        tape.push_count(executed.number as u32, count);
    }
}
