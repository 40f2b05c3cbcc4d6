// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways in which a file becomes memory, by name: those of the kernel, and a region's.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::units;

/// What the kernel is told of a mapping, once for all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Nothing.
    Normal,
    /// `MADV_RANDOM`; a region's own.
    Random,
    /// `MADV_SEQUENTIAL`; a region's own.
    Sequential,
    /// `MADV_WILLNEED` for all of it.
    WillNeed,
    /// `MADV_POPULATE_READ` for all of it.
    Populate,
    /// `MADV_HUGEPAGE`.
    Huge,
}

/// The thread that handles a region's faults, and the CPU that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handler {
    /// The faulting thread.
    Inline,
    /// A thread on the same CPU.
    SameCpu,
    /// A thread on another CPU, which sleeps between faults.
    OtherCpu,
    /// The same, which spins between faults.
    OtherCpuSpins,
    /// A thread wherever the scheduler puts it.
    Anywhere,
}

/// How a file becomes memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The kernel's `mmap`.
    Mmap,
    /// Anonymous memory that has the file's bytes, and is swapped to zram.
    Swap,
    /// UMap, another pager in user space.
    Umap {
        /// Bytes that it reads for one fault.
        page_bytes: usize,
    },
    /// A region of the pager.
    Region {
        /// The thread that handles its faults.
        handler: Handler,
        /// Whether it reads ahead by what it sees; hints it follows all the same.
        ahead: bool,
        /// Wait policy of its faults.
        policy: String,
        /// Whether each fault's stages are timed.
        stages: bool,
    },
    /// No memory: pages are read one by one into a buffer. What the device takes.
    Device {
        /// Wait policy of the reads.
        policy: String,
    },
}

/// A contender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// How.
    pub kind: Kind,
    /// The program's advice about the memory before the work begins.
    pub advice: Advice,
    /// Whether the program tells ahead what it will touch: by `madvise` with `MADV_WILLNEED`, or by
    /// a region's hints.
    pub hints: bool,
}

/// Names of the kernel's ways.
pub const MMAP: [&str; 8] = [
    "mmap",
    "mmap-random",
    "mmap-sequential",
    "mmap-willneed",
    "mmap-populate",
    "mmap-huge",
    "mmap-hints",
    "mmap-random-hints",
];
/// Name of anonymous memory on swap.
pub const SWAP: &str = "swap";
/// Names of UMap with its smallest page, and with larger ones.
pub const UMAP: [&str; 2] = ["umap", "umap-64k"];
/// Names of a region's ways.
pub const REGION: [&str; 14] = [
    "region",
    "region-random",
    "region-stages",
    "region-sequential",
    "region-hints",
    "region-random-hints",
    "region-spin",
    "region-spin-ahead",
    "region-spin-hints",
    "region-block",
    "region-thread",
    "region-thread-same",
    "region-thread-other",
    "region-thread-spins",
];
/// The device by itself, spun for.
pub const DEVICE: &str = "device";
/// The device by itself, blocked for.
pub const DEVICE_BLOCK: &str = "device-block";

/// All names.
fn names() -> Vec<&'static str> {
    MMAP.into_iter().chain(REGION).chain([SWAP]).chain(UMAP).chain([DEVICE, DEVICE_BLOCK]).collect()
}

