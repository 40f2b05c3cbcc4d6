// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request as an entry of a submission queue.

use io_uring::{opcode, squeue, types};

use crate::queue::{Action, Io};

pub(super) fn entry(io: &Io) -> squeue::Entry {
    let fd = types::Fd(io.target());
    match io.action() {
        Action::Read => opcode::Read::new(fd, io.memory(), io.bytes()).offset(io.offset()).build(),
        Action::Write => {
            opcode::Write::new(fd, io.memory(), io.bytes()).offset(io.offset()).build()
        }
        Action::ReadVectored => {
            opcode::Readv::new(fd, io.iovecs().cast(), io.pieces()).offset(io.offset()).build()
        }
        Action::WriteVectored => {
            opcode::Writev::new(fd, io.iovecs().cast(), io.pieces()).offset(io.offset()).build()
        }
        Action::Sync => opcode::Fsync::new(fd).build(),
        Action::DataSync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
    }
}
