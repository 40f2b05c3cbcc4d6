// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every number and choice of a simulation: its default, its unit, where the paper says it or that
//! it does not.
//!
//! Sections are those of "How to Steal CPU Idle Time When Synchronous I/O Mode Becomes Promising",
//! DAC 2024, doi 10.1145/3649329.3655929.

mod check;

use serde::{Deserialize, Serialize};

use crate::words::{Value, words};

/// Whether the paper gives a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// The default is the paper's value.
    Given,
    /// The paper leaves it open; the default is ours.
    Open,
}

/// One parameter as a table shows it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Field {
    /// The word that sets it.
    pub name: &'static str,
    /// Its unit, or the words it may be.
    pub unit: &'static str,
    /// The paper's section that it belongs to.
    pub section: &'static str,
    /// Whether the paper gives it.
    pub said: Said,
    /// What it is.
    pub doc: &'static str,
}

/// Why a parameter was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// There is no `=` in it.
    #[error("`{0}`: write a parameter as name=value")]
    NoValue(String),
    /// Nobody knows that name.
    #[error("no parameter is called `{name}`{}", near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    Unknown {
        /// What was asked for.
        name: String,
        /// The name most like it.
        near: Option<&'static str>,
    },
    /// The value does not fit.
    #[error("{name}={value}: {why}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What it was to be.
        value: String,
        /// What it must be.
        why: String,
    },
}

macro_rules! params {
    ($($(#[doc = $doc:literal])* $name:ident: $ty:ty = $default:expr, $unit:literal, $section:literal, $said:ident;)*) => {
        /// The parameters of one simulation. [`Params::FIELDS`] tells of each its unit, its section
        /// in the paper and whether the paper leaves it open.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Params {
            $($(#[doc = $doc])* #[doc = concat!("\n\nUnit: ", $unit, ". Paper: ", $section, ", ", stringify!($said), ".")] pub $name: $ty,)*
        }

        impl Default for Params {
            fn default() -> Self {
                Params { $($name: $default,)* }
            }
        }

        impl Params {
            /// All parameters, in the order in which they are declared.
            pub const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($name),
                unit: $unit,
                section: $section,
                said: Said::$said,
                doc: concat!($($doc),*),
            },)*];

            /// The value of a parameter as text that [`Params::set`] takes; `None` when there is no
            /// such parameter.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.show()),)*
                    _ => None,
                }
            }

            fn put(&mut self, name: &str, value: &str) -> Result<(), ParamError> {
                match name {
                    $(stringify!($name) => {
                        self.$name = Value::parse(value).map_err(|why| ParamError::Value {
                            name: stringify!($name), value: value.into(), why,
                        })?;
                        Ok(())
                    })*
                    _ => Err(ParamError::Unknown { name: name.into(), near: near(name) }),
                }
            }
        }
    };
}

words! {
    /// Where the pre-execute cache comes from: ways or sets of the last-level cache, or storage of
    /// its own.
    Split { Ways = "ways", Sets = "sets", Own = "own" }
}
words! {
    /// Which page leaves DRAM when a frame is needed.
    Replacement { Clock = "clock", Lru = "lru", Fifo = "fifo" }
}
words! {
    /// Where a page is before its first use.
    FirstTouch { Anonymous = "anonymous", Storage = "storage", Zero = "zero" }
}
words! {
    /// What a prefetched page costs when it is first used.
    Prefetched { Minor = "minor-fault", Mapped = "mapped" }
}
words! {
    /// How the processes of a batch get their nice values where the batch gives none.
    Priorities { Spread = "spread", Random = "random" }
}
words! {
    /// Where a process that woke up joins the ready queue.
    WakeTo { Tail = "tail", Head = "head" }
}
words! {
    /// How Sync_Prefetch chooses pages.
    PrefetchBy { Group = "group", Virtual = "virtual" }
}
words! {
    /// How a self-improving thread learns that the page is there.
    Recovery { Timer = "timer", Interrupt = "interrupt" }
}
words! {
    /// What a pre-executed load does while its line comes from DRAM.
    PreMiss { Wait = "wait", Overlap = "overlap", Invalid = "invalid" }
}
words! {
    /// When Sync_Runahead pre-executes.
    RunaheadAt { Fault = "fault", Miss = "miss", Both = "both" }
}
words! {
    /// What pre-execution does at a branch whose condition is invalid.
    InvalidBranch { Follow = "follow", Stop = "stop" }
}
words! {
    /// What becomes of INV bits in page-table entries when pre-execution ends.
    PteInv { Clear = "clear", Keep = "keep" }
}

