// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace is like: footprint, working set over time, mix of instructions, reuse.

use std::collections::BTreeMap;

use crate::dictionary::AccessKind;
use crate::error::Result;
use crate::reader::{Event, Reader};
use crate::registers::{Flow, Operands, Registers, operands};
use crate::reuse::{AddressMap, ReuseDistances};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
/// Accesses up to which reuse distances are exact unless asked otherwise.
const EXACT_UP_TO: u64 = 8 << 20;
/// Windows of the working set over time.
const WINDOWS: u64 = 60;

/// Instructions by what they do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    /// Instructions whose bytes were known; the rest is in none of the following.
    pub decoded: u64,
    /// Touch memory.
    pub memory: u64,
    /// Jump if a condition holds.
    pub branches: u64,
    /// Jump always, also to computed addresses.
    pub jumps: u64,
    /// Call a function.
    pub calls: u64,
    /// Return from one.
    pub returns: u64,
    /// Use vector registers.
    pub vector: u64,
    /// Call the kernel or trap.
    pub system: u64,
}

/// What was touched during one part of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Number of its first instruction.
    pub from_instruction: u64,
    /// Different data pages.
    pub data_pages: u64,
    /// Data pages that were not touched before.
    pub new_pages: u64,
}

/// What a trace is like.
#[derive(Clone, Debug)]
pub struct Info {
    /// Instructions executed.
    pub instructions: u64,
    /// Runs of blocks.
    pub blocks: u64,
    /// Accesses that were performed, by kind: loads, stores, both at once.
    pub accesses: [u64; 3],
    /// Accesses whose condition did not hold.
    pub not_performed: u64,
    /// Bytes read and written.
    pub accessed_bytes: u64,
    /// Different threads.
    pub threads: u64,
    /// Calls of the kernel by number.
    pub syscalls: BTreeMap<u64, u64>,
    /// Instructions, accesses and bytes of the code that ran.
    pub static_instructions: u64,
    /// Different pages of data.
    pub data_pages: u64,
    /// Different pages of code.
    pub code_pages: u64,
    /// Pages that were only read.
    pub read_only_pages: u64,
    /// Mix of instructions.
    pub mix: Mix,
    /// The trace in equal parts.
    pub windows: Vec<Window>,
    /// Reuse of cache lines.
    pub lines: ReuseDistances,
    /// Reuse of pages.
    pub pages: ReuseDistances,
}

#[derive(Clone, Copy, Default)]
struct Page {
    /// The last window that touched it, from 1.
    window: u32,
    written: bool,
}

