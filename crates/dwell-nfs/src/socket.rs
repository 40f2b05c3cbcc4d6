// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets to a server: connected without waiting, from the same port again, never blocking.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};

use crate::engine::Transport;

/// Ports that only root may use. Many servers want their clients to come from there.
const RESERVED: std::ops::RangeInclusive<u16> = 600..=1023;

/// A socket and what the kernel was told of it.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: Arc<OwnedFd>,
    transport: Transport,
    low_water: usize,
}

/// What came of trying to send or to receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// So many bytes.
    Bytes(usize),
    /// The socket would have to wait.
    Later,
    /// No datagram can be so long.
    TooLong,
    /// The other side has closed.
    Closed,
}

impl Socket {
    /// Begins to connect. `from` is the port used before.
    pub fn connect(transport: Transport, to: SocketAddr, from: Option<u16>) -> io::Result<Socket> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let kind = match transport {
            Transport::Stream => SocketType::STREAM,
            Transport::Datagram => SocketType::DGRAM,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let descriptor = net::socket_with(family, kind, flags, None)?;
        let any = |port| match to {
            SocketAddr::V4(_) => SocketAddr::from(([0u8; 4], port)),
            SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], port)),
        };
        match from {
            Some(port) => {
                sockopt::set_socket_reuseaddr(&descriptor, true)?;
                // Where somebody else has it meanwhile, another one has to do.
                let _ = net::bind(&descriptor, &any(port));
            }
            None if rustix::process::geteuid().is_root() => {
                let count = RESERVED.end() - RESERVED.start() + 1;
                let first = (crate::random::random() % u32::from(count)) as u16;
                let ports = (0..count).map(|step| RESERVED.start() + (first + step) % count);
                for port in ports {
                    match net::bind(&descriptor, &any(port)) {
                        Err(Errno::ADDRINUSE) => {}
                        _ => break,
                    }
                }
            }
            None => {}
        }
        match transport {
            Transport::Stream => sockopt::set_tcp_nodelay(&descriptor, true)?,
            // A window of large answers at once; the kernel grants what its bound allows.
            Transport::Datagram => sockopt::set_socket_recv_buffer_size(&descriptor, 4 << 20)?,
        }
        match net::connect(&descriptor, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Socket { descriptor: Arc::new(descriptor), transport, low_water: 1 })
    }

    /// The descriptor, to be watched by others too.
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }

    /// Whether the connection is made; an error says that it cannot be.
    pub fn is_connected(&self) -> io::Result<bool> {
        match sockopt::socket_error(&self.descriptor)? {
            Ok(()) => match net::getpeername(&self.descriptor) {
                Ok(_) => Ok(true),
                Err(Errno::NOTCONN) => Ok(false),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// The port on this side.
    pub fn port(&self) -> Option<u16> {
        let address: SocketAddrAny = net::getsockname(&self.descriptor).ok()?;
        SocketAddr::try_from(address).ok().map(|address| address.port())
    }

    /// Sends as much as there is room for.
    pub fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<Tried> {
        let flags = net::SendFlags::NOSIGNAL;
        let mut control = net::SendAncillaryBuffer::default();
        let mut send = || net::sendmsg(&self.descriptor, slices, &mut control, flags);
        match self.past_old_error(&mut send) {
            Ok(bytes) => Ok(Tried::Bytes(bytes)),
            // A full queue of the device loses a datagram or makes a stream wait.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(Tried::Later),
            // A packet filter of this machine dropped it: as good as lost on the way.
            Err(Errno::PERM) if self.transport == Transport::Datagram => {
                Ok(Tried::Bytes(slices.iter().map(|slice| slice.len()).sum()))
            }
            Err(Errno::MSGSIZE) if self.transport == Transport::Datagram => Ok(Tried::TooLong),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a call on the socket, a second time where a datagram was too long: once, a router may
    /// have said that of an earlier one, which the kernel sends in smaller pieces from then on.
    fn past_old_error<T>(
        &self,
        call: &mut dyn FnMut() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match call() {
            Err(Errno::MSGSIZE) if self.transport == Transport::Datagram => call(),
            result => result,
        }
    }

    /// Takes what is there, as much as there is room for.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<Tried> {
        let mut receive = || net::recv(&self.descriptor, &mut *room, net::RecvFlags::empty());
        match self.past_old_error(&mut receive) {
            Ok((0, _)) if self.transport == Transport::Stream => Ok(Tried::Closed),
            Ok((bytes, _)) => Ok(Tried::Bytes(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Tried::Later),
            // Of what was sent, twice: the requests are sent again when their time comes.
            Err(Errno::MSGSIZE) if self.transport == Transport::Datagram => Ok(Tried::Later),
            Err(error) => Err(error.into()),
        }
    }

    /// Has a stream count as readable only once so many bytes are there.
    pub fn set_low_water(&mut self, bytes: usize) {
        if self.transport == Transport::Datagram || self.low_water == bytes {
            return;
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: an open descriptor, and a live int with its size. A refusal leaves the old mark,
        // which costs wake-ups and nothing else.
        let rc = unsafe {
            libc::setsockopt(
                self.descriptor.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if rc == 0 {
            self.low_water = bytes;
        }
    }
}

/// How many bytes of requests, and of their answers, this system's sockets of a kind can hold.
pub(crate) fn buffer_bytes(transport: Transport) -> (u64, u64) {
    let number = |path: &str, at: usize| -> Option<u64> {
        std::fs::read_to_string(path).ok()?.split_whitespace().nth(at)?.parse().ok()
    };
    match transport {
        Transport::Stream => {
            let most = |name: &str| number(&format!("/proc/sys/net/ipv4/{name}"), 2);
            // A receive buffer holds about half of its size in data.
            (most("tcp_wmem").unwrap_or(4 << 20), most("tcp_rmem").unwrap_or(4 << 20) / 2)
        }
        Transport::Datagram => {
            let default = |name: &str| number(&format!("/proc/sys/net/core/{name}"), 0);
            // The other side's buffer is taken to be as this system makes them. The kernel charges
            // about two bytes for each of a datagram.
            let theirs = default("rmem_default").unwrap_or(212_992);
            let ours = default("rmem_max").unwrap_or(212_992).min(4 << 20).max(theirs);
            (theirs / 2, ours / 2)
        }
    }
}