params! {
    /// Time one instruction takes when nothing stalls it.
    instruction_ps: u64 = 400, "ps", "4.1", Open;
    /// Cache line; 64 or 128.
    line_bytes: u64 = 64, "bytes", "4.1", Open;
    /// First-level data cache; 0 for none.
    l1_bytes: u64 = 32 << 10, "bytes", "4.1", Open;
    /// Ways of the first-level cache.
    l1_ways: u64 = 8, "ways", "4.1", Open;
    /// Second-level cache; 0 for none.
    l2_bytes: u64 = 0, "bytes", "4.1", Open;
    /// Ways of the second-level cache.
    l2_ways: u64 = 16, "ways", "4.1", Open;
    /// Stall of an access that the second level answers.
    l2_hit_ns: u64 = 4, "ns", "4.1", Open;
    /// Last-level cache, the pre-execute cache included.
    llc_bytes: u64 = 8 << 20, "bytes", "4.1", Given;
    /// Ways of the last-level cache.
    llc_ways: u64 = 16, "ways", "4.1", Given;
    /// Stall of an access that the last level answers.
    llc_hit_ns: u64 = 10, "ns", "4.1", Open;
    /// Stall of an access that DRAM answers.
    dram_ns: u64 = 50, "ns", "4.1", Given;
    /// Part of the last-level cache that becomes the pre-execute cache in policies that
    /// pre-execute.
    preexecute_cache_percent: u64 = 50, "percent", "4.1", Given;
    /// Whether that part is taken as ways or as sets, or is a cache of its own of that size.
    preexecute_cache_split: Split = Split::Ways, "ways, sets, own", "4.1", Open;
    /// Translations that the TLB holds; 0 for a TLB that never misses.
    tlb_entries: u64 = 1_536, "entries", "2.1.1", Open;
    /// Ways of the TLB.
    tlb_ways: u64 = 12, "ways", "2.1.1", Open;
    /// Stall of an access whose translation is not in the TLB.
    tlb_walk_ns: u64 = 10, "ns", "2.1.1", Open;
    /// CPU time to take the translation of a page that leaves DRAM back.
    tlb_shootdown_ns: u64 = 100, "ns", "2.1.1", Open;
    /// DRAM; 0 sizes it to the working sets of the batch.
    dram_bytes: u64 = 0, "bytes", "4.1", Given;
    /// DRAM as part of the working sets, where it is sized to them.
    dram_percent: u64 = 100, "percent", "4.1", Given;
    /// Part of the last-level cache's misses, first ones left out, that a working set must answer.
    working_set_percent: f64 = 99.0, "percent", "4.1", Given;
    /// Which page leaves DRAM.
    replacement: Replacement = Replacement::Clock, "clock, lru, fifo", "4.1", Open;
    /// Where a page is before its first use: nowhere yet (a zeroed page) if the first access stores
    /// to it and otherwise on the device (anonymous), always on the device, or always nowhere.
    first_touch: FirstTouch = FirstTouch::Anonymous, "anonymous, storage, zero", "2.1", Open;
    /// What the first use of a prefetched page costs: a minor fault, or nothing.
    prefetched: Prefetched = Prefetched::Minor, "minor-fault, mapped", "3.4.1", Open;
    /// CPU time of a major fault: entering the kernel, its handler, leaving.
    kernel_entry_ns: u64 = 500, "ns", "3.1", Open;
    /// CPU time of a minor fault, the entry included.
    minor_fault_ns: u64 = 500, "ns", "3.1", Open;
    /// CPU time to hand one request to the device.
    submit_ns: u64 = 100, "ns", "3.1", Open;
    /// CPU time of one completion interrupt.
    interrupt_ns: u64 = 500, "ns", "3.4.3", Open;
    /// One context switch.
    switch_ns: u64 = 7_000, "ns", "4.1", Given;
    /// Lines of the caches that the kernel's own data takes at each switch.
    switch_lines: u64 = 0, "lines", "2.1.1", Open;
    /// Latency of one read on the device, before its transfer.
    device_read_ns: u64 = 3_000, "ns", "4.1", Given;
    /// Latency of one write on the device, after its transfer.
    device_write_ns: u64 = 3_000, "ns", "4.1", Open;
    /// Requests that the device serves at the same time.
    device_channels: u64 = 16, "requests", "3.4.1", Open;
    /// Longest deviation of a latency from its mean, both ways, drawn evenly.
    device_jitter_percent: u64 = 0, "percent", "4.1", Open;
    /// Lanes of the link.
    link_lanes: u64 = 4, "lanes", "4.1", Given;
    /// Bandwidth of one lane.
    link_lane_mb_per_s: u64 = 3_983, "MB/s", "4.1", Given;
    /// Whether changed pages that leave DRAM are written to the device.
    write_back: bool = true, "true, false", "4.1", Open;
    /// Factor on the time slices, which are 800 ms at nice -20 and 5 ms at nice 19.
    slice_scale: f64 = 1.0, "factor", "4.1", Given;
    /// Nice values: evenly from -20 to 19 in random order, or drawn at random without repeats.
    priorities: Priorities = Priorities::Spread, "spread, random", "4.1", Open;
    /// Where a process that woke up joins the ready queue.
    wake_to: WakeTo = WakeTo::Tail, "tail, head", "4.1", Open;
    /// Pages that a walk of the page table prefetches at each fault.
    prefetch_pages: u64 = 8, "pages", "3.4.1", Open;
    /// Entries that such a walk looks at before it gives up.
    prefetch_walk_entries: u64 = 1_024, "entries", "3.4.1", Open;
    /// CPU time to look at one entry.
    walk_entry_ps: u64 = 1_000, "ps", "3.4.1", Open;
    /// How Sync_Prefetch chooses pages: the aligned group of the page (footnote 5), or by walking
    /// on in the page table.
    sync_prefetch_by: PrefetchBy = PrefetchBy::Group, "group, virtual", "4.1", Open;
    /// Pages of one such group.
    prefetch_group_pages: u64 = 8, "pages", "4.1", Open;
    /// CPU time to get from the fault handler to an ITS thread; the paper says hundreds of ns.
    its_entry_ns: u64 = 300, "ns", "3.2", Open;
    /// Whether ITS prefetches.
    its_prefetch: bool = true, "true, false", "3.4.1", Given;
    /// Whether ITS pre-executes.
    its_preexecute: bool = true, "true, false", "3.4.2", Given;
    /// Whether ITS lets processes of lower priority give way.
    its_sacrifice: bool = true, "true, false", "3.3", Given;
    /// When Sync_Runahead pre-executes: during page faults (footnote 4 and 4.2.1), during misses of
    /// the last-level cache (4.1), or both.
    runahead_at: RunaheadAt = RunaheadAt::Fault, "fault, miss, both", "4.1", Open;
    /// What a pre-executed load does while its line comes from DRAM: wait for it, let what follows
    /// go on until its value is needed (overlap), or go on and be invalid.
    preexecute_miss: PreMiss = PreMiss::Overlap, "wait, overlap, invalid", "3.4.2", Open;
    /// Lines that pre-execution can fetch from DRAM at the same time.
    preexecute_misses: u64 = 10, "lines", "3.4.2", Open;
    /// What pre-execution does at a branch whose condition is invalid: follow the trace, or end.
    invalid_branch: InvalidBranch = InvalidBranch::Follow, "follow, stop", "3.4.2", Open;
    /// Stores that the store buffer holds before they reach the pre-execute cache.
    store_buffer_entries: u64 = 56, "stores", "3.4.2", Open;
    /// Whether INV bits in page-table entries end with the pre-execution that set them.
    pte_inv: PteInv = PteInv::Clear, "clear, keep", "3.4.2", Open;
    /// How the end of the wait is noticed during pre-execution.
    recovery: Recovery = Recovery::Timer, "timer, interrupt", "3.4.3", Given;
    /// Period of the timer that looks whether the page is there.
    recovery_timer_ns: u64 = 100, "ns", "3.4.3", Open;
    /// CPU time to restore the registers, the branch history and the return-address stack.
    recovery_restore_ns: u64 = 100, "ns", "3.4.3", Open;
}

