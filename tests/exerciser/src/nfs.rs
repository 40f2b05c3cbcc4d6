// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NFS client against a server of its own, which is killed and started again.

mod server;
mod step;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use dwell::executor::Executor;
use dwell_bench::fixture::in_own_network;
use dwell_nfs::client::Client;
use dwell_nfs::connection::Payload;
use dwell_nfs::file::{RemoteFile, Writer};
use dwell_nfs::nfs3::SetAttributes;
use dwell_nfs::url::Url;

use crate::campaign::{Outcome, Surface};
use crate::compare::Counts;
use crate::pattern;
use crate::shrink::minimal;
use server::{Server, looked_after};
use step::NAMES;

pub use step::{Step, steps};

/// So long may a process take to be gone after its connections ended.
const MAY_BE_DYING: Duration = Duration::from_secs(1);

/// What came of steps.
#[derive(Debug, Default)]
struct Ran {
    /// What differed.
    found: Option<String>,
    /// Kills of the server.
    kills: u64,
    /// How often it ended by itself, since the steps before.
    deaths: u64,
    /// Whether it did so during these steps.
    suffered: bool,
}

type Told = Result<Ran>;

/// A server and the thread in whose network it is.
pub struct Nfs {
    ask: Option<Sender<(Vec<Step>, bool)>>,
    told: Receiver<Told>,
    thread: Option<std::thread::JoinHandle<()>>,
    server: Arc<AtomicU32>,
}

