// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each rule of pre-execution, seen by what it brings to the cache and what it leaves alone.

use proptest::prelude::*;

use super::*;
use crate::frames::{Owner, flag};
use crate::isa::reg::{FLAGS, RAX, RBX, RCX, RDX, RSI, RSP};
use crate::isa::{Instr, Regs};
use crate::params::Replacement;
use crate::program::Source;
use crate::synthetic::Script;
use crate::table::Entry;

/// What the process waits for is on page 1. Pages 2 and 3 are in DRAM, page 4 is on the device,
/// page 5 is on its way and arrives at 1,000 ns. Register rbx holds any address that is known.
struct World {
    window: Window,
    dictionary: std::sync::Arc<Dictionary>,
    table: PageTable,
    tlb: Tlb,
    frames: Frames,
    levels: Levels,
    params: Params,
    ahead: PreExecute,
}

impl World {
    /// A process whose first instruction waits.
    fn new(script: Script, sets: &[&str]) -> World {
        let mut params = Params::default();
        [
            "instruction_ps=1000",
            "l1_bytes=0",
            "llc_hit_ns=0",
            "tlb_entries=0",
            "preexecute_miss=wait",
        ]
        .iter()
        .chain(sets)
        .for_each(|set| params.set(set).unwrap());
        params.check().unwrap();
        let (levels, shape) = Levels::new(&params, true);
        let mut table = PageTable::default();
        (1..=5).for_each(|page| {
            table.store(page);
        });
        let mut frames = Frames::new(8, Replacement::Clock);
        let mut tlb = Tlb::new(&params);
        for (page, arrives) in [(2, 0), (3, 0), (5, 1_000)] {
            let (frame, _) = frames.take(Owner::default(), arrives, 0, 0).unwrap();
            let slot = table.make(page);
            if arrives == 0 {
                tlb.keep(page, frame);
                table.put(slot, Entry::present(frame));
            } else {
                table.put(slot, Entry::in_frame(frame));
            }
        }
        let dictionary = script.dictionary();
        let mut window = Window::new(script.open().unwrap());
        assert!(window.advance().unwrap());
        window.at = 1;
        let ahead = PreExecute::new(&params, shape);
        World { window, dictionary, table, tlb, frames, levels, params, ahead }
    }

    /// Pre-executes from 0 to `until`; when it ended.
    fn run(&mut self, until: Ns) -> Ns {
        let left = self.window.steps()[0].accesses();
        let mut scene = Scene {
            window: &mut self.window,
            dictionary: &self.dictionary,
            table: &mut self.table,
            tlb: &mut self.tlb,
            frames: &self.frames,
            levels: &mut self.levels,
            params: &self.params,
            at_miss: self.params.preexecute_miss,
        };
        self.ahead.run(&mut scene, 0, until, left).unwrap()
    }

    fn line(&self, address: u64) -> Line {
        self.table.of(address >> 12).frame() << 6 | (address as u32 & 4095) >> 6
    }

    fn brought(&self, address: u64) -> bool {
        self.levels.find(self.line(address)) != Level::Dram
    }

    /// As if the process had used the line before.
    fn cached(mut self, address: u64) -> World {
        self.levels.access(self.line(address));
        self
    }
}

/// A process that waits for what it loads to rax.
fn waits() -> Script {
    Script::new("waits").load(RAX, RBX, 0x1000, 8)
}

/// Whether register `of` is valid at the end of `script`: a load through it tells.
fn valid_after(script: Script, of: Regs, prepare: impl Fn(World) -> World, sets: &[&str]) -> bool {
    let mut world = prepare(World::new(script.load(RSI, of, 0x3f00, 8), sets));
    world.run(1_000_000);
    world.brought(0x3f00)
}

fn valid(script: Script, of: Regs) -> bool {
    valid_after(script, of, |world| world, &[])
}

