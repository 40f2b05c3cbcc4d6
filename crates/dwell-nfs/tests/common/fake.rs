// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that answers as it is told to, and relays that treat messages badly.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Words as they travel.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A call that came.
#[derive(Clone)]
pub struct Call {
    pub xid: u32,
    pub program: u32,
    pub procedure: u32,
    /// Arguments, encoded.
    pub arguments: Vec<u8>,
}

impl Call {
    fn of(message: &[u8]) -> Call {
        let at = |place| word(message, place).unwrap_or(0);
        // Behind the credential and the verifier.
        let credential = 28 + 4 + at(28) as usize;
        let arguments = message.get(credential + 8..).unwrap_or_default().to_vec();
        Call { xid: at(0), program: at(12), procedure: at(20), arguments }
    }

    pub fn is_nfs(&self, procedure: u32) -> bool {
        self.program == 100_003 && self.procedure == procedure
    }
}

/// The head of an answer.
fn head(call: &Call) -> Vec<u8> {
    words(&[call.xid, 1, 0, 0, 0, 0])
}

/// The server's response to a call.
pub enum Told {
    /// These results, as of a call that was carried out.
    Results(Vec<u8>),
    /// These bytes, mark and all, and the connection stays.
    Raw(Vec<u8>),
    /// The connection is closed; a datagram is not answered.
    Close,
}

pub fn file_attributes(kind: u32, bytes: u64) -> Vec<u8> {
    let mut out = words(&[kind, 0o644, 1, 0, 0]);
    out.extend(bytes.to_be_bytes());
    out.extend(bytes.to_be_bytes());
    out.extend(words(&[0, 0, 0, 1, 0, 7, 1, 0, 1, 0, 1, 0]));
    out
}

pub fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = words(&[bytes.len() as u32]);
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// What an ordinary server says while an export is mounted and the file `x` in it is found.
pub fn ordinary(call: &Call) -> Option<Vec<u8>> {
    Some(match (call.program, call.procedure) {
        (100_005, 1) => [words(&[0]), opaque(b"root"), words(&[1, 1])].concat(),
        (100_005, 5) => [words(&[1]), opaque(b"/e"), words(&[0, 0])].concat(),
        (100_005, 3) => Vec::new(),
        (100_003, 19) => {
            let sizes = [65536, 65536, 1, 65536, 65536, 1, 65536];
            let rest = words(&[0, 0xffff_ffff, 0, 1, 0]);
            [words(&[0, 0]), words(&sizes), rest, words(&[0])].concat()
        }
        (100_003, 1) => {
            let is_root = call.arguments.ends_with(b"root");
            let attributes = if is_root { file_attributes(2, 0) } else { file_attributes(1, 100) };
            [words(&[0]), attributes].concat()
        }
        (100_003, 3) => {
            let found = [words(&[0]), opaque(b"file"), words(&[1]), file_attributes(1, 100)];
            [found.concat(), words(&[0])].concat()
        }
        _ => return None,
    })
}

/// A server that is gone when it is dropped.
pub struct Fake {
    pub address: SocketAddr,
    /// Connections that came.
    pub connections: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

type Teller = Arc<dyn Fn(&Call) -> Told + Send + Sync>;

impl Fake {
    /// Answers each call as `tell` says.
    pub fn start(tell: impl Fn(&Call) -> Told + Send + Sync + 'static) -> Fake {
        Self::start_for(u64::MAX, None, tell)
    }

    /// As [`Fake::start`], but closes all connections after the first so many, and those on which
    /// nothing comes for so long after an answer.
    pub fn start_for(
        most: u64,
        idle: Option<Duration>,
        tell: impl Fn(&Call) -> Told + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, tell): (_, Teller) = (stop.clone(), Arc::new(tell));
        let counted = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let tell = tell.clone();
                if let Ok(stream) = stream
                    && counted.fetch_add(1, Ordering::Relaxed) < most
                {
                    let _ = stream.set_nodelay(true);
                    std::thread::spawn(move || drop(serve(stream, idle, &tell)));
                }
            }
        });
        Fake { address, connections, stop }
    }

    /// As [`Fake::start`], by datagrams.
    pub fn start_datagrams(tell: impl FnMut(&Call) -> Told + Send + 'static) -> Fake {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mut tell) = (stop.clone(), tell);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((bytes, from)) = socket.recv_from(&mut buffer) else { continue };
                let call = Call::of(&buffer[..bytes]);
                if let Told::Results(results) = tell(&call) {
                    let _ = socket.send_to(&[head(&call), results].concat(), from);
                }
            }
        });
        Fake { address, connections: Arc::default(), stop }
    }

    pub fn url(&self, path: &str, options: &str) -> String {
        let port = self.address.port();
        format!("nfs://127.0.0.1:{port}{path}?mountport={port}{options}")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn serve(mut stream: TcpStream, idle: Option<Duration>, tell: &Teller) -> std::io::Result<()> {
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mut message = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        stream.read_exact(&mut message)?;
        let call = Call::of(&message);
        let reply = match tell(&call) {
            Told::Close => return stream.shutdown(Shutdown::Both),
            Told::Raw(bytes) => bytes,
            Told::Results(results) => {
                let reply = [head(&call), results].concat();
                [words(&[0x8000_0000 | reply.len() as u32]), reply].concat()
            }
        };
        stream.write_all(&reply)?;
        stream.set_read_timeout(idle)?;
    }
}

