// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Unix socket between a client and the daemon: it makes the channel, rings the doorbell of
//! whoever sleeps, and tells each side when the other is gone.
//!
//! No call here can block, whatever flags the other side has set on what both share.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// Listens under an abstract name.
///
/// # Errors
/// What the system says: a name that is taken, above all.
pub fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Takes the next connection; `None` where none waits.
///
/// # Errors
/// What the system says: no descriptors left, above all.
pub fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, FLAGS) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to an abstract name.
///
/// # Errors
/// What the system says: nobody listens there, above all.
pub fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// The user that the other side connected as.
///
/// # Errors
/// What the system says.
pub fn peer_uid(socket: &OwnedFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Sends a message, and a descriptor with it.
///
/// # Errors
/// What the system says; a full socket too.
pub fn send(socket: &OwnedFd, message: &[u8], with: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let descriptors = with.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        beside.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut beside, SEND)?;
    Ok(())
}

/// What came.
#[derive(Debug)]
pub enum Came {
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    End,
    /// A message of so many bytes, and the descriptor that came with it.
    Message(usize, Option<OwnedFd>),
}

/// Takes the next message, if there is one. Descriptors beyond the first, and all where
/// `descriptors` is not set, are closed by the kernel.
pub fn receive(socket: &OwnedFd, message: &mut [u8], descriptors: bool) -> Came {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = match descriptors {
        true => RecvAncillaryBuffer::new(&mut space),
        false => RecvAncillaryBuffer::default(),
    };
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(message)], &mut beside, flags) {
        Ok(came) if came.bytes > 0 => {
            let descriptor = beside.drain().find_map(|part| match part {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            Came::Message(came.bytes, descriptor)
        }
        Err(Errno::AGAIN | Errno::INTR) => Came::Nothing,
        // An empty message is no message of this protocol.
        _ => Came::End,
    }
}

/// Wakes the other side. A socket that is full will wake it anyway.
pub fn ring(socket: &OwnedFd) {
    let _ = rustix::net::send(socket, b"!", SEND);
}

/// Takes what rang; whether the other side is still there. A flood is left for the next time.
pub fn drain(socket: &OwnedFd) -> bool {
    const MOST: usize = 16;
    let mut message = [0; 8];
    for _ in 0..MOST {
        match receive(socket, &mut message, false) {
            Came::Nothing => break,
            Came::End => return false,
            Came::Message(..) => {}
        }
    }
    true
}

/// Ends the connection: the other side sees it at once.
pub fn end(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
}
