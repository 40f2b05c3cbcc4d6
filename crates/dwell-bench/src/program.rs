// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders in programs of their own. Such a program opens the subject by itself, is asked for
//! batches by one line of JSON each and answers with what it measured; between batches it sleeps
//! in a read. So other runtimes take part in a run and are no dependency of Dwell.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use dwell_nfs::url::Url;
use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Sample};
use crate::parent::die_with_parent;
use crate::result::{Configured, Requests, RoundResult};
use crate::subject::Subject;

/// What names of such contenders begin with.
pub const PREFIX: &str = "peer:";

/// What a program says first: who it is and how it is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name that it was started with.
    pub peer: String,
    /// Version of what is measured.
    pub version: String,
    /// How it is configured, each a few words.
    pub settings: Vec<String>,
}

/// What a program is asked for: one batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// How long, in nanoseconds.
    pub span_ns: u64,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// Order, direction and queue depth.
    #[serde(flatten)]
    pub requests: Requests,
    /// Decides where requests go.
    pub seed: u64,
    /// Whether every request is wanted by itself.
    #[serde(default)]
    pub samples: bool,
}

/// What a program measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The round, without what others did meanwhile.
    #[serde(flatten)]
    pub round: RoundResult,
    /// When each request began, since the batch did, and how long it took, in nanoseconds, where
    /// that was wanted and is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_ns: Option<Vec<Sample>>,
}

/// A line from a program after its first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    /// Why there is no round.
    Failed {
        /// In one line.
        error: String,
    },
    /// The round.
    Answer(Box<Answer>),
}

/// The program that has the peers.
#[derive(Clone, Debug)]
pub struct Peers(PathBuf);

impl Peers {
    /// The program at `path`, or else the one that `make peers` leaves beside this program.
    ///
    /// # Errors
    /// There is no such file.
    pub fn find(path: Option<&Path>) -> Result<Self> {
        if let Some(path) = path {
            ensure!(path.is_file(), "{}: no such program (--peers-program)", path.display());
            return Ok(Peers(path.into()));
        }
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let beside = own.with_file_name("dwell-peers");
        let found = Some(beside).filter(|path| path.is_file());
        found.map(Peers).context(
            "dwell-peers, which has the peers, is not beside this program: `make peers` builds it \
             (or name it by --peers-program)",
        )
    }

    /// The storage runtimes that it has, by names without [`PREFIX`].
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn list(&self) -> Result<Vec<String>> {
        self.names("--list")
    }

    /// The NFS clients that it has, by names without [`PREFIX`].
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn list_nfs(&self) -> Result<Vec<String>> {
        self.names("--list-nfs")
    }

    fn names(&self, option: &str) -> Result<Vec<String>> {
        let output = Command::new(&self.0).arg(option).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot start {}", self.0.display()))?;
        ensure!(output.status.success(), "{} {option}: {}", self.0.display(), output.status);
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Fails unless it has all of these contenders.
    pub fn check<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
        let known = self.list()?;
        for name in names {
            let peer = name.strip_prefix(PREFIX).unwrap_or(name);
            ensure!(
                known.iter().any(|known| known == peer),
                "{name}: {} has no such peer; it has {}",
                self.0.display(),
                known.join(", ")
            );
        }
        Ok(())
    }
}

/// So long a program may be silent beyond what it was asked for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often somebody who waits looks whether the run shall end: hardly a load.
const NAP: Duration = Duration::from_millis(100);

/// One contender in a program of its own, started with the first batch. Dropping it ends the
/// program; so does the end of the thread that started it.
pub struct Program {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
    complaints: File,
    hello: Hello,
}

impl Program {
    /// A peer on a subject; `name` may begin with [`PREFIX`].
    ///
    /// # Errors
    /// The subject is the address of a scheme.
    pub fn new(name: &str, subject: &Subject, peers: &Peers) -> Result<Self> {
        if dwell::open::is_scheme(&subject.address) {
            bail!("{}: only Dwell's own policies reach an address of a scheme", subject.name);
        }
        let name = name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
        let mut arguments: Vec<OsString> = vec![
            name.as_str().into(),
            "--path".into(),
            subject.address.clone().into(),
            "--bytes".into(),
            subject.bytes.to_string().into(),
        ];
        arguments.extend(subject.direct.then(|| "--direct".into()));
        arguments.extend(subject.write.then(|| "--write".into()));
        Ok(Program { name, program: peers.0.clone(), arguments, running: None })
    }

    /// An NFS client that moves so many bytes of a file with each order, whose span and seed mean
    /// nothing to it.
    pub fn on_server(name: &str, url: &Url, bytes: u64, write: bool, peers: &Peers) -> Self {
        let name = name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
        let mut address = format!("nfs://{}", url.host);
        if url.host.contains(':') {
            address = format!("nfs://[{}]", url.host);
        }
        address += &url.port.map_or(String::new(), |port| format!(":{port}"));
        address += &url.path;
        address += &url.mount_port.map_or(String::new(), |port| format!("?mountport={port}"));
        let mut arguments: Vec<OsString> =
            [&name, "--path", &address, "--bytes", &bytes.to_string()].map(OsString::from).into();
        arguments.extend(write.then(|| "--write".into()));
        Program { name, program: peers.0.clone(), arguments, running: None }
    }

