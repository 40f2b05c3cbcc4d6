// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users who ask a daemon for more than their part, each until it is dropped.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use dwell::queue::{Action, Io, Queue};
use dwell::source::Source;
use dwell::{Options, Route, clock, wait};
use dwell_channel::client::{ChannelQueue, Mount, Served, Shape};
use dwell_channel::grants::{Grants, Inodes, OpenFile};
use dwell_channel::layout::Layout;
use dwell_channel::socket::{self, Came};
use dwell_channel::wire::Hello;
use dwell_policy::{Decision, Mode, Reason, WaitMachine};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request, Session,
};
use rustix::fs::{Gid, Uid};

use super::stage::{DATA, Stage};

/// As whom they ask.
const USER: u32 = 54_321;
/// Memory of one channel; the rings take the rest of what a channel may have.
const LONG_BYTES: u32 = 60 << 20;
/// How long a thread may take to begin.
const SETTLED: Duration = Duration::from_millis(50);

/// What somebody asks for too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Long reads, one after the other, from so many channels.
    Long(usize),
    /// Channels that were used once.
    Idle(usize),
    /// Connections that never say what they want.
    Silent(usize),
    /// Reads of a file whose device does not answer.
    Stuck(usize),
    /// So many opens of a file, again and again.
    Opens(usize),
    /// Doorbells of that many channels without a command.
    Doorbells(usize),
    /// Threads that compute, and ask for nothing.
    Compute(usize),
}

/// An attack that is going on.
#[derive(Default)]
pub struct Attackers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    _idle: Vec<ChannelQueue>,
    _stuck: Option<Stuck>,
}

impl Attackers {
    /// Begins it, and waits until it is under way.
    pub fn start(attack: Attack, stage: &Stage) -> Result<Attackers> {
        let mut attackers = Attackers::default();
        match attack {
            Attack::Long(channels) => {
                for _ in 0..channels {
                    let (over, data) = (attackers.over.clone(), stage.mount().join(DATA));
                    let bytes = LONG_BYTES.min(std::fs::metadata(&data)?.len() as u32);
                    let shape = Shape { depth: 1, slot_bytes: 4096, arena_bytes: bytes };
                    let (served, queue) = as_user(|| connected(stage, shape))?;
                    attackers.spawn(move || long(&served, queue, bytes, &over));
                }
            }
            Attack::Idle(channels) => {
                let shape = Shape { depth: 1, slot_bytes: 4096, arena_bytes: 4096 };
                for _ in 0..channels {
                    let (served, mut queue) = as_user(|| connected(stage, shape))?;
                    read(&mut queue, served.target(), 4096)?;
                    attackers._idle.push(queue);
                }
            }
            Attack::Silent(connections) => {
                let (over, place) = (attackers.over.clone(), stage.daemon().place().to_vec());
                attackers.spawn(move || as_user(|| silent(connections, &place, &over)));
            }
            Attack::Stuck(commands) => attackers.stick(stage, commands)?,
            Attack::Opens(files) => {
                let (over, path) = (attackers.over.clone(), stage.mount().join(DATA));
                attackers.spawn(move || {
                    as_user(|| {
                        while !over.load(Ordering::Relaxed) {
                            let mut open = Vec::new();
                            while open.len() < files && !over.load(Ordering::Relaxed) {
                                // Past its part a user is refused.
                                let Ok(file) = File::open(&path) else { break };
                                open.push(file);
                            }
                        }
                        Ok(())
                    })
                });
            }
            Attack::Doorbells(channels) => {
                let (over, place) = (attackers.over.clone(), stage.daemon().place().to_vec());
                let doors = as_user(|| (0..channels).map(|_| door(&place)).collect::<Result<_>>())?;
                let doors: Vec<OwnedFd> = doors;
                attackers.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        doors.iter().for_each(socket::ring);
                    }
                    Ok(())
                });
            }
            Attack::Compute(threads) => {
                for _ in 0..threads {
                    let over = attackers.over.clone();
                    attackers.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                        Ok(())
                    });
                }
            }
        }
        thread::sleep(SETTLED);
        Ok(attackers)
    }

    fn spawn(&mut self, act: impl FnOnce() -> Result<()> + Send + 'static) {
        self.threads.push(thread::spawn(act));
    }

    /// Ends it; whether it went on until now.
    ///
    /// # Errors
    /// What ended it before.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self._stuck.take();
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow::anyhow!("an attacker panicked"))??;
        }
        Ok(())
    }

    /// Has so many reads in flight that nobody answers.
    fn stick(&mut self, stage: &Stage, commands: usize) -> Result<()> {
        let stuck = Stuck::mount()?;
        let file = File::open(stuck.path())?;
        let inodes = Inodes::default();
        let inode = inodes.of(&file)?;
        let open = Arc::new(OpenFile::new(file.try_clone()?, libc::O_RDONLY, inode));
        let daemon = stage.daemon().clone();
        let ask = move |_, token: &_| Ok(daemon.grant(token, &open)?);
        let mount = Mount::direct(stage.daemon().place(), Arc::new(ask));
        let depth = commands as u32;
        let shape = Shape { depth, slot_bytes: 4096, arena_bytes: depth * 4096 };
        let mut queue = as_user(|| Ok(mount.asynchronous(shape, file.as_raw_fd())?))?;
        for at in 0..commands {
            let mut buffer = queue.buffer(4096).context("no room in the channel")?;
            let (memory, at) = (buffer.as_mut_ptr(), at as u64 * 4096);
            // SAFETY: the memory lies in the channel, which the queue keeps until its requests are
            // over.
            let io = unsafe { Io::plain(Action::Read, file.as_raw_fd(), memory, 4096, at) };
            ensure!(queue.submit(io, Route::Interrupt).is_ok(), "no room in the queue");
            std::mem::forget(buffer);
        }
        queue.flush();
        self._idle.push(queue);
        self._stuck = Some(stuck);
        Ok(())
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Does something as the attacking user.
fn as_user<T: Send>(what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let act = || {
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        what()
    };
    thread::scope(|scope| match scope.spawn(act).join() {
        Ok(done) => done,
        Err(_) => bail!("an attacker panicked"),
    })
}

fn connected(stage: &Stage, shape: Shape) -> Result<(Served, ChannelQueue)> {
    let served = Served::open(&stage.mount().join(DATA), &Options::new())?;
    let queue = served.asynchronous(shape)?;
    Ok((served, queue))
}

/// Reads from the beginning of a file, asleep until that is over.
fn read(queue: &mut ChannelQueue, target: i32, bytes: u32) -> Result<()> {
    let mut buffer = queue.buffer(bytes).context("no room in the channel")?;
    // SAFETY: the buffer outlives the request, which is waited for.
    let io = unsafe { Io::plain(Action::Read, target, buffer.as_mut_ptr(), bytes, 0) };
    ensure!(queue.submit(io, Route::Interrupt).is_ok(), "no room in the queue");
    let decision = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
    let (now, mut result) = (clock::now(), 0);
    wait::wait(queue, WaitMachine::new(&decision, now, now), &mut |completion| {
        result = completion.result;
        true
    });
    ensure!(result == bytes as i32, "{result} bytes of {bytes}");
    Ok(())
}

fn long(served: &Served, mut queue: ChannelQueue, bytes: u32, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        read(&mut queue, served.target(), bytes)?;
    }
    Ok(())
}