#[test]
fn registers_that_need_the_awaited_data_are_invalid_and_the_rest_goes_on() {
    let script = waits().compute(RCX, RAX).load(RDX, RCX, 0x2000, 8).load(RSI, RBX, 0x3000, 8);
    let mut world = World::new(script, &[]);
    world.run(1_000_000);
    assert!(!world.brought(0x2000) && world.brought(0x3000));
    assert_eq!((world.ahead.counts.instructions, world.ahead.counts.invalid), (3, 2));
}

#[test]
fn inv_goes_from_register_to_register_and_ends_with_a_valid_value() {
    assert!(!valid(waits().compute(RCX, RAX).compute(RDX, RCX | RBX), RDX));
    assert!(!valid(waits().compute(FLAGS, RAX).compute(RDX, FLAGS), RDX));
    assert!(valid(waits().compute(RCX, RAX).compute(RDX, RBX), RDX));
    assert!(valid(waits().compute(RAX, RBX), RAX));
}

#[test]
fn a_push_of_an_invalid_value_leaves_the_stack_pointer_valid() {
    let push = Instr { reads: RAX, store_address: RSP, steps: RSP, ..Instr::NOTHING };
    assert!(valid(waits().instr(push, &[Access::store(0x2000, 8)]), RSP));
}

#[test]
fn a_load_from_the_device_is_invalid() {
    assert!(!valid(waits().load(RCX, RBX, 0x4000, 8), RCX));
    assert!(
        !valid(waits().load(RCX, RBX, 0x2ffc, 8).load(RCX, RBX, 0x3ffc, 8), RCX),
        "half of it is"
    );
}

#[test]
fn a_load_from_dram_is_valid_and_moves_to_the_cache() {
    let mut world = World::new(waits().load(RCX, RBX, 0x2000, 8), &[]);
    assert_eq!(world.run(1_000_000), 1 + 50, "one instruction, one miss");
    assert!(world.brought(0x2000));
    assert_eq!(world.ahead.counts.lines, 1);
    assert!(valid(waits().load(RCX, RBX, 0x2000, 8), RCX));
}

#[test]
fn a_load_from_the_cache_is_valid() {
    let cached = |world: World| world.cached(0x2000);
    assert!(valid_after(waits().load(RCX, RBX, 0x2000, 8), RCX, cached, &[]));
}

#[test]
fn a_page_that_arrives_meanwhile_can_be_used_from_then_on() {
    assert!(!valid(waits().work(900).load(RCX, RBX, 0x5000, 8), RCX));
    assert!(valid(waits().work(1_000).load(RCX, RBX, 0x5000, 8), RCX));
}

#[test]
fn a_load_that_depends_on_an_invalid_store_is_invalid() {
    let stored = waits().store(RAX, RBX, 0x2000, 8);
    assert!(!valid(stored.clone().load(RCX, RBX, 0x2000, 8), RCX), "from the store buffer");
    assert!(!valid(stored.clone().load(RCX, RBX, 0x2007, 8), RCX), "one byte is enough");
    let through_cache =
        |script| valid_after(script, RCX, |world| world, &["store_buffer_entries=1"]);
    let retired = stored.store(RBX, RBX, 0x2100, 8);
    assert!(!through_cache(retired.load(RCX, RBX, 0x2000, 8)), "from the pre-execute cache");
}

#[test]
fn a_valid_store_over_an_invalid_one_makes_its_bytes_valid() {
    let stored = waits().store(RAX, RBX, 0x2000, 8).store(RBX, RBX, 0x2000, 4);
    assert!(valid(stored.clone().load(RCX, RBX, 0x2000, 4), RCX));
    assert!(!valid(stored.load(RCX, RBX, 0x2002, 4), RCX));
    let retired =
        waits().store(RAX, RBX, 0x2000, 8).store(RBX, RBX, 0x2000, 8).store(RBX, RBX, 0x2100, 8);
    let small = &["store_buffer_entries=1"];
    assert!(valid_after(retired.load(RCX, RBX, 0x2000, 8), RCX, |world| world, small));
}

#[test]
fn data_of_a_valid_store_is_read_without_the_cache() {
    let mut world = World::new(waits().store(RBX, RBX, 0x2000, 8).load(RCX, RBX, 0x2000, 8), &[]);
    // The store asks for its line; nobody waits for it.
    assert_eq!(world.run(1_000_000), 2);
    assert!(world.brought(0x2000));
}