/// Where a file's server keeps its data: a server of one file, for writes, commits and reads.
#[derive(Clone, Default)]
pub struct Store {
    pub data: Arc<Mutex<HashMap<u64, Vec<u8>>>>,
}

impl Store {
    /// Answers as a server whose one file is this.
    pub fn answer(&self, call: &Call) -> Option<Vec<u8>> {
        let verifier = words(&[7, 7]);
        if call.is_nfs(7) {
            // Handle `file`, offset, count, stability, data.
            let offset =
                u64::from(word(&call.arguments, 8)?) << 32 | u64::from(word(&call.arguments, 12)?);
            let count = word(&call.arguments, 16)?;
            let data = call.arguments.get(28..28 + count as usize)?.to_vec();
            self.data.lock().unwrap().insert(offset, data);
            return Some([words(&[0, 0, 0, count, 0]), verifier].concat());
        }
        if call.is_nfs(21) {
            return Some([words(&[0, 0, 0]), verifier].concat());
        }
        ordinary(call)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let data = self.data.lock().unwrap();
        let mut offsets: Vec<_> = data.keys().copied().collect();
        offsets.sort();
        offsets.iter().flat_map(|offset| data[offset].clone()).collect()
    }
}

/// A relay that cuts its first connection after so many bytes, in each direction.
pub struct Cutter {
    pub port: u16,
    stop: Arc<AtomicBool>,
    pub connections: Arc<AtomicU64>,
}

impl Cutter {
    pub fn start(to: SocketAddr, up: u64, down: u64) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(near) = stream else { continue };
                let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
                let Ok(far) = TcpStream::connect(to) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let limit = |bytes| if first { bytes } else { u64::MAX };
                for (from, to, bytes) in [(&near, &far, limit(up)), (&far, &near, limit(down))] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || pump(from, to, bytes));
                }
            }
        });
        Cutter { port, stop, connections }
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut left: u64) {
    let mut buffer = [0; 4096];
    while left > 0 {
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match from.read(&mut buffer[..room]) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => {
                left -= bytes as u64;
                if to.write_all(&buffer[..bytes]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A relay that delays, reorders, duplicates, truncates and loses datagrams, the same ones each
/// time.
pub struct Mangler {
    pub port: u16,
    stop: Arc<AtomicBool>,
    pub mangled: Arc<AtomicU64>,
}

impl Mangler {
    pub fn start(to: SocketAddr) -> Mangler {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = near.local_addr().unwrap().port();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(to).unwrap();
        let (stop, mangled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = Arc::new(Mutex::new(None));
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        for up in [true, false] {
            let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (stop, mangled, client) = (stop.clone(), mangled.clone(), client.clone());
            std::thread::spawn(move || {
                let mut state = 12345u64 + u64::from(up);
                let mut held: Option<Vec<u8>> = None;
                let mut buffer = vec![0; 1 << 16];
                while !stop.load(Ordering::Relaxed) {
                    let got = match up {
                        true => near.recv_from(&mut buffer).map(|(bytes, from)| {
                            *client.lock().unwrap() = Some(from);
                            bytes
                        }),
                        false => far.recv(&mut buffer),
                    };
                    let send = |bytes: &[u8]| {
                        let to = *client.lock().unwrap();
                        let _ = match (up, to) {
                            (true, _) => far.send(bytes),
                            (false, Some(to)) => near.send_to(bytes, to),
                            _ => Ok(0),
                        };
                    };
                    let Ok(bytes) = got else {
                        held.take().iter().for_each(|held| send(held));
                        continue;
                    };
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let message = &buffer[..bytes];
                    let what = (state >> 33) % 20;
                    mangled.fetch_add(u64::from(what < 5), Ordering::Relaxed);
                    match what {
                        0 => {}
                        // Servers trust the network not to do that; clients must not.
                        1 if !up => send(&message[..bytes * 2 / 3]),
                        2 => (send(message), send(message)).0,
                        3 => std::thread::sleep(Duration::from_millis(3)),
                        // Sent after the next one.
                        4 if held.is_none() => {
                            held = Some(message.to_vec());
                            continue;
                        }
                        _ => send(message),
                    }
                    if what == 3 {
                        send(message);
                    }
                    held.take().iter().for_each(|held| send(held));
                }
            });
        }
        Mangler { port, stop, mangled }
    }
}

impl Drop for Mangler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
