// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns any bytes into what a client may do to a daemon, and sees whether the daemon lives and a
//! file that was not granted stays as it was. The fuzzer and an everyday test share it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::grants::{Grants, Inodes, OpenFile};
use dwell_channel::layout::{Layout, Mark};
use dwell_channel::shared::Shared;
use dwell_channel::socket::{self, Came};
use dwell_channel::wire::{Hello, Welcome};

const ENTRIES: u32 = 8;
const DATA_BYTES: u64 = 8192;
const CANARY: &[u8] = &[0xca; 8192];

struct Target {
    daemon: Daemon,
    victim: Arc<OpenFile>,
    canary: Arc<OpenFile>,
}

/// One daemon for all inputs: it has to survive them all.
fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let inodes = Inodes::default();
        let open = |content: &[u8]| {
            use std::os::unix::fs::FileExt;
            let file = tempfile::tempfile_in("/dev/shm").expect("a file in /dev/shm");
            file.write_all_at(content, 0).expect("writing it");
            let inode = inodes.of(&file).expect("its inode");
            Arc::new(OpenFile::new(file, libc::O_RDWR, inode))
        };
        let daemon = Daemon::start(Options::default()).expect("a daemon");
        let victim = open(&[1; 8192]);
        Target { daemon, victim, canary: open(CANARY) }
    })
}

impl Target {
    fn connect(&self) -> (OwnedFd, Shared, [u8; 16]) {
        let socket = socket::connect(self.daemon.place()).expect("the daemon listens");
        let hello = Hello { entries: ENTRIES, data_bytes: DATA_BYTES };
        socket::send(&socket, &hello.message(), None).expect("there is room in the socket");
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let mut message = [0; 64];
            match socket::receive(&socket, &mut message, true) {
                Came::Message(bytes, memory) => {
                    let welcome = Welcome::parse(&message[..bytes]).expect("a welcome");
                    assert_eq!(welcome.error, 0);
                    let layout = Layout::new(ENTRIES, DATA_BYTES).expect("a layout");
                    let memory = memory.expect("memory beside the welcome");
                    let shared = Shared::adopt(memory, layout).expect("sealed memory");
                    return (socket, shared, welcome.token);
                }
                Came::Nothing => {
                    assert!(Instant::now() < until, "the daemon does not answer");
                    std::thread::sleep(Duration::from_micros(50));
                }
                Came::End => panic!("the daemon refuses"),
            }
        }
    }

    /// The daemon still serves others, and nobody touched what was not granted.
    fn lives(&self) {
        use std::os::unix::fs::FileExt;
        let mut seen = vec![0; CANARY.len()];
        self.canary.file.read_exact_at(&mut seen, 0).expect("the canary");
        assert!(seen == CANARY, "a file was written that was never granted");
        assert_eq!(self.victim.file.metadata().expect("the victim").len(), 8192);
        let _ = self.connect();
    }
}

/// Bytes as commands, cursors and stray stores.
pub fn ring(data: &[u8]) {
    let target = target();
    let (socket, shared, token) = target.connect();
    let Ok(granted) = target.daemon.grant(&token, &target.victim) else { return };
    let (mut tail, mut rest) = (0u32, data);
    while let Some((kind, after)) = rest.split_first() {
        rest = after;
        let Some((bytes, after)) = rest.split_first_chunk::<32>() else { break };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at * 8 + n]));
        rest = match kind {
            0..=199 => {
                let slot = (tail % ENTRIES) as usize * 4;
                for at in 0..4 {
                    shared.commands()[slot + at].store(word(at), SeqCst);
                }
                // Half of them come as far as the file.
                if kind & 1 == 0 {
                    let names = u64::from(granted.entry) | u64::from(granted.generation) << 32;
                    shared.commands()[slot + 1].store(names, SeqCst);
                    shared.commands()[slot]
                        .store((word(0) & !0xffff_ffff) | (1 + word(0) % 4), SeqCst);
                }
                if kind & 2 == 0 {
                    shared.commands()[slot + 2].store(word(2) % 10_000, SeqCst);
                    let lengths = (word(3) % 9000) | (((word(3) >> 32) % 9000) << 32);
                    shared.commands()[slot + 3].store(lengths, SeqCst);
                }
                tail = tail.wrapping_add(1);
                // Some lie beside the cursor too, there or for another.
                if kind & 12 == 0 {
                    for at in 0..4 {
                        let beside = shared.commands()[slot + at].load(SeqCst);
                        shared.beside_commands().words[at].store(beside, SeqCst);
                    }
                    shared
                        .beside_commands()
                        .belongs_to
                        .store(tail.wrapping_add(u32::from(kind >> 7)), SeqCst);
                }
                shared.mark(Mark::CommandTail).store(tail, SeqCst);
                after
            }
            200..=209 => {
                shared.mark(Mark::CommandTail).store(word(0) as u32, SeqCst);
                after
            }
            210..=219 => {
                shared.mark(Mark::CompletionHead).store(word(0) as u32, SeqCst);
                after
            }
            220..=239 => {
                let taken = shared.mark(Mark::CompletionTail).load(SeqCst);
                shared.mark(Mark::CompletionHead).store(taken, SeqCst);
                after
            }
            _ => {
                for mark in [Mark::CommandHead, Mark::CompletionTail, Mark::ClientAsleep] {
                    shared.mark(mark).store(word(1) as u32, SeqCst);
                }
                after
            }
        };
        socket::ring(&socket);
        if kind % 8 == 0 {
            std::thread::yield_now();
        }
    }
    let until = Instant::now() + Duration::from_millis(2);
    while Instant::now() < until && shared.mark(Mark::CommandHead).load(SeqCst) != tail {
        std::thread::yield_now();
    }
    drop(socket);
    target.lives();
}

/// Bytes as messages: the first of each says how long it is.
pub fn messages(data: &[u8]) {
    let target = target();
    let socket = socket::connect(target.daemon.place()).expect("the daemon listens");
    let mut rest = data;
    while let Some((length, after)) = rest.split_first() {
        let (message, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        // A third of them begin as they should.
        let mut whole = message.to_vec();
        if length % 3 == 0 {
            let good = Hello { entries: ENTRIES, data_bytes: DATA_BYTES }.message();
            let kept = whole.len().min(16);
            whole[..kept].copy_from_slice(&good[..kept]);
        }
        if !whole.is_empty() && socket::send(&socket, &whole, None).is_err() {
            break;
        }
    }
    drop(socket);
    target.lives();
}
