// SPDX-License-Identifier: MIT OR Apache-2.0
//! nfs-ganesha, which is killed and sometimes dies by itself.

use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use dwell::executor::{Handle, JoinHandle};
use dwell_bench::fixture::{Export, Ganesha};
use tempfile::TempDir;

/// How often a server is looked after, in nanoseconds.
const EVERY: Duration = Duration::from_millis(100);
/// So often may a server not come up in a row.
const TRIES: u32 = 3;

/// A server of a directory of its own.
pub struct Server {
    pub directory: TempDir,
    ganesha: Ganesha,
    /// Kills that ended it, by the status that was waited for.
    pub kills: u64,
    /// How often it ended by itself.
    pub deaths: u64,
    /// Why there is none any more.
    pub gone: Option<String>,
    process: Arc<AtomicU32>,
}

impl Server {
    /// One on a disk, or in memory where that cannot be served. A tmpfs begins to list again where
    /// the entry that was listed last is gone, and the server passes that on.
    pub fn start(process: Arc<AtomicU32>) -> Result<Self> {
        let on = |parent: PathBuf| {
            let directory = TempDir::with_prefix_in("dwell-exerciser-nfs-", parent)?;
            let ganesha = Ganesha::start(&[Export::directory(directory.path())], false)?;
            Ok((directory, ganesha))
        };
        let started = on(std::env::temp_dir()).or_else(|_: anyhow::Error| on("/dev/shm".into()));
        let (directory, ganesha) = started?;
        let server = Server { directory, ganesha, kills: 0, deaths: 0, gone: None, process };
        server.tell();
        Ok(server)
    }

    pub fn address(&self, export: &str, options: &str) -> String {
        self.ganesha.address(export, options)
    }

    fn tell(&self) {
        self.process.store(self.ganesha.id().unwrap_or(0), Ordering::SeqCst);
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self) -> Result<(), String> {
        match self.ganesha.kill() {
            Some(status) if status.signal() == Some(libc::SIGKILL) => self.kills += 1,
            Some(status) => self.died(status),
            None => {}
        }
        self.up()
    }

    /// Starts it again if it ended by itself.
    pub fn look_after(&mut self) {
        if let Some(status) = self.ganesha.ended() {
            self.died(status);
            self.gone = self.up().err();
        }
    }

    /// Looks after it for a while: the connections of a process that dies end before it is gone.
    pub fn look_after_for(&mut self, time: Duration) {
        let (deaths, until) = (self.deaths, Instant::now() + time);
        while self.deaths == deaths && Instant::now() < until {
            self.look_after();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn died(&mut self, status: ExitStatus) {
        self.deaths += 1;
        println!("nfs: the server ended by itself ({status}) and is started again");
    }

    fn up(&mut self) -> Result<(), String> {
        let mut tried = self.ganesha.restart();
        for _ in 1..TRIES {
            if tried.is_ok() {
                break;
            }
            // It may be there and not answer, which is no death.
            if let Some(status) = self.ganesha.kill()
                && status.signal() != Some(libc::SIGKILL)
            {
                self.died(status);
            }
            tried = self.ganesha.restart();
        }
        self.tell();
        tried.map_err(|why| why.to_string())
    }
}

/// Looks after a server as long as tasks run.
pub fn looked_after(tasks: &Handle, server: &Rc<RefCell<Server>>) -> JoinHandle<()> {
    let (clock, server) = (tasks.clone(), server.clone());
    tasks.spawn(async move {
        loop {
            clock.sleep(EVERY).await;
            server.borrow_mut().look_after();
        }
    })
}
