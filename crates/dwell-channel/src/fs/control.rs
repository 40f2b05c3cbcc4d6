// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemons of one user: a record and a socket each, in a directory of that user's; asked by
//! lines of text, answered by lines of JSON.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dwell_mounts as mounts;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::facts::Facts;
use super::server::Stopper;

/// How long a daemon may take to answer. Unmounting may write files back first.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a daemon leaves for others to find it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The daemon.
    pub pid: u32,
    /// When that process started, in the kernel's ticks: its number may be another's later.
    pub started_ticks: u64,
    /// The directory whose files are served.
    pub backing: PathBuf,
    /// Where.
    pub mount: PathBuf,
}

impl Record {
    fn is_alive(&self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks)
    }
}

/// A daemon as others see it.
#[derive(Debug)]
pub enum Seen {
    /// It serves.
    Serving(Box<Facts>),
    /// Its process lives and does not answer.
    Silent(Record),
    /// It was killed; its mount is still there.
    Stale(Record),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Facts(Box<Facts>),
    Stopped,
    Refused(String),
}

/// Where a mount's record and socket are: names of a length that a socket's address has room for.
fn place(dir: &Path, mount: &Path) -> PathBuf {
    // FNV-1a: the same in every version of this program, unlike the standard library's.
    let hash = mount
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    dir.join(format!("serve-{hash:016x}"))
}

/// Makes a server reachable until the result is dropped.
///
/// # Errors
/// Record or socket cannot be made.
pub fn listen(dir: &Path, stopper: &Stopper) -> Result<Listening, Error> {
    let facts = stopper.facts();
    let path = place(dir, &facts.mount);
    let failed = |error| Error::Io { action: "cannot listen", path: path.clone(), error };
    let record = Record {
        pid: facts.pid,
        started_ticks: started_ticks(facts.pid).unwrap_or(0),
        backing: facts.backing,
        mount: facts.mount,
    };
    let socket = path.with_extension("sock");
    let answering = Arc::new(Mutex::new(()));
    let listening =
        Listening { path: path.clone(), record: record.clone(), answering: answering.clone() };
    let _changing = changing(dir).map_err(failed)?;
    // A killed daemon left the socket that is there: the mount itself was free.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(failed)?;
    let text = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
    fs::write(path.with_extension("json"), text).map_err(failed)?;
    let stopper = stopper.clone();
    thread::Builder::new()
        .name("dwell-control".to_owned())
        .spawn(move || {
            for client in listener.incoming().flatten() {
                let _answering = answering.lock();
                // A malformed question gets no answer.
                let _ = answer(&client, &stopper);
            }
        })
        .map_err(failed)?;
    Ok(listening)
}

/// A record and a socket, taken away when this is dropped, after whoever is being answered has the
/// answer.
#[derive(Debug)]
pub struct Listening {
    path: PathBuf,
    record: Record,
    answering: Arc<Mutex<()>>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _answered = self.answering.lock();
        clear(&self.path, &self.record);
    }
}

/// Nobody else changes what lies in a directory of records until the result is dropped.
fn changing(dir: &Path) -> io::Result<fs::File> {
    let dir = fs::File::open(dir)?;
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(dir)
}

fn read(path: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(path.with_extension("json")).ok()?).ok()
}

/// Takes away what a daemon left, unless another that serves the same mount has put its own there
/// meanwhile.
fn clear(path: &Path, left: &Record) {
    let Some(Ok(_changing)) = path.parent().map(changing) else { return };
    if read(path).as_ref() != Some(left) {
        return;
    }
    for extension in ["sock", "json"] {
        let _ = fs::remove_file(path.with_extension(extension));
    }
}

fn answer(client: &UnixStream, stopper: &Stopper) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(2)))?;
    client.set_write_timeout(Some(Duration::from_secs(2)))?;
    let mut line = String::new();
    BufReader::new(client.take(100)).read_line(&mut line)?;
    let stop = |force| match stopper.stop(force) {
        Ok(()) => Answer::Stopped,
        Err(error) => Answer::Refused(error.to_string()),
    };
    let answer = match line.trim_end() {
        "status" => Answer::Facts(Box::new(stopper.facts())),
        "stop" => stop(false),
        "stop force" => stop(true),
        other => Answer::Refused(format!("{other:?} is no question")),
    };
    let mut client = client;
    client.write_all(&serde_json::to_vec(&answer)?)
}