impl Method {
    /// A way by its name.
    ///
    /// # Errors
    /// Another name; it says which there are.
    pub fn of(name: &str) -> Result<Self> {
        let region = |handler, ahead, policy: &str| Kind::Region {
            handler,
            ahead,
            policy: policy.to_owned(),
            stages: false,
        };
        let its = |handler| region(handler, true, "its");
        // Where one fault is timed, nothing else may be read.
        let lone = |handler| region(handler, false, "its");
        let (kind, advice, hints) = match name {
            "mmap" => (Kind::Mmap, Advice::Normal, false),
            "mmap-random" => (Kind::Mmap, Advice::Random, false),
            "mmap-sequential" => (Kind::Mmap, Advice::Sequential, false),
            "mmap-willneed" => (Kind::Mmap, Advice::WillNeed, false),
            "mmap-populate" => (Kind::Mmap, Advice::Populate, false),
            "mmap-huge" => (Kind::Mmap, Advice::Huge, false),
            "mmap-hints" => (Kind::Mmap, Advice::Normal, true),
            "mmap-random-hints" => (Kind::Mmap, Advice::Random, true),
            "region" => (its(Handler::Inline), Advice::Normal, false),
            "region-random" => (lone(Handler::Inline), Advice::Random, false),
            "region-stages" => {
                let (handler, policy) = (Handler::Inline, "its".to_owned());
                let kind = Kind::Region { handler, ahead: false, policy, stages: true };
                (kind, Advice::Random, false)
            }
            "region-sequential" => (its(Handler::Inline), Advice::Sequential, false),
            "region-hints" => (its(Handler::Inline), Advice::Normal, true),
            "region-random-hints" => (lone(Handler::Inline), Advice::Random, true),
            "region-spin" => (region(Handler::Inline, false, "spin"), Advice::Random, false),
            "region-spin-ahead" => (region(Handler::Inline, true, "spin"), Advice::Normal, false),
            "region-spin-hints" => (region(Handler::Inline, false, "spin"), Advice::Random, true),
            "region-block" => (region(Handler::Inline, false, "block"), Advice::Random, false),
            "region-thread" => (its(Handler::Anywhere), Advice::Normal, false),
            "region-thread-same" => (lone(Handler::SameCpu), Advice::Random, false),
            "region-thread-other" => (lone(Handler::OtherCpu), Advice::Random, false),
            "region-thread-spins" => (lone(Handler::OtherCpuSpins), Advice::Random, false),
            SWAP => (Kind::Swap, Advice::Normal, false),
            "umap" => (Kind::Umap { page_bytes: 4 << 10 }, Advice::Normal, false),
            "umap-64k" => (Kind::Umap { page_bytes: 64 << 10 }, Advice::Normal, false),
            DEVICE => (Kind::Device { policy: "spin".into() }, Advice::Random, false),
            DEVICE_BLOCK => (Kind::Device { policy: "block".into() }, Advice::Random, false),
            other => {
                bail!("{other}: no such way to memory; there are {}", names().join(", "))
            }
        };
        Ok(Method { name: name.to_owned(), kind, advice, hints })
    }

    /// What it does, for a report.
    pub fn settings(&self) -> Vec<String> {
        let mut settings = match &self.kind {
            Kind::Mmap => vec!["mmap of the file, shared, read-only".to_owned()],
            Kind::Swap => vec!["anonymous memory with the file's bytes, swapped to zram".into()],
            Kind::Umap { page_bytes } => {
                let pages = format!("pages of {}", units::bytes(*page_bytes as u64));
                vec!["UMap, a thread per CPU fills and one evicts".into(), pages]
            }
            Kind::Device { policy } => {
                vec![
                    "reads of one page each, past the page cache".into(),
                    format!("policy {policy}"),
                ]
            }
            Kind::Region { handler, ahead, policy, stages } => {
                let who = match handler {
                    Handler::Inline => "the faulting thread handles faults",
                    Handler::SameCpu => "a thread on the same CPU handles faults",
                    Handler::OtherCpu => "a thread on another CPU handles faults",
                    Handler::OtherCpuSpins => {
                        "a thread on another CPU, which spins for them, handles faults"
                    }
                    Handler::Anywhere => "a thread handles faults",
                };
                let ahead = if *ahead { "reads ahead" } else { "reads nothing ahead" };
                let mut settings = vec![who.into(), format!("policy {policy}"), ahead.into()];
                settings.extend(stages.then(|| "the stages of each fault are timed".into()));
                settings
            }
        };
        match self.advice {
            Advice::Normal => {}
            Advice::Random => settings.push("advice: random".into()),
            Advice::Sequential => settings.push("advice: sequential".into()),
            Advice::WillNeed => settings.push("MADV_WILLNEED for all of it".into()),
            Advice::Populate => settings.push("MADV_POPULATE_READ for all of it".into()),
            Advice::Huge => settings.push("MADV_HUGEPAGE".into()),
        }
        settings.extend(self.hints.then(|| "the program's hints".to_owned()));
        settings
    }

    /// Whether the kernel pages: it needs a limit, or it would have all memory.
    pub fn is_kernels(&self) -> bool {
        matches!(self.kind, Kind::Mmap | Kind::Swap)
    }

    /// Whether it needs a file, and no address of a scheme will do.
    pub fn needs_file(&self) -> bool {
        self.is_kernels() || matches!(self.kind, Kind::Umap { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_way_of_its_own_and_others_are_refused() {
        let names = names();
        let methods: Vec<Method> = names.iter().map(|name| Method::of(name).unwrap()).collect();
        for (at, method) in methods.iter().enumerate() {
            assert_eq!(method.name, names[at]);
            let same =
                |other: &Method| Method { name: method.name.clone(), ..other.clone() } == *method;
            assert_eq!(methods.iter().filter(|other| same(other)).count(), 1, "{}", method.name);
            assert!(!method.settings().is_empty());
        }
        let told = Method::of("mmap-often").unwrap_err().to_string();
        assert!(told.contains("mmap-often") && told.contains("region-hints"), "{told}");
    }
}