    /// Has an NFS client hold what it reads against what is to be there: each eight bytes their
    /// offset.
    #[must_use]
    pub fn verifying(mut self) -> Self {
        self.arguments.push("--verify".into());
        self
    }

    /// How it is set up; `None` before its first batch.
    pub fn configured(&self) -> Option<Configured> {
        self.running.as_ref().map(|running| Configured {
            name: format!("{PREFIX}{}", running.hello.peer),
            version: running.hello.version.clone(),
            settings: running.hello.settings.clone(),
        })
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// A batch like this one, which may be told to stop.
    ///
    /// # Errors
    /// Those of [`Program::measure`].
    pub fn serve(&mut self, batch: &mut Batch, span: Duration) -> Result<Answer> {
        let order = Order {
            span_ns: span.as_nanos() as u64,
            size_bytes: batch.size_bytes() as u64,
            requests: batch.requests(),
            seed: batch.seed(),
            samples: batch.samples().is_some(),
        };
        self.measure_until(&order, &|| batch.stopped())
    }

    /// A batch.
    ///
    /// # Errors
    /// Names the peer: the program cannot be started, ends, is silent, says what is no answer, or
    /// says why it failed.
    pub fn measure(&mut self, order: &Order) -> Result<Answer> {
        self.measure_until(order, &|| false)
    }

    fn measure_until(&mut self, order: &Order, stopped: &dyn Fn() -> bool) -> Result<Answer> {
        let measured = self.ask(order, stopped);
        if measured.is_err() {
            self.running = None;
        }
        measured.with_context(|| format!("{PREFIX}{}", self.name))
    }

    fn ask(&mut self, order: &Order, stopped: &dyn Fn() -> bool) -> Result<Answer> {
        let running = match &mut self.running {
            Some(running) => running,
            none => none.insert(Running::start(&self.program, &self.arguments, &self.name)?),
        };
        let line = serde_json::to_string(order)? + "\n";
        // A program that is gone is found out below, with what it said.
        let _ = running.orders.write_all(line.as_bytes());
        let line = running.line(Duration::from_nanos(order.span_ns) + PATIENCE, stopped)?;
        let reply = serde_json::from_str(&line)
            .with_context(|| format!("not a reply: {}", one_line(&line)))?;
        match reply {
            Reply::Failed { error } => Err(anyhow!(one_line(&error))),
            Reply::Answer(answer) => {
                let RoundResult { requests, bytes, wall_ns, .. } = answer.round;
                ensure!(
                    requests > 0 && requests.checked_mul(order.size_bytes) == Some(bytes),
                    "answered {bytes} bytes in {requests} requests of {}",
                    order.size_bytes
                );
                ensure!(wall_ns > 0, "answered that {requests} requests took no time");
                Ok(*answer)
            }
        }
    }
}

impl Running {
    fn start(program: &Path, arguments: &[OsString], name: &str) -> Result<Running> {
        let mut complaints = tempfile::tempfile().context("a file for what it says of errors")?;
        complaints.rewind()?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(complaints.try_clone()?);
        die_with_parent(&mut command);
        let start = || format!("cannot start {}", program.display());
        let mut child = command.spawn().with_context(start)?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        let (Some(orders), Some(output)) = (orders, output) else { bail!(start()) };
        let (sender, lines) = channel();
        let hello = Hello { peer: String::new(), version: String::new(), settings: Vec::new() };
        let mut running = Running { child, orders, lines, complaints, hello };
        // It sleeps in a read; it ends with the program or when nobody listens.
        std::thread::Builder::new()
            .spawn(move || {
                BufReader::new(output).lines().try_for_each(|line| sender.send(line)).ok()
            })
            .context("a thread that listens")?;
        let line = running.line(PATIENCE, &|| false)?;
        running.hello = serde_json::from_str(&line)
            .with_context(|| format!("says this first, not who it is: {}", one_line(&line)))?;
        ensure!(running.hello.peer == name, "says that it is {}", one_line(&running.hello.peer));
        Ok(running)
    }

    fn line(&mut self, patience: Duration, stopped: &dyn Fn() -> bool) -> Result<String> {
        let until = Instant::now() + patience;
        let heard = loop {
            match self.lines.recv_timeout(NAP) {
                Err(RecvTimeoutError::Timeout) if stopped() => bail!("told to stop: it was ended"),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                heard => break heard,
            }
        };
        match heard {
            Ok(line) => line.context("cannot read what it says"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("no answer in {} seconds: it was ended", patience.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let _ = self.child.kill();
                let status = self.child.wait().context("cannot ask after it")?;
                match self.last_words() {
                    words if words.is_empty() => bail!("ended without an answer ({status})"),
                    words => bail!("ended without an answer ({status}): {words}"),
                }
            }
        }
    }

    /// The last of what it wrote to its standard error, in one line.
    fn last_words(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.complaints.rewind();
        let _ = read.and_then(|()| self.complaints.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        one_line(&lines[lines.len().saturating_sub(3)..].join("; "))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it is gone, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What another program said, fit for a line.
fn one_line(text: &str) -> String {
    const MOST: usize = 400;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect()
}