impl Drop for Nfs {
    fn drop(&mut self) {
        self.ask = None;
        // It takes the server and its directory along.
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

impl Nfs {
    /// Starts a server.
    ///
    /// # Errors
    /// There can be none here.
    pub fn new() -> Result<Self> {
        let (ask, asked) = channel::<(Vec<Step>, bool)>();
        let (tell, told) = channel();
        let server = Arc::new(AtomicU32::new(0));
        let process = server.clone();
        let thread = std::thread::spawn(move || {
            let missing = |why: String| anyhow::Error::new(crate::surface::Missing(why));
            let tell_why = tell.clone();
            let ran = in_own_network(move || {
                let server = match Server::start(process) {
                    Ok(started) => Rc::new(RefCell::new(started)),
                    Err(why) => return drop(tell.send(Err(missing(format!("{why:#}"))))),
                };
                let _ = tell.send(Ok(Ran::default()));
                for (number, (steps, over_udp)) in asked.iter().enumerate() {
                    let _ = tell.send(run(&server, number, &steps, over_udp));
                }
            });
            if let Err(why) = ran {
                let _ = tell_why.send(Err(missing(why.to_string())));
            }
        });
        told.recv().context("the server's thread ended")??;
        Ok(Nfs { ask: Some(ask), told, thread: Some(thread), server })
    }

    /// The process of the server.
    pub fn server_id(&self) -> u32 {
        self.server.load(Ordering::SeqCst)
    }

    fn ran(&self, steps: &[Step], over_udp: bool) -> Told {
        let ask = self.ask.as_ref().context("the server's thread ended")?;
        ask.send((steps.to_vec(), over_udp)).ok().context("the server's thread ended")?;
        self.told.recv().context("the server's thread ended")?
    }
}

struct Session {
    client: Rc<Client>,
    url: Url,
    directory: dwell_nfs::nfs3::Handle,
    /// What was written and not yet committed, by the number of the file on the server.
    writers: BTreeMap<u64, Writer>,
}

fn name(name: u8) -> String {
    format!("f{name}")
}

/// Runs steps in a directory of their own.
fn run(server: &Rc<RefCell<Server>>, number: usize, steps: &[Step], over_udp: bool) -> Told {
    let ((kills, deaths), during) = {
        let mut server = server.borrow_mut();
        let before = (server.kills, server.deaths);
        server.look_after();
        (before, server.deaths)
    };
    let place = server.borrow().directory.path().join(format!("run{number}"));
    std::fs::create_dir(&place)?;
    let found = differs(server, &place, steps, over_udp);
    let _ = std::fs::remove_dir_all(place);
    let mut server = server.borrow_mut();
    match (&found, server.deaths == during) {
        (Ok(Some(_)), true) => server.look_after_for(MAY_BE_DYING),
        _ => server.look_after(),
    }
    if let Some(why) = server.gone.take() {
        bail!("the server does not come up again: {why}");
    }
    Ok(Ran {
        found: found?,
        kills: server.kills - kills,
        deaths: server.deaths - deaths,
        suffered: server.deaths > during,
    })
}

/// Runs steps in an empty directory; what differed.
fn differs(
    server: &Rc<RefCell<Server>>,
    place: &Path,
    steps: &[Step],
    over_udp: bool,
) -> Result<Option<String>> {
    let options = if over_udp { "&proto=udp&size=8192" } else { "&size=32768" };
    let url: Url = server
        .borrow()
        .address(&place.display().to_string(), options)
        .parse()
        .map_err(|error| anyhow!("{error}"))?;
    let export = Some(server.borrow().directory.path().display().to_string());
    let url = Url { export, ..url };
    let executor = Executor::new()?;
    let tasks = executor.handle();
    let _looked_after = looked_after(&tasks, server);
    executor.block_on(async {
        let mounted = async {
            let client = Client::mount(&tasks, &url).await?;
            let directory = client.require(&url).await?.handle;
            Ok::<_, dwell_nfs::Error>((client, directory))
        };
        let (client, directory) = match mounted.await {
            Ok(mounted) => mounted,
            Err(error) => return Ok(Some(format!("before the first step: {error}"))),
        };
        let mut session = Session { client, url: url.clone(), directory, writers: BTreeMap::new() };
        let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            let done = session.step(server, &mut model, step).await;
            if let Err(what) = done {
                return Ok(Some(format!("step {number} ({step:?}): {what}")));
            }
        }
        for writer in session.writers.values() {
            if let Err(error) = writer.commit().await {
                return Ok(Some(format!("commit at the end: {error}")));
            }
            if writer.uncommitted_bytes() != 0 {
                return Ok(Some("bytes are uncommitted after a commit".into()));
            }
        }
        session.client.unmount().await;
        for number in 0..NAMES as u8 {
            let found = std::fs::read(place.join(name(number))).ok();
            if found.as_ref() != model.get(&number) {
                let (is, was) = (found.map(|one| one.len()), model.get(&number).map(Vec::len));
                return Ok(Some(format!(
                    "f{number} at the end: {is:?} bytes, should be {was:?}; or others"
                )));
            }
        }
        Ok(None)
    })
}

impl Session {
    /// Uncommitted writes to a file that is about to go will never be committed.
    async fn forget(&mut self, number: u8) -> dwell_nfs::Result<()> {
        if let Some(found) = self.client.find(&self.url.join(&name(number))).await? {
            self.writers.remove(&found.attributes.file);
        }
        Ok(())
    }

