// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection that blocking threads share, each with one request at a time. One of those that
//! wait reads for all; each is woken by its own answer alone.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use dwell_nfs::engine::Transport;
use dwell_nfs::rpc;
use dwell_nfs::rpc::record::{self, Records};

/// After which a datagram is sent again.
const RESEND: Duration = Duration::from_millis(200);

enum Socket {
    Stream(TcpStream),
    Datagram(UdpSocket),
}

/// The connection, with a place for each thread.
pub struct Wire {
    socket: Socket,
    /// Requests are sent whole.
    sending: Mutex<()>,
    reading: Mutex<(Records, Vec<u8>)>,
    desk: Mutex<Desk>,
    bells: Vec<Condvar>,
}

#[derive(Default)]
struct Desk {
    /// What each thread waits for.
    places: Vec<Option<Place>>,
    /// Whether a thread reads.
    read: bool,
    /// How often nothing came for so long that all is sent again.
    silences: u32,
    broken: bool,
}

struct Place {
    xid: u32,
    answer: Option<Vec<u8>>,
}

impl Wire {
    /// Connects for so many threads; no answer is longer than `largest`, in bytes.
    pub fn connect(
        transport: Transport,
        to: SocketAddr,
        largest: u32,
        threads: usize,
    ) -> io::Result<Self> {
        let socket = match transport {
            Transport::Stream => Socket::Stream(stream(to)?),
            Transport::Datagram => Socket::Datagram(datagrams(to)?),
        };
        Ok(Wire {
            socket,
            sending: Mutex::default(),
            reading: Mutex::new((Records::new(largest), vec![0; 1 << 16])),
            desk: Mutex::new(Desk {
                places: (0..threads).map(|_| None).collect(),
                ..Desk::default()
            }),
            bells: (0..threads).map(|_| Condvar::new()).collect(),
        })
    }