fn ask(path: &Path, question: &str) -> io::Result<Answer> {
    let mut socket = UnixStream::connect(path.with_extension("sock"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(format!("{question}\n").as_bytes())?;
    let mut text = Vec::new();
    socket.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// All daemons of a directory of records, by mount. Records of those that are gone altogether are
/// cleared away.
///
/// # Errors
/// The directory cannot be read.
pub fn all(dir: &Path) -> io::Result<Vec<Seen>> {
    let mut seen = Vec::new();
    for entry in fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("serve-") && name.ends_with(".json") {
            seen.extend(look(&path));
        }
    }
    seen.sort_by(|a, b| a.mount().cmp(b.mount()));
    Ok(seen)
}

fn look(path: &Path) -> Option<Seen> {
    let record = read(path)?;
    match ask(path, "status") {
        Ok(Answer::Facts(facts)) => Some(Seen::Serving(facts)),
        _ if record.is_alive() => Some(Seen::Silent(record)),
        _ if is_mounted(&record.mount) => Some(Seen::Stale(record)),
        _ => {
            clear(path, &record);
            None
        }
    }
}

fn is_mounted(mount: &Path) -> bool {
    mounts::mounted_at(mount).is_ok_and(|found| found.is_some_and(|found| found.is_ours()))
}

impl Seen {
    /// Where it serves or served.
    pub fn mount(&self) -> &Path {
        match self {
            Seen::Serving(facts) => &facts.mount,
            Seen::Silent(record) | Seen::Stale(record) => &record.mount,
        }
    }
}

/// How long a daemon whose mount is gone may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// The daemon that serves a mount, if one of this user's lives. If its mount is gone it is about to
/// end, which this waits for.
pub fn serving(dir: &Path, mount: &Path) -> Option<Record> {
    let path = place(dir, &mounts::absolute(mount).ok()?);
    let limit = Instant::now() + ENDING;
    loop {
        let record = read(&path).filter(Record::is_alive)?;
        if is_mounted(&record.mount) || Instant::now() > limit {
            return Some(record);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Stops the daemon of a mount and waits until its process is gone; where it was killed, clears its
/// mount away. Says what was done.
///
/// # Errors
/// There is none, it is in use, or the system refuses.
pub fn stop(dir: &Path, mount: &Path, force: bool) -> Result<&'static str, Error> {
    let invalid = |what: String| Error::Invalid { path: mount.to_owned(), what };
    let found = mounts::absolute(mount);
    let at = found.map_err(|error| invalid(error.to_string()))?;
    let path = place(dir, &at);
    let left = read(&path);
    let Some(record) = left.clone().filter(Record::is_alive) else {
        let stale = mounts::mounted_at(&at)
            .ok()
            .flatten()
            .filter(|found| found.is_ours() && found.is_stale());
        let Some(stale) = stale else {
            return Err(invalid(
                "is not served by a daemon of yours (dwell serve status lists them)".into(),
            ));
        };
        mounts::unmount(&stale.at, mounts::How::Now).map_err(|error| {
            invalid(format!("its daemon was killed; cannot be unmounted: {error}"))
        })?;
        if let Some(left) = left {
            clear(&path, &left);
        }
        return Ok("its daemon had been killed; unmounted");
    };
    match ask(&path, if force { "stop force" } else { "stop" }) {
        Ok(Answer::Stopped) => {}
        Ok(Answer::Refused(what)) => return Err(Error::Refused(what)),
        Ok(Answer::Facts(_)) => {
            return Err(invalid("its daemon answered something else".into()));
        }
        Err(error) => {
            return Err(invalid(format!(
                "its daemon (process {}) does not answer: {error}",
                record.pid
            )));
        }
    }
    let limit = Instant::now() + PATIENCE;
    while record.is_alive() && Instant::now() < limit {
        thread::sleep(Duration::from_millis(5));
    }
    match record.is_alive() {
        false => Ok("stopped"),
        true => {
            Err(invalid(format!("unmounted, but its daemon (process {}) does not end", record.pid)))
        }
    }
}

/// When a process started, in ticks since the machine did; `None` where there is none or it is a
/// zombie.
fn started_ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may contain anything.
    let rest = &text[text.rfind(')')? + 1..];
    let mut words = rest.split_whitespace();
    let state = words.next()?;
    (state != "Z" && state != "X").then(|| words.nth(18)?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_when_it_started() {
        let own = std::process::id();
        let ticks = started_ticks(own).unwrap();
        let record = |started_ticks| Record {
            pid: own,
            started_ticks,
            backing: PathBuf::from("/b"),
            mount: PathBuf::from("/m"),
        };
        assert!(record(ticks).is_alive() && !record(ticks + 1).is_alive());
        assert_eq!(started_ticks(u32::MAX), None);
    }

    #[test]
    fn leftovers_of_a_dead_daemon_are_cleared_away() {
        let dir = tempfile::tempdir().unwrap();
        let mount = Path::new("/no/such/mount");
        let gone = Record {
            pid: u32::MAX,
            started_ticks: 1,
            backing: PathBuf::from("/b"),
            mount: mount.to_owned(),
        };
        let path = place(dir.path(), mount).with_extension("json");
        fs::write(&path, serde_json::to_vec(&gone).unwrap()).unwrap();
        fs::write(dir.path().join("serve-0.json"), "no JSON").unwrap();
        assert!(all(dir.path()).unwrap().is_empty());
        assert!(!path.exists());

        // Somebody looked at the old one, and a new daemon is there before it can be cleared away.
        let fresh = Record { pid: 1, ..gone.clone() };
        fs::write(&path, serde_json::to_vec(&fresh).unwrap()).unwrap();
        clear(&path, &gone);
        assert!(path.exists());
        clear(&path, &fresh);
        assert!(!path.exists());
    }
}