#[test]
fn a_store_to_the_device_marks_its_entry() {
    let mut world = World::new(waits().store(RBX, RBX, 0x4000, 8), &["pte_inv=keep"]);
    world.run(1_000_000);
    assert!(world.table.of(4).is_inv() && !world.table.of(2).is_inv());
}

#[test]
fn an_invalid_store_to_dram_marks_its_entry_and_a_valid_one_does_not() {
    let script = waits().store(RAX, RBX, 0x2000, 8).store(RBX, RBX, 0x3000, 8);
    let mut world = World::new(script, &["pte_inv=keep"]);
    world.run(1_000_000);
    assert!(world.table.of(2).is_inv() && !world.table.of(3).is_inv());
}

#[test]
fn a_marked_entry_makes_cached_data_invalid_and_data_only_in_dram_stays_valid() {
    let script = waits().store(RAX, RBX, 0x2000, 8).load(RCX, RBX, 0x2800, 8);
    assert!(!valid_after(script.clone(), RCX, |world| world.cached(0x2800), &[]));
    assert!(valid(script, RCX));
}

#[test]
fn marks_in_entries_end_with_the_pre_execution_or_stay_as_asked() {
    let run = |set: &str| {
        let mut world = World::new(waits().store(RAX, RBX, 0x2000, 8), &[set]);
        world.run(1_000_000);
        world.table.of(2).is_inv()
    };
    assert!(!run("pte_inv=clear") && run("pte_inv=keep"));
}

#[test]
fn a_store_whose_address_is_unknown_goes_nowhere() {
    let script = waits().store(RBX, RAX, 0x2000, 8).load(RCX, RBX, 0x2000, 8);
    let mut world = World::new(script.clone(), &["pte_inv=keep"]);
    world.run(1_000_000);
    assert!(!world.table.of(2).is_inv());
    assert_eq!(world.ahead.counts.invalid, 1);
    assert!(valid(script, RCX));
}

#[test]
fn an_awaited_store_leaves_its_bytes_invalid() {
    let script = Script::new("store").store(RBX, RBX, 0x1000, 8);
    let mut world = World::new(script, &["pte_inv=keep"]);
    world.run(1_000_000);
    assert!(world.table.of(1).is_inv());
}

#[test]
fn pre_execution_ends_with_its_time_or_with_the_program() {
    let mut world = World::new(waits().work(10_000), &[]);
    assert_eq!(world.run(3_000), 3_000);
    assert_eq!(world.ahead.counts.instructions, 3_000);
    let mut world = World::new(waits().work(10), &[]);
    assert_eq!(world.run(3_000), 10);
}

#[test]
fn an_invalid_branch_is_followed_or_ends_it_as_asked() {
    let script = || waits().compute(FLAGS, RAX).branch(FLAGS).load(RCX, RBX, 0x2000, 8);
    for (set, goes_on) in [("invalid_branch=follow", true), ("invalid_branch=stop", false)] {
        let mut world = World::new(script(), &[set]);
        world.run(1_000_000);
        assert_eq!((world.brought(0x2000), world.ahead.counts.invalid_branches), (goes_on, 1));
    }
}

#[test]
fn an_invalid_miss_costs_no_time_and_gives_no_value() {
    let script =
        waits().load(RCX, RBX, 0x2000, 8).load(RDX, RCX, 0x2100, 8).load(RSI, RBX, 0x3000, 8);
    let mut world = World::new(script, &["preexecute_miss=invalid"]);
    assert_eq!(world.run(1_000_000), 3);
    assert!(world.brought(0x2000) && !world.brought(0x2100) && world.brought(0x3000));
}