fn silent(count: usize, place: &[u8], over: &AtomicBool) -> Result<()> {
    let mut open: Vec<OwnedFd> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        open.retain(|one| matches!(socket::receive(one, &mut [0; 1], false), Came::Nothing));
        while open.len() < count {
            match socket::connect(place) {
                Ok(socket) => open.push(socket),
                Err(_) => break,
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A channel of which only the socket is used.
fn door(place: &[u8]) -> Result<OwnedFd> {
    let socket = socket::connect(place)?;
    let layout = Layout::new(2, 4096).context("no channel has such a shape")?;
    let hello = Hello { entries: layout.entries(), data_bytes: layout.data_bytes() };
    socket::send(&socket, &hello.message(), None)?;
    let mut answer = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
    ensure!(rustix::event::poll(&mut answer, Some(&patience))? == 1, "no channel is made");
    Ok(socket)
}

/// A file system with one file, of which nothing is ever read.
struct Stuck {
    held: Held,
    mount: tempfile::TempDir,
    session: Option<BackgroundSession>,
}

type Held = Arc<Mutex<Vec<ReplyData>>>;

struct Silence(Held);

impl Stuck {
    fn mount() -> Result<Stuck> {
        let held = Held::default();
        let mount = tempfile::tempdir().context("a directory to mount at")?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("dwell-stuck".into())];
        let session = Session::new(Silence(held.clone()), mount.path(), &config)?.spawn()?;
        Ok(Stuck { held, mount, session: Some(session) })
    }

    fn path(&self) -> std::path::PathBuf {
        self.mount.path().join(DATA)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let held =
            |held: &Held| std::mem::take(&mut *held.lock().unwrap_or_else(PoisonError::into_inner));
        // A waiting process keeps the mount. More come as soon as some are answered.
        for _ in 0..100 {
            held(&self.held).into_iter().for_each(|reply| reply.error(Errno::EIO));
            thread::sleep(Duration::from_millis(1));
        }
        // The daemon may still have the file open, which keeps a mount that is not detached.
        let _ = rustix::mount::unmount(self.mount.path(), rustix::mount::UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

impl Silence {
    fn attr(ino: INodeNo) -> FileAttr {
        let is_file = ino != INodeNo::ROOT;
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size: if is_file { 1 << 30 } else { 0 },
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Silence {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.entry(&Duration::ZERO, &Silence::attr(INodeNo(2)), Generation(0));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &Silence::attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
    }
}
