// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace summed up, and what was seen by that.

use crate::names::Names;
use crate::raw::{DeviceKey, DeviceSum, ThreadSum, WaitKey, WaitSum};
use crate::{Cost, DeviceLoad, Issued, Operation, Parts, Seen, Wait};

/// Sums of a trace, by whatever means.
pub(crate) struct Sums {
    pub waits: Vec<(WaitKey, WaitSum)>,
    pub devices: Vec<(DeviceKey, DeviceSum)>,
    pub threads: Vec<ThreadSum>,
    pub cost: Cost,
    pub notes: Vec<String>,
}

impl Sums {
    pub fn seen(self, seconds: f64) -> Seen {
        let mut names = Names::default();
        for thread in &self.threads {
            let end = thread.name.iter().position(|&byte| byte == 0).unwrap_or(thread.name.len());
            names.learn(thread.tgid, &String::from_utf8_lossy(&thread.name[..end]));
        }
        let (mut waits, mut other_waits, mut other_ns) = (vec![], 0, 0);
        for (key, sum) in self.waits {
            match is_for_storage(&key) {
                true => waits.push(wait(&mut names, &key, &sum)),
                false => (other_waits, other_ns) = (other_waits + sum.count, other_ns + sum.nanos),
            }
        }
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.parts.total_ns()));
        let mut devices: Vec<DeviceLoad> =
            self.devices.iter().map(|(key, sum)| device(&mut names, key, sum)).collect();
        devices.sort_by(|a, b| {
            (&a.device, a.operation, a.size_bytes).cmp(&(&b.device, b.operation, b.size_bytes))
        });
        let length = |thread: &ThreadSum| thread.last.saturating_sub(thread.first);
        let thread_ns: u64 =
            self.threads.iter().map(|thread| length(thread).max(thread.nanos)).sum();
        Seen {
            seconds,
            thread_seconds: thread_ns as f64 / 1e9,
            waits,
            other_waits,
            other_seconds: other_ns as f64 / 1e9,
            devices,
            cost: self.cost,
            notes: self.notes,
        }
    }
}

/// Whether a sleep was for storage. An interrupt that ends a request may end another wait
/// meanwhile; a thread that waits for a pipe or a timer does not count as waiting for input or
/// output.
fn is_for_storage(key: &WaitKey) -> bool {
    let issued = Issued::of_call(key.call);
    let waits_anyway = matches!(issued, Issued::Sync | Issued::IoUring | Issued::Libaio);
    let through_thread = key.through_thread != 0 && issued != Issued::Other;
    match key.device {
        // io_uring says of each wait that it is for input or output, be it of a socket.
        0 => key.iowait != 0 && issued != Issued::IoUring,
        _ => key.iowait != 0 || through_thread || waits_anyway,
    }
}

/// Stands for the device of a wait that no request ended.
const PAGE_CACHE: &str = "page cache";

fn operation(key: &WaitKey) -> Operation {
    match key.device {
        0 => Operation::Other,
        _ => Operation::of_kernel(key.operation),
    }
}

fn size_bytes(bits: u8) -> u64 {
    if bits == 0 { 0 } else { 1 << bits.min(32) }
}

fn wait(names: &mut Names, key: &WaitKey, sum: &WaitSum) -> Wait {
    let [other_ns, queue_ns, device_ns, kernel_ns, wake_ns, busy_ns, ..] = sum.parts;
    Wait {
        process: key.tgid,
        program: names.program(key.tgid),
        device: if key.device == 0 { PAGE_CACHE.to_owned() } else { names.device(key.device) },
        operation: operation(key),
        issued: Issued::of_call(key.call),
        size_bytes: size_bytes(key.size_bits),
        through_thread: key.through_thread != 0,
        count: sum.count,
        parts: Parts { queue_ns, device_ns, kernel_ns, wake_ns, busy_ns, other_ns },
        latency: sum.latency.to_vec(),
    }
}

fn device(names: &mut Names, key: &DeviceKey, sum: &DeviceSum) -> DeviceLoad {
    let count = sum.count.max(1);
    DeviceLoad {
        device: names.device(key.device),
        operation: Operation::of_kernel(key.operation),
        size_bytes: size_bytes(key.size_bits),
        count: sum.count,
        bytes: sum.bytes,
        queue_ns: sum.queue_nanos / count,
        device_ns: sum.device_nanos / count,
        in_flight: sum.in_flight as f64 / count as f64,
    }
}