/// The open parameters as the study of the paper's figures fixes them: value, section, our reading.
pub const STUDY: &str = include_str!("../model/its.toml");

/// One entry of [`STUDY`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The value.
    pub value: String,
    /// The paper's section.
    pub section: String,
    /// How we read that section.
    pub reading: String,
}

/// The entries of [`STUDY`] by parameter.
pub fn choices() -> std::collections::BTreeMap<String, Choice> {
    toml::from_str(STUDY).expect("the file is tested")
}

/// The size of a page, in bytes: the page tables have four levels of 512 entries.
pub const PAGE_BYTES: u64 = 4096;

impl Params {
    /// Sets one parameter from `name=value`. Sizes may end in K, M or G.
    pub fn set(&mut self, assignment: &str) -> Result<(), ParamError> {
        let (name, value) =
            assignment.split_once('=').ok_or_else(|| ParamError::NoValue(assignment.into()))?;
        self.put(name.trim(), value.trim())
    }
}

/// All parameters as a Markdown table, as it stands in `docs/research/simulator.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "| parameter | default | unit | paper | what | our reading |\n|---|---|---|---|---|---|\n",
    );
    let (params, choices) = (Params::default(), choices());
    for field in Params::FIELDS {
        let open = if field.said == Said::Open { ", open" } else { "" };
        let value = params.get(field.name).unwrap_or_default();
        text += &format!(
            "| `{}` | {value} | {} | §{}{open} | {} | {} |\n",
            field.name,
            field.unit,
            field.section,
            field.doc.trim(),
            choices.get(field.name).map_or("", |choice| &choice.reading),
        );
    }
    text
}