#[test]
fn overlapping_misses_are_waited_for_where_their_value_is_needed_or_too_many_are_on_their_way() {
    let script = || waits().load(RCX, RBX, 0x2000, 8).load(RDX, RBX, 0x3000, 8).compute(RSI, RCX);
    let ends = |sets: &[&str]| World::new(script(), sets).run(1_000_000);
    // Two misses of 50 ns and three instructions of 1 ns.
    assert_eq!(ends(&["preexecute_miss=wait"]), 103);
    // The third instruction waits until 50 for the first line.
    assert_eq!(ends(&["preexecute_miss=overlap"]), 51);
    // The second line is asked for at 50.
    assert_eq!(ends(&["preexecute_miss=overlap", "preexecute_misses=1"]), 52);
    // A second load from the same line waits for it, too.
    let script = waits().load(RCX, RBX, 0x2000, 8).load(RDX, RBX, 0x2008, 8).compute(RSI, RDX);
    assert_eq!(World::new(script, &["preexecute_miss=overlap"]).run(1_000_000), 51);
    // A register that is written anew is not waited for.
    let script = waits().load(RCX, RBX, 0x2000, 8).compute(RCX, RBX).compute(RSI, RCX);
    assert_eq!(World::new(script, &["preexecute_miss=overlap"]).run(1_000_000), 3);
}

#[test]
fn a_translation_that_is_not_in_the_tlb_costs_a_walk_of_the_page_table() {
    let script = waits().load(RCX, RBX, 0x2000, 8).load(RDX, RBX, 0x2008, 8);
    let mut world = World::new(script, &["tlb_entries=2", "tlb_ways=1", "tlb_walk_ns=20"]);
    world.tlb.flush();
    // Both loads, a miss, a walk.
    assert_eq!(world.run(1_000_000), 2 + 50 + 20);
}

/// Any instruction over the five pages.
fn any_step() -> impl Strategy<Value = (Instr, Vec<Access>)> {
    let regs = || prop::sample::select(vec![RAX, RBX, RCX, RDX, FLAGS]);
    let address = || (1u64..6, 0u64..512).prop_map(|(page, word)| (page << 12) | (word * 8));
    let size = || prop::sample::select(vec![1u32, 4, 8, 32, 64]);
    prop_oneof![
        (regs(), regs(), address(), size()).prop_map(|(to, at, address, size)| (
            Instr::load(to, at),
            vec![Access::load(address, size)]
        )),
        (regs(), regs(), address(), size()).prop_map(|(from, at, address, size)| (
            Instr::store(from, at),
            vec![Access::store(address, size)]
        )),
        (regs(), regs()).prop_map(|(to, from)| (Instr::compute(to, from), vec![])),
        (regs(), address()).prop_map(|(from, address)| {
            let both = Instr {
                load_address: RBX,
                store_address: RBX,
                reads: from,
                writes: FLAGS,
                ..Instr::NOTHING
            };
            (both, vec![Access::load(address, 8), Access::store(address, 8)])
        }),
        regs().prop_map(|on| (Instr::branch(on), vec![])),
    ]
}

proptest! {
    /// After recovery the process, its page table and its memory are as if nothing had been
    /// executed; only the caches may hold more.
    #[test]
    fn recovery_leaves_the_architectural_state_as_it_was(
        steps in prop::collection::vec(any_step(), 0..120),
        until in 0u64..2_000,
        room in 1u32..8,
    ) {
        let script = steps.iter().fold(waits(), |script, (instr, accesses)| script.instr(*instr, accesses));
        let mut world = World::new(script, &[&format!("store_buffer_entries={room}")]);
        let state = |world: &World| {
            let entries: Vec<_> = (0..8).map(|page| world.table.of(page)).collect();
            (world.window.at, world.window.access_at, world.ahead.inv, entries, world.frames.flags.clone())
        };
        let before = state(&world);
        let ended = world.run(until);
        prop_assert!(ended <= until);
        prop_assert_eq!(state(&world), before.clone());
        prop_assert!(world.ahead.buffer.is_empty() && world.ahead.shadow.is_none());
        prop_assert!(world.frames.flags.iter().all(|flags| flags & flag::DIRTY == 0));
        // Nothing of the first is left for a second.
        world.run(until);
        prop_assert_eq!(state(&world), before);
    }
}
