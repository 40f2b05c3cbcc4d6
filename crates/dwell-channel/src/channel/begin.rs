// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command, checked once it is copied, and its next piece.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use dwell::queue::{Action, Io};

use super::Channel;
use super::turn::Part;
use crate::access::{self, Access};
use crate::device::{Begun, Device, Errand};
use crate::table::Table;
use crate::wire::{Done, Opcode};

/// Bytes of one command that are asked of a device at a time, past the page cache.
const DIRECT_PIECE_BYTES: u32 = 1 << 20;

/// What it takes to begin a piece of a command.
pub(super) struct Task<'a> {
    /// The channel's number.
    pub number: u64,
    pub channel: &'a Arc<Channel>,
    pub part: Part,
    /// That are copied at most.
    pub most_bytes: u32,
    pub table: &'a mut Table<Access>,
    pub device: &'a mut Device,
    /// 0 until somebody asked.
    pub now_ns: &'a mut u64,
}

/// Checks a command against the table and serves its next piece, or sends it on its way.
#[inline]
pub(super) fn begin(task: Task<'_>) -> Begun {
    let Task { number, channel, part, most_bytes, table, device, now_ns } = task;
    let command = &part.command;
    let over = |result| Begun::Over(0, result);
    let Some((open, access)) = table.get(command.entry, command.generation) else {
        return over(Done::MISSING);
    };
    let rights = open.rights;
    let writes = command.opcode == Opcode::Write;
    let may_write = match access {
        Access::Memory { write, .. } | Access::Device { write, .. } => *write,
    };
    match command.opcode {
        Opcode::Read if !rights.read => return over(-libc::EBADF),
        _ if writes && !rights.write => return over(-libc::EBADF),
        _ if writes && !may_write => return over(Done::KERNEL),
        _ => {}
    }
    let end = command.offset.checked_add(u64::from(command.bytes));
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        return over(-libc::EINVAL);
    }
    let Some(memory) = channel.shared.data(command.place, command.bytes) else {
        return over(-libc::EFAULT);
    };
    if command.bytes == 0 && !matches!(command.opcode, Opcode::Sync | Opcode::DataSync) {
        return over(0);
    }
    // SAFETY: no more was moved than the command has bytes, which all lie in the data area.
    let there = unsafe { memory.add(part.moved as usize) };
    let offset = command.offset + u64::from(part.moved);
    match access {
        Access::Memory { mapping, .. } => {
            let bytes = part.next_bytes(most_bytes);
            Begun::Over(
                bytes,
                match command.opcode {
                    // A file in memory is as durable as it will ever be.
                    Opcode::Sync | Opcode::DataSync => 0,
                    // SAFETY: the memory lies in the data area, which belongs to no file that is
                    // served.
                    Opcode::Read => unsafe { mapping.read(there, bytes, offset) },
                    Opcode::Write => {
                        // SAFETY: as above.
                        let done = unsafe { mapping.write(there, bytes, offset, &open.file) };
                        if done.is_some_and(|done| done > 0) {
                            if *now_ns == 0 {
                                *now_ns = since_1970_ns();
                            }
                            open.inode.written(*now_ns);
                            open.inode.changed();
                        }
                        done.unwrap_or(Done::KERNEL)
                    }
                },
            )
        }
        Access::Device { direct, may_block, .. } => {
            let past_the_cache = direct.as_ref().filter(|(_, alignment)| {
                let all = command.offset | u64::from(command.bytes) | memory as u64;
                all.is_multiple_of(u64::from(*alignment))
            });
            // What lies in the page cache is copied by this thread.
            let most = if past_the_cache.is_some() { DIRECT_PIECE_BYTES } else { most_bytes };
            let bytes = part.next_bytes(most);
            if writes && offset + u64::from(bytes) > access::length(&open.file) {
                return over(Done::KERNEL);
            }
            let file = past_the_cache.map_or(&open.file, |(file, _)| &**file);
            let target = file.as_raw_fd();
            let io = match command.opcode {
                // SAFETY: the errand below keeps the file open.
                Opcode::Sync => unsafe { Io::sync(target, false) },
                // SAFETY: as above.
                Opcode::DataSync => unsafe { Io::sync(target, true) },
                // SAFETY: the memory lies in a mapping that the errand below keeps until the
                // completion is out; others may change it, and the kernel copies it like any shared
                // memory.
                Opcode::Read => unsafe { Io::plain(Action::Read, target, there, bytes, offset) },
                // SAFETY: as above.
                Opcode::Write => unsafe { Io::plain(Action::Write, target, there, bytes, offset) },
            };
            let errand = Errand {
                channel: number,
                account: channel.account,
                part,
                piece: bytes,
                open: open.clone(),
                // Only of those that go there: a ring that polls refuses any other.
                direct: past_the_cache.map(|(file, _)| file.clone()),
                writes,
                may_block: *may_block,
                polled: false,
                _shared: channel.shared.clone(),
            };
            device.begin(io, errand)
        }
    }
}

fn since_1970_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}
