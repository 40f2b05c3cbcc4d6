// SPDX-License-Identifier: MIT OR Apache-2.0
//! One storage request, and what it does with its memory.
#![allow(unsafe_code)]

use dwell_policy::Kind;

/// What an [`Io`] does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Device to several pieces of memory.
    ReadVectored,
    /// Several pieces of memory to device.
    WriteVectored,
    /// Make data and metadata durable.
    Sync,
    /// Make data durable.
    DataSync,
}

impl Action {
    /// The policy's word for it.
    pub const fn kind(self) -> Kind {
        match self {
            Action::Read | Action::ReadVectored => Kind::Read,
            Action::Write | Action::WriteVectored => Kind::Write,
            Action::Sync | Action::DataSync => Kind::Sync,
        }
    }

    /// The word used in errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Read | Action::ReadVectored => "read",
            Action::Write | Action::WriteVectored => "write",
            Action::Sync => "fsync",
            Action::DataSync => "fdatasync",
        }
    }
}

/// One storage request: what every storage queue takes.
///
/// It names memory that it does not own, so making one is unsafe, and it can be neither changed nor
/// copied afterwards: whoever has an `Io` may serve it, once.
#[derive(Debug)]
pub struct Io {
    action: Action,
    target: i32,
    offset: u64,
    /// Length of what is written to, in bytes; [`u64::MAX`] where that does not matter.
    length: u64,
    /// The memory, or an array of `pieces` iovecs for vectored actions.
    memory: *mut u8,
    bytes: u32,
    pieces: u32,
    may_block: bool,
    personality: u16,
}

// SAFETY: an Io is a description; whoever made it promised that its memory stays valid, from any
// thread, until the completion is out.
unsafe impl Send for Io {}

impl Io {
    /// A read into, or a write from, `bytes` bytes at `memory`.
    ///
    /// # Safety
    /// The memory stays valid (and, for a read, unaliased) as long as the `Io` exists, and until
    /// its completion is out. `target` is as [`Io::sync`] demands.
    pub unsafe fn plain(
        action: Action,
        target: i32,
        memory: *mut u8,
        bytes: u32,
        offset: u64,
    ) -> Io {
        debug_assert!(matches!(action, Action::Read | Action::Write));
        Io {
            action,
            target,
            offset,
            length: u64::MAX,
            memory,
            bytes,
            pieces: 0,
            may_block: false,
            personality: 0,
        }
    }

    /// A vectored read or write.
    ///
    /// # Safety
    /// The iovecs and the memory they name stay valid (and, for a read, unaliased) as long as the
    /// `Io` exists, and until its completion is out; `bytes` is the sum of their lengths. `target`
    /// is as [`Io::sync`] demands.
    pub unsafe fn vectored(
        action: Action,
        target: i32,
        iovecs: *const libc::iovec,
        pieces: u32,
        bytes: u32,
        offset: u64,
    ) -> Io {
        debug_assert!(matches!(action, Action::ReadVectored | Action::WriteVectored));
        let memory = iovecs.cast_mut().cast();
        Io {
            action,
            target,
            offset,
            length: u64::MAX,
            memory,
            bytes,
            pieces,
            may_block: false,
            personality: 0,
        }
    }

    /// A sync; `data_only` leaves metadata that no read needs.
    ///
    /// # Safety
    /// `target` names an open object that the caller may use, in the sense of the queue that gets
    /// the `Io`. A descriptor stays open until the completion is out, or its number is one that the
    /// caller's own caller answers for.
    pub unsafe fn sync(target: i32, data_only: bool) -> Io {
        let action = if data_only { Action::DataSync } else { Action::Sync };
        let (memory, length) = (std::ptr::null_mut(), u64::MAX);
        Io {
            action,
            target,
            offset: 0,
            length,
            memory,
            bytes: 0,
            pieces: 0,
            may_block: false,
            personality: 0,
        }
    }

    /// Says how long the file is that is written to, in bytes, to sources that cannot know.
    #[must_use]
    pub fn of_length(self, bytes: u64) -> Io {
        Io { length: bytes, ..self }
    }

    /// Says that whatever serves it may block where it must not: a ring leaves it to a thread of
    /// the kernel's.
    #[must_use]
    pub fn that_may_block(self) -> Io {
        Io { may_block: true, ..self }
    }

    /// Says as whom a ring carries it out: what
    /// [`KernelQueue::personality`](crate::kernel::KernelQueue::personality) returned for the route
    /// that it takes. A call is carried out as the calling thread.
    #[must_use]
    pub fn as_personality(self, personality: u16) -> Io {
        Io { personality, ..self }
    }

    /// The same request once more, to be served in place of this one when a queue refused it.
    ///
    /// # Safety
    /// What was promised for this `Io` holds for the other too, and never are both in flight.
    pub unsafe fn again(&self) -> Io {
        Io { ..*self }
    }

    /// What to do.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Which open object to do it on: a descriptor for kernel queues; other sources give the
    /// number a meaning of their own.
    pub fn target(&self) -> i32 {
        self.target
    }

    /// Where, in bytes; 0 for syncs.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of what is written to, in bytes; [`u64::MAX`] where that does not matter.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// As whom a ring carries it out; 0 for the thread that made the ring's calls.
    pub fn personality(&self) -> u16 {
        self.personality
    }

    /// Whether it may block who serves it.
    pub fn may_block(&self) -> bool {
        self.may_block
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Number of iovecs; 0 for plain actions.
    pub fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Start of the memory of a plain action; null for others.
    pub fn memory(&self) -> *mut u8 {
        if self.pieces == 0 { self.memory } else { std::ptr::null_mut() }
    }

    /// The iovecs of a vectored action; null for others.
    pub fn iovecs(&self) -> *const libc::iovec {
        if self.pieces == 0 { std::ptr::null() } else { self.memory.cast() }
    }

    /// The pieces of memory, whether plain or vectored: start and length.
    pub fn each_piece(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        (0..self.pieces.max(1) as usize).map(|at| {
            if self.pieces == 0 {
                (self.memory, self.bytes as usize)
            } else {
                // SAFETY: `vectored` was promised `pieces` valid iovecs.
                let piece = unsafe { *self.memory.cast::<libc::iovec>().add(at) };
                (piece.iov_base.cast(), piece.iov_len)
            }
        })
    }
}