    /// Sends a request, its head as it stands in a stream, and waits for the answer.
    pub fn exchange(&self, thread: usize, head: &[u8], payload: &[u8]) -> Result<Vec<u8>> {
        let Some(xid) = rpc::xid(&head[record::MARK_BYTES..]) else {
            bail!("a request without a number")
        };
        let mut desk = self.desk();
        desk.places[thread] = Some(Place { xid, answer: None });
        let mut silences = desk.silences;
        drop(desk);
        self.send(head, payload)?;
        let mut desk = self.desk();
        loop {
            if let Some(answer) = desk.places[thread].as_mut().and_then(|place| place.answer.take())
            {
                desk.places[thread] = None;
                self.hand_over(&desk);
                return Ok(answer);
            }
            if desk.broken {
                bail!("the connection that threads share ended");
            }
            if desk.silences != silences {
                silences = desk.silences;
                drop(desk);
                self.send(head, payload)?;
                desk = self.desk();
                continue;
            }
            if desk.read {
                desk = self.bells[thread].wait(desk).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            desk.read = true;
            drop(desk);
            let received = self.receive();
            desk = self.desk();
            desk.read = false;
            match received {
                Ok(Some(answer)) => {
                    let of = |place: &Option<Place>| {
                        place.as_ref().is_some_and(|place| rpc::xid(&answer) == Some(place.xid))
                    };
                    if let Some(owner) = desk.places.iter().position(of) {
                        desk.places[owner].as_mut().expect("it is there").answer = Some(answer);
                        self.bells[owner].notify_one();
                    }
                }
                Ok(None) => {
                    desk.silences += 1;
                    self.bells.iter().for_each(Condvar::notify_one);
                }
                Err(error) => {
                    desk.broken = true;
                    self.bells.iter().for_each(Condvar::notify_one);
                    return Err(error);
                }
            }
        }
    }

    /// Wakes one who waits, to read.
    fn hand_over(&self, desk: &Desk) {
        let waits =
            |place: &Option<Place>| place.as_ref().is_some_and(|place| place.answer.is_none());
        if let Some(next) = desk.places.iter().position(waits).filter(|_| !desk.read) {
            self.bells[next].notify_one();
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let _whole = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.socket {
            Socket::Stream(stream) => {
                send_all(stream, &mut [IoSlice::new(head), IoSlice::new(payload)])
            }
            Socket::Datagram(socket) => {
                socket.send(&[&head[record::MARK_BYTES..], payload].concat()).map(drop)
            }
        }
    }

    /// The next answer to anybody; `None` where none came for long.
    fn receive(&self) -> Result<Option<Vec<u8>>> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let (records, buffer) = &mut *reading;
        match &self.socket {
            Socket::Stream(stream) => loop {
                if let Some(record) = records.take_next()? {
                    return Ok(Some(record.to_vec()));
                }
                match { stream }.read(records.room())? {
                    0 => bail!("the server closed the connection"),
                    bytes => records.filled(bytes),
                }
            },
            Socket::Datagram(socket) => match socket.recv(buffer) {
                Ok(bytes) => Ok(Some(buffer[..bytes].to_vec())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// A connection to the server.
pub(super) fn stream(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The same by datagrams; waiting for one ends after [`RESEND`].
pub(super) fn datagrams(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(RESEND))?;
    Ok(socket)
}

/// Sends all of it.
pub(super) fn send_all(mut stream: &TcpStream, mut left: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !left.is_empty() {
        match stream.write_vectored(left)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            bytes => IoSlice::advance_slices(&mut left, bytes),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn request(xid: u32) -> Vec<u8> {
        let mut head = record::mark(4).to_vec();
        head.extend_from_slice(&xid.to_be_bytes());
        head
    }

    fn answer(xid: u32) -> Vec<u8> {
        [&xid.to_be_bytes()[..], &xid.to_be_bytes()].concat()
    }

    #[test]
    fn threads_that_share_a_connection_get_their_own_answers_in_any_order() {
        const THREADS: u32 = 4;
        const TURNS: u32 = 100;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            // All threads' requests first, then the answers, the last one's first.
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                for _ in 0..TURNS {
                    let mut asked = [[0; 8]; THREADS as usize];
                    asked.iter_mut().for_each(|one| stream.read_exact(one).unwrap());
                    for one in asked.iter().rev() {
                        let xid = u32::from_be_bytes(one[4..].try_into().unwrap());
                        let record = [&record::mark(8)[..], &answer(xid)].concat();
                        send_all(&stream, &mut [IoSlice::new(&record)]).unwrap();
                    }
                }
            });
            let wire = Wire::connect(Transport::Stream, to, 64, THREADS as usize).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let wire = &wire;
                    scope.spawn(move || {
                        for turn in 0..TURNS {
                            let xid = thread << 20 | turn;
                            let got = wire.exchange(thread as usize, &request(xid), &[]).unwrap();
                            assert_eq!(got, answer(xid));
                        }
                    });
                }
            });
        });
    }

    #[test]
    fn a_datagram_that_was_lost_is_sent_again() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut asked = [0; 4];
                server.recv_from(&mut asked).unwrap();
                let (_, from) = server.recv_from(&mut asked).unwrap();
                server.send_to(&answer(u32::from_be_bytes(asked)), from).unwrap();
            });
            let wire = Wire::connect(Transport::Datagram, to, 64, 1).unwrap();
            assert_eq!(wire.exchange(0, &request(7), &[]).unwrap(), answer(7));
        });
    }

    #[test]
    fn a_connection_that_ends_is_an_error_for_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let wire = Wire::connect(Transport::Stream, to, 64, 3).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let wire = &wire;
                    scope.spawn(move || wire.exchange(thread, &request(thread as u32), &[]))
                })
                .collect();
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 24]).unwrap();
            drop(stream);
            assert!(threads.into_iter().all(|thread| thread.join().unwrap().is_err()));
        });
    }
}
