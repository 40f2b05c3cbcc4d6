// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether what was seen is what the model and the plain file system say.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Model, Verdict, said};
use crate::operation::{
    BLOCK_BYTES, BLOCK_COUNT, BLOCKS, NAMES, Op, Order, RECORD_BYTES, RECORDS, Script, path,
};
use crate::pattern;
use crate::record::Seen;
use crate::run::Ran;

/// A difference between what the model expects and what was seen.
#[derive(Clone, Debug)]
pub struct Difference {
    /// In which line, if in one.
    pub line: Option<usize>,
    /// What it is.
    pub what: String,
    /// The plain file system does not do what the model says: the exerciser is wrong, or the
    /// kernel.
    pub is_models: bool,
}

/// How often a kind of operation was tried, and how often it succeeded.
pub type Counts = BTreeMap<String, (u64, u64)>;

/// Adds what a run did.
pub fn count(script: &Script, ran: &Ran, counts: &mut Counts) {
    for (line, seen) in script.lines.iter().zip(&ran.seen) {
        if let Some(seen) = seen {
            let (tried, done) = counts.entry(line.op.kind()).or_default();
            *tried += 1;
            *done += u64::from(!seen.failed());
        }
    }
}

/// The first thing in which runs and model differ.
pub fn difference(
    script: &Script,
    plain: &Ran,
    beneath: &Ran,
    through_fuse: bool,
) -> Option<Difference> {
    let plain_verdicts = match checked(script, plain, through_fuse) {
        Ok(verdicts) => verdicts,
        Err(difference) => return Some(Difference { is_models: true, ..difference }),
    };
    let verdicts = match checked(script, beneath, through_fuse) {
        Ok(verdicts) => verdicts,
        Err(mut difference) => {
            if let Some(Some(seen)) = difference.line.map(|line| plain.seen[line]) {
                difference.what += &format!("; the plain file system: {}", said(&seen));
            }
            return Some(difference);
        }
    };
    for (line, (one, other)) in plain_verdicts.iter().zip(&verdicts).enumerate() {
        if script.lines[line].op == Op::Disturb {
            // From here on some descriptors are dead on one side only.
            break;
        }
        let (Some(one), Some(other)) = (one, other) else { continue };
        if one.seen == other.seen {
            continue;
        }
        if !one.free && !other.free {
            let what =
                format!("the plain file system: {}; here: {}", said(&one.seen), said(&other.seen));
            return Some(Difference { line: Some(line), what, is_models: false });
        }
        // A copy that failed may have taken from its source all the same.
        let copies = matches!(script.lines[line].op, Op::Copy { .. });
        let came = |seen: &Seen| (seen.ret, seen.errno, if copies { seen.more } else { 0 });
        if came(&one.seen) != came(&other.seen) {
            // Both may be, and from here on the files are others. The model has followed each.
            break;
        }
    }
    None
}

/// Processes that a line kills, whose lines may stop anywhere.
fn killed(script: &Script) -> BTreeSet<u8> {
    let kill = |line: &crate::operation::Line| match line.op {
        Op::Kill { child } => Some(child),
        _ => None,
    };
    script.lines.iter().filter_map(kill).collect()
}

/// What the model says of each line, and of the files at the end.
fn checked(
    script: &Script,
    ran: &Ran,
    through_fuse: bool,
) -> Result<Vec<Option<Verdict>>, Difference> {
    let at = |line: Option<usize>, what: String| Difference { line, what, is_models: false };
    let killed = match script.order {
        Order::Free => killed(script),
        Order::Serial => BTreeSet::new(),
    };
    let mut model = Model::new(script.order);
    model.through_fuse = through_fuse;
    let mut verdicts = Vec::with_capacity(script.lines.len());
    for (number, line) in script.lines.iter().enumerate() {
        let Some(seen) = ran.seen[number] else {
            if killed.contains(&line.process) {
                if ran.begun[number] {
                    model.interrupted(line);
                }
                verdicts.push(None);
                continue;
            }
            let how = ran.trouble.as_deref().unwrap_or("nobody carried it out");
            return Err(at(Some(number), how.to_owned()));
        };
        match model.apply(line, Some(seen)) {
            Ok(verdict) => verdicts.push(Some(verdict)),
            Err(what) => {
                let more = ran.trouble.iter().map(|trouble| format!("; {trouble}"));
                return Err(at(Some(number), what + &more.collect::<String>()));
            }
        }
    }
    if let Some(trouble) = &ran.trouble {
        return Err(at(None, trouble.clone()));
    }
    left(&model, &ran.files, "at the end").map_err(|what| at(None, what))?;
    if let Some(backing) = &ran.backing {
        left(&model, backing, "at the end, in the backing directory")
            .map_err(|what| at(None, what))?;
    }
    Ok(verdicts)
}

