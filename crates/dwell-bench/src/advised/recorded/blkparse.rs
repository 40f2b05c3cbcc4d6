// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `blkparse` prints of a trace of the block layer.

use std::collections::BTreeMap;

use dwell_advise::{DeviceLoad, Issued, Operation, Seen};

/// One line: `device cpu sequence seconds pid action kind sector + blocks [program]`.
struct Event<'t> {
    device: &'t str,
    at_ns: u64,
    action: &'t str,
    operation: Operation,
    sector: u64,
    bytes: u64,
}

fn event(line: &str) -> Option<Event<'_>> {
    let mut words = line.split_whitespace();
    let device = words.next().filter(|device| device.contains(','))?;
    let at = words.nth(2)?;
    let (seconds, nanos) = at.split_once('.')?;
    let (action, kind) = (words.nth(1)?, words.next()?);
    let sector = words.next()?.parse().ok()?;
    let blocks: u64 = words.nth(1)?.parse().ok()?;
    let operation = match kind.chars().next()? {
        'D' => Operation::Discard,
        'F' => Operation::Flush,
        'R' => Operation::Read,
        'W' => Operation::Write,
        _ => Operation::Other,
    };
    let at_ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + nanos.parse::<u64>().ok()?;
    Some(Event { device, at_ns, action, operation, sector, bytes: blocks * 512 })
}

#[derive(Default)]
struct Sum {
    count: u64,
    bytes: u64,
    queue_ns: u64,
    device_ns: u64,
}

/// Every request that was issued and completed; `None` where there are none. A thread is taken to
/// wait for each read, and for nothing else.
pub fn seen(text: &str, waking_ns: u64) -> Option<Seen> {
    let (mut queued, mut issued) = (BTreeMap::new(), BTreeMap::new());
    let mut sums: BTreeMap<(&str, Operation), Sum> = BTreeMap::new();
    let (mut first, mut last) = (u64::MAX, 0);
    for event in text.lines().filter_map(event) {
        let key = (event.device, event.sector);
        (first, last) = (first.min(event.at_ns), last.max(event.at_ns));
        match event.action {
            "Q" => drop(queued.insert(key, event.at_ns)),
            "D" => drop(issued.insert(key, event.at_ns)),
            "C" => {
                let Some(from) = issued.remove(&key) else { continue };
                let sum = sums.entry((event.device, event.operation)).or_default();
                sum.count += 1;
                sum.bytes += event.bytes;
                sum.queue_ns += queued.remove(&key).map_or(0, |at| from.saturating_sub(at));
                sum.device_ns += event.at_ns.saturating_sub(from);
            }
            _ => {}
        }
    }
    let name =
        |device: &str| dwell_advise::device_name(device).unwrap_or_else(|| device.to_owned());
    let devices = sums.iter().map(|((device, operation), sum)| DeviceLoad {
        device: name(device),
        operation: *operation,
        size_bytes: sum.bytes / sum.count,
        count: sum.count,
        bytes: sum.bytes,
        queue_ns: sum.queue_ns / sum.count,
        device_ns: sum.device_ns / sum.count,
        in_flight: sum.device_ns as f64 / (last - first).max(1) as f64,
    });
    let devices: Vec<DeviceLoad> = devices.collect();
    let reads = devices.iter().filter(|load| load.operation == Operation::Read);
    let waits: Vec<_> = reads
        .map(|load| {
            let mean_ns = load.queue_ns + load.device_ns + waking_ns;
            let numbers = (load.count, mean_ns, load.size_bytes);
            super::waits(&load.device, (Operation::Read, Issued::Call), numbers, waking_ns)
        })
        .collect();
    let waited: u64 = waits.iter().map(|wait| wait.parts.total_ns()).sum();
    super::seen(waits, devices, (last.saturating_sub(first)) as f64 / 1e9, waited as f64 / 1e9)
}