/// Reads the whole trace. `exact` follows every line and page however long that takes; else one in
/// several where there are more than 8 Mi accesses. `progress` hears the share done, 0–1.
pub fn info(trace: &mut Reader, exact: bool, progress: &mut dyn FnMut(f64)) -> Result<Info> {
    trace.rewind();
    let one_in = if exact { 1 } else { trace.accesses().div_ceil(EXACT_UP_TO).max(1) };
    let per_window = trace.instructions().div_ceil(WINDOWS).max(1);
    let operands = operands(trace.dictionary());
    let mut runs = vec![0u64; trace.dictionary().blocks().len()];
    let mut threads = std::collections::BTreeSet::new();
    let mut pages: AddressMap<Page> = AddressMap::default();
    let mut recent = vec![(u64::MAX, false); 1024];
    let (mut next_window, mut done, total) = (0, 0u64, trace.instructions().max(1));
    let mut info = Info {
        instructions: 0,
        blocks: 0,
        accesses: [0; 3],
        not_performed: 0,
        accessed_bytes: 0,
        threads: 0,
        syscalls: BTreeMap::new(),
        static_instructions: 0,
        data_pages: 0,
        code_pages: 0,
        read_only_pages: 0,
        mix: Mix::default(),
        windows: Vec::new(),
        lines: ReuseDistances::new(one_in),
        pages: ReuseDistances::new(one_in),
    };
    threads.insert(trace.thread());
    while let Some(event) = trace.next_event()? {
        let run = match event {
            Event::Block(run) => run,
            Event::Thread(thread) => {
                if done == 0 {
                    threads.clear();
                }
                threads.insert(thread);
                continue;
            }
            Event::Syscall(number) => {
                *info.syscalls.entry(number).or_default() += 1;
                continue;
            }
        };
        if done >= next_window {
            info.windows.push(Window { from_instruction: done, ..Window::default() });
            next_window = done + per_window;
            recent.fill((u64::MAX, false));
            progress(done as f64 / total as f64);
        }
        let number = info.windows.len() as u32;
        let window = info.windows.last_mut().expect("one was begun");
        runs[run.id as usize] += 1;
        done += u64::from(run.block.instruction_count);
        for (site, address) in run.accesses() {
            if address == 0 {
                info.not_performed += 1;
                continue;
            }
            info.accesses[site.kind as usize] += 1;
            info.accessed_bytes += u64::from(site.size);
            let last = address.saturating_add(u64::from(site.size.max(1)) - 1);
            for line in address / LINE_BYTES..=last / LINE_BYTES {
                info.lines.touch(line);
            }
            let writes = site.kind.writes();
            for number_of_page in address / PAGE_BYTES..=last / PAGE_BYTES {
                info.pages.touch(number_of_page);
                let seen = &mut recent[number_of_page as usize % 1024];
                if seen.0 == number_of_page && (seen.1 || !writes) {
                    continue;
                }
                let page = pages.entry(number_of_page).or_default();
                window.new_pages += u64::from(page.window == 0);
                window.data_pages += u64::from(page.window != number);
                page.window = number;
                page.written |= writes;
                *seen = (number_of_page, page.written);
            }
        }
    }
    info.instructions = done;
    info.blocks = runs.iter().sum();
    info.threads = threads.len() as u64;
    info.data_pages = pages.len() as u64;
    info.read_only_pages = pages.values().filter(|page| !page.written).count() as u64;
    add_static(&mut info, trace, &runs, &operands);
    progress(1.0);
    Ok(info)
}

/// What follows from how often each block ran.
fn add_static(info: &mut Info, trace: &Reader, runs: &[u64], operands: &[Operands]) {
    let dictionary = trace.dictionary();
    let vector = Registers(0xffff_ffff << 16);
    let mut executed = vec![0u64; dictionary.instructions().len()];
    let mut touches = vec![false; executed.len()];
    for (block, &times) in dictionary.blocks().iter().zip(runs).filter(|(_, times)| **times > 0) {
        let first = block.first_instruction as usize;
        for count in &mut executed[first..first + usize::from(block.instruction_count)] {
            *count += times;
        }
        for site in dictionary.sites_of(block) {
            touches[first + usize::from(site.instruction)] = true;
        }
    }
    let mut code = std::collections::BTreeSet::new();
    let mut addresses = std::collections::BTreeSet::new();
    for (number, instruction) in dictionary.instructions().iter().enumerate() {
        let times = executed[number];
        if times == 0 {
            continue;
        }
        code.insert(instruction.address / PAGE_BYTES);
        addresses.insert(instruction.address);
        let operands = &operands[number];
        let mix = &mut info.mix;
        mix.memory += if touches[number] { times } else { 0 };
        if !operands.known {
            continue;
        }
        mix.decoded += times;
        if operands.reads.meets(vector) || operands.writes.meets(vector) {
            mix.vector += times;
        }
        match operands.flow {
            Flow::Next => {}
            Flow::Branch => mix.branches += times,
            Flow::Jump | Flow::IndirectJump => mix.jumps += times,
            Flow::Call | Flow::IndirectCall => mix.calls += times,
            Flow::Return => mix.returns += times,
            Flow::System => mix.system += times,
        }
    }
    info.code_pages = code.len() as u64;
    info.static_instructions = addresses.len() as u64;
}

impl Info {
    /// Accesses of that kind.
    pub fn accesses_of(&self, kind: AccessKind) -> u64 {
        self.accesses[kind as usize]
    }
}
