// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request as an entry of a submission queue.

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::queue::{Action, Io};

/// `buffer` is the registered one in which all of its memory lies.
pub(super) fn entry(io: &Io, file: Fd, buffer: Option<u16>) -> squeue::Entry {
    let (memory, bytes, offset) = (io.memory(), io.bytes(), io.offset());
    match (io.action(), buffer) {
        (Action::Read, None) => opcode::Read::new(file, memory, bytes).offset(offset).build(),
        (Action::Read, Some(at)) => {
            opcode::ReadFixed::new(file, memory, bytes, at).offset(offset).build()
        }
        (Action::Write, None) => opcode::Write::new(file, memory, bytes).offset(offset).build(),
        (Action::Write, Some(at)) => {
            opcode::WriteFixed::new(file, memory, bytes, at).offset(offset).build()
        }
        (Action::ReadVectored, _) => {
            opcode::Readv::new(file, io.iovecs().cast(), io.pieces()).offset(offset).build()
        }
        (Action::WriteVectored, _) => {
            opcode::Writev::new(file, io.iovecs().cast(), io.pieces()).offset(offset).build()
        }
        (Action::Sync, _) => opcode::Fsync::new(file).build(),
        (Action::DataSync, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
    }
}