    async fn step(
        &mut self,
        server: &RefCell<Server>,
        model: &mut BTreeMap<u8, Vec<u8>>,
        step: &Step,
    ) -> Result<(), String> {
        let said = |error: dwell_nfs::Error| error.to_string();
        let client = self.client.clone();
        match step {
            Step::Restart => {
                return server.borrow_mut().restart();
            }
            Step::List => {
                let items = client.list(self.directory, &"").await.map_err(said)?;
                let mut names: Vec<Vec<u8>> = items.into_iter().map(|item| item.name).collect();
                names.sort();
                let expected: Vec<Vec<u8>> = model.keys().map(|one| name(*one).into()).collect();
                let same = names == expected;
                return if same {
                    Ok(())
                } else {
                    Err(format!("{names:?}, should be {expected:?}"))
                };
            }
            Step::Create { name: number } => {
                let mode = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
                let text = name(*number);
                client.create(self.directory, text.as_bytes(), mode, &text).await.map_err(said)?;
                model.entry(*number).or_default();
                return Ok(());
            }
            Step::Rename { from, to } => {
                let (old, new) = (name(*from), name(*to));
                if from != to && model.contains_key(from) {
                    self.forget(*to).await.map_err(said)?;
                }
                let what = client.find(&self.url.join(&old)).await.map_err(said)?;
                // A name that is not there has no handle; any will do, and the server says so.
                let what = what.map_or(self.directory, |found| found.handle);
                let done =
                    client.rename(self.directory, old.as_bytes(), new.as_bytes(), what, &old).await;
                return match (done, model.remove(from)) {
                    (Ok(()), Some(data)) => {
                        model.insert(*to, data);
                        Ok(())
                    }
                    (Err(error), None) if error.errno() == libc::ENOENT => Ok(()),
                    (done, data) => {
                        Err(format!("{done:?} where the file {}", there(data.is_some())))
                    }
                };
            }
            Step::Remove { name: number } => {
                let text = name(*number);
                self.forget(*number).await.map_err(said)?;
                let Some(was) = client.find(&self.url.join(&text)).await.map_err(said)? else {
                    return match model.contains_key(number) {
                        true => Err("the file is gone".to_owned()),
                        false => Ok(()),
                    };
                };
                let done = client.remove(self.directory, text.as_bytes(), &was, &text).await;
                return match (done, model.remove(number)) {
                    (Ok(()), Some(_)) => Ok(()),
                    (Err(error), None) if error.errno() == libc::ENOENT => Ok(()),
                    (done, data) => {
                        Err(format!("{done:?} where the file {}", there(data.is_some())))
                    }
                };
            }
            _ => {}
        }
        let (Step::Write { name: number, .. }
        | Step::Together { name: number, .. }
        | Step::Commit { name: number }
        | Step::Read { name: number, .. }
        | Step::Resize { name: number, .. }
        | Step::Stat { name: number }) = step
        else {
            return Ok(());
        };
        let text = name(*number);
        let found = client.find(&self.url.join(&text)).await.map_err(said)?;
        let (found, data) = match (found, model.get_mut(number)) {
            (Some(found), Some(data)) => (found, data),
            (None, None) => return Ok(()),
            (found, _) => {
                return Err(format!("the file {}, but should not", there(found.is_some())));
            }
        };
        let file = RemoteFile::new(&client, found.handle, &text);
        let new = || Writer::new(file.clone());
        let writer = self.writers.entry(found.attributes.file).or_insert_with(new);
        let put = |data: &mut Vec<u8>, at: u64, bytes: usize, seed: u64| {
            let end = at as usize + bytes;
            if bytes > 0 {
                data.resize(data.len().max(end), 0);
                data[at as usize..end].copy_from_slice(&pattern::bytes(bytes, seed));
            }
        };
        match step {
            Step::Write { at, bytes, seed, .. } => {
                // A caller sends no more at once than the server takes.
                let most = client.write_bytes() as usize;
                let all = pattern::bytes(*bytes, *seed);
                for (place, piece) in all.chunks(most).enumerate() {
                    let at = at + (place * most) as u64;
                    writer.write(at, &Payload::new(piece.to_vec())).await.map_err(said)?;
                }
                put(data, *at, *bytes, *seed);
            }
            Step::Together { parts, killed, .. } => {
                let tasks = client.tasks().clone();
                let own = Rc::new(std::mem::replace(writer, Writer::new(file.clone())));
                let mut all = Vec::new();
                for (at, bytes, seed) in parts.clone() {
                    let own = own.clone();
                    let most = client.write_bytes() as usize;
                    all.push(tasks.spawn(async move {
                        let all = pattern::bytes(bytes, seed);
                        for (place, piece) in all.chunks(most).enumerate() {
                            let at = at + (place * most) as u64;
                            own.write(at, &Payload::new(piece.to_vec())).await?;
                        }
                        Ok::<(), dwell_nfs::Error>(())
                    }));
                }
                if *killed {
                    // Some have been sent by then, and some answered.
                    tasks.sleep(Duration::from_micros(300)).await;
                    server.borrow_mut().restart()?;
                }
                for one in all {
                    one.await.map_err(said)?;
                }
                *writer = Rc::into_inner(own).ok_or("a write is still there")?;
                for (at, bytes, seed) in parts {
                    put(data, *at, *bytes, *seed);
                }
            }
            Step::Commit { .. } => {
                writer.commit().await.map_err(said)?;
                if writer.uncommitted_bytes() != 0 {
                    return Err("bytes are uncommitted after a commit".into());
                }
            }
            Step::Read { at, bytes, .. } => {
                let bytes = (*bytes).min(client.read_bytes());
                let read = file.read(*at, bytes).await.map_err(said)?;
                let from = (*at as usize).min(data.len());
                let to = (from + bytes as usize).min(data.len());
                if read.as_ref() != &data[from..to] {
                    let (is, was) = (read.len(), to - from);
                    return Err(format!("{is} bytes were read, should be {was}; or others"));
                }
            }
            Step::Resize { to, .. } => {
                // Writes not committed yet would be written again behind the end.
                writer.commit().await.map_err(said)?;
                let change = SetAttributes { bytes: Some(*to), ..SetAttributes::default() };
                client.change(found.handle, change, &text).await.map_err(said)?;
                data.resize(*to as usize, 0);
            }
            _ => {
                let (is, was) = (found.attributes.bytes, data.len() as u64);
                if is != was || found.attributes.links != 1 {
                    return Err(format!("{is} bytes, should be {was}"));
                }
            }
        }
        Ok(())
    }
}

fn there(is: bool) -> &'static str {
    if is { "is there" } else { "is not there" }
}