/// The parameter whose name is most like `name`.
fn near(name: &str) -> Option<&'static str> {
    let shared = |other: &str| {
        other
            .split('_')
            .filter(|part| part.len() > 2 && name.contains(part))
            .map(str::len)
            .sum::<usize>()
    };
    Params::FIELDS
        .iter()
        .map(|field| field.name)
        .max_by_key(|other| shared(other))
        .filter(|other| shared(other) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_machine_and_survives_text_and_toml() {
        let mut params = Params::default();
        params.check().unwrap();
        for field in Params::FIELDS {
            let value = params.get(field.name).unwrap();
            params.set(&format!("{}={value}", field.name)).unwrap();
            assert!(!field.doc.is_empty() && !field.unit.is_empty(), "{}", field.name);
        }
        assert_eq!(params, Params::default());
        assert_eq!(toml::from_str::<Params>(&toml::to_string(&params).unwrap()).unwrap(), params);
    }

    #[test]
    fn the_study_fixes_what_the_paper_leaves_open_and_nothing_else() {
        let mut choices = choices();
        for field in Params::FIELDS.iter().filter(|field| field.said == Said::Open) {
            let choice = choices.remove(field.name).expect(field.name);
            assert_eq!(Params::default().get(field.name), Some(choice.value), "{}", field.name);
            assert_eq!(choice.section, field.section, "{}", field.name);
            assert!(choice.reading.len() > 10, "{}", field.name);
        }
        assert!(choices.is_empty(), "{choices:?}");
    }

    #[test]
    fn the_document_lists_every_parameter() {
        let docs = include_str!("../../../docs/research/simulator.md");
        assert!(
            docs.ends_with(&markdown()),
            "end docs/research/simulator.md with:\n{}",
            markdown()
        );
    }

    #[test]
    fn a_wrong_parameter_says_what_would_be_right() {
        let mut params = Params::default();
        let says = |params: &mut Params, text: &str| params.set(text).unwrap_err().to_string();
        assert_eq!(says(&mut params, "switch"), "`switch`: write a parameter as name=value");
        assert_eq!(
            says(&mut params, "switch_cost=1"),
            "no parameter is called `switch_cost`; did you mean `switch_lines`?"
        );
        assert_eq!(
            says(&mut params, "dram_ns=fast"),
            "dram_ns=fast: must be a whole number, optionally with K, M or G"
        );
        assert_eq!(
            says(&mut params, "recovery=soon"),
            "recovery=soon: must be one of: timer, interrupt"
        );
        params.set("llc_bytes = 3M").unwrap();
        assert!(params.check().unwrap_err().to_string().starts_with("llc_bytes=3145728: must be"));
        assert!(toml::from_str::<Params>("swtich_ns = 1").is_err());
    }
}