/// Whether the files that are left are those of the model.
fn left(model: &Model, files: &[Option<Vec<u8>>], when: &str) -> Result<(), String> {
    for name in 0..NAMES as u8 {
        let found = &files[name as usize];
        let path = path(name);
        if name == RECORDS {
            records(model, found.as_deref().unwrap_or_default())
                .map_err(|what| format!("{path} {when}: {what}"))?;
            continue;
        }
        if name == BLOCKS {
            blocks(model, found.as_deref().unwrap_or_default())
                .map_err(|what| format!("{path} {when}: {what}"))?;
            continue;
        }
        let expected = model.names[name as usize].map(|inode| &model.inodes[inode]);
        match (expected, found) {
            (Some(inode), _) if inode.vague_name || inode.untracked => {}
            (None, None) => {}
            (None, Some(_)) => return Err(format!("{path} {when}: is there and should not be")),
            (Some(_), None) => return Err(format!("{path} {when}: is missing")),
            (Some(inode), Some(found)) => {
                if found.len() as u64 != inode.len() && !inode.vague_length {
                    let (is, was) = (found.len(), inode.len());
                    return Err(format!("{path} {when}: {is} bytes, should be {was}"));
                }
                let pairs = found.iter().zip(&inode.data).enumerate();
                let mut other = pairs.filter(|(place, (is, was))| {
                    is != was && inode.knows(*place as u64..*place as u64 + 1)
                });
                if let Some((place, (is, was))) = other.next() {
                    let more = other.count();
                    return Err(format!(
                        "{path} {when}: byte {place} is {is:#x}, should be {was:#x}, and {more} more differ"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Records of several actors come whole, each actor's in its order, none twice, none lost.
fn records(model: &Model, found: &[u8]) -> Result<(), String> {
    if !found.len().is_multiple_of(RECORD_BYTES) {
        return Err(format!("{} bytes are no whole records", found.len()));
    }
    let mut known = BTreeMap::new();
    for (actor, records) in &model.records {
        for (place, (seed, _)) in records.iter().enumerate() {
            known.insert(pattern::bytes(RECORD_BYTES, *seed), (*actor, place));
        }
    }
    let mut next: BTreeMap<(u8, u8), usize> = BTreeMap::new();
    for (number, record) in found.chunks(RECORD_BYTES).enumerate() {
        let Some((actor, place)) = known.get(record) else {
            return Err(format!("record {number} is nobody's"));
        };
        let due = next.entry(*actor).or_default();
        if place != due {
            return Err(format!("record {number} is number {place} of {actor:?}, due is {due}"));
        }
        *due += 1;
    }
    for (actor, records) in &model.records {
        let certain = records.iter().filter(|(_, certain)| *certain).count();
        let there = next.get(actor).copied().unwrap_or(0);
        if there < certain {
            return Err(format!("{there} of {certain} records of {actor:?} are there"));
        }
    }
    Ok(())
}

/// Each block is what somebody wrote last.
fn blocks(model: &Model, found: &[u8]) -> Result<(), String> {
    for block in 0..BLOCK_COUNT {
        let from = block as usize * BLOCK_BYTES;
        let Some(found) = found.get(from..from + BLOCK_BYTES) else {
            return Err(format!("block {block} is missing"));
        };
        let mut last = model.blocks.iter().filter(|((other, ..), _)| *other == block).peekable();
        let none = last.peek().is_none();
        let fine = none && found.iter().all(|byte| *byte == 0)
            || last
                .flat_map(|(_, seeds)| seeds)
                .any(|seed| pattern::bytes(BLOCK_BYTES, *seed) == found);
        let interrupted =
            model.blocks.iter().any(|((other, ..), seeds)| *other == block && seeds.len() > 1);
        if !fine && !interrupted {
            return Err(format!("block {block} is no block that anybody wrote last"));
        }
    }
    Ok(())
}