impl Surface for Nfs {
    fn exercise(&mut self, seed: u64, lines: usize, counts: &mut Counts) -> Result<Outcome> {
        let steps = steps(seed, lines);
        let over_udp = seed.is_multiple_of(3);
        let first = self.ran(&steps, over_udp)?;
        let mut outcome = Outcome::default();
        let mut add = |ran: &Ran| {
            outcome.kills.1 += ran.kills;
            outcome.deaths += ran.deaths;
        };
        add(&first);
        let found = match first {
            Ran { found: Some(what), suffered: true, .. } => {
                // What a server answered before it died of itself says nothing of the client.
                println!("nfs: seed {seed}, whose server ended by itself, is run again: {what}");
                let second = self.ran(&steps, over_udp)?;
                add(&second);
                second.found
            }
            Ran { found, .. } => found,
        };
        for step in &steps {
            // Each step's outcome is checked as it comes: what came this far succeeded or was
            // rightly refused.
            let (tried, done) = counts.entry(step.kind()).or_default();
            *tried += 1;
            *done += u64::from(found.is_none());
            outcome.operations += 1;
        }
        if let Some(first) = found {
            let mut last = first.clone();
            let small = minimal(&steps, 200, |some| match self.ran(some, over_udp) {
                Ok(Ran { found: Some(what), suffered: false, .. }) => {
                    last = what;
                    true
                }
                _ => false,
            });
            let list: Vec<String> = small.iter().map(|step| format!("  {step:?}")).collect();
            let transport = if over_udp { "UDP" } else { "TCP" };
            outcome.difference = Some(format!(
                "a difference over {transport}\n first seen: {first}\n smallest: {last}\n{}",
                list.join("\n")
            ));
        }
        Ok(outcome)
    }

    fn listed(&self, seed: u64, lines: usize) -> String {
        steps(seed, lines).iter().map(|step| format!("  {step:?}\n")).collect()
    }
}
