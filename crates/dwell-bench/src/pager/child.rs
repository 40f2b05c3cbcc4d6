// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measured processes: started, told to begin together, listened to.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

use super::task::{self, Line, Task, Told};
use crate::loads::pager_word;
use crate::parent::die_with_parent;

/// A process that has a task.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    complaints: File,
}

/// Does tasks at once, each in a process of its own: every one sets up, then all begin.
///
/// # Errors
/// A process that cannot be started, that ends without an answer, or says why it failed.
pub(super) fn perform(tasks: &[Task], hidden: &[String]) -> Result<Vec<Told>> {
    keep_program_in_memory()?;
    let start = |task: &Task| Worker::start(task, hidden);
    let mut workers = tasks.iter().map(start).collect::<Result<Vec<_>>>()?;
    for (worker, task) in workers.iter_mut().zip(tasks) {
        let line = worker.line().with_context(|| task.method.name.clone())?;
        ensure!(
            matches!(line, Line::Ready),
            "{}: done before it was told to begin",
            task.method.name
        );
    }
    for worker in &mut workers {
        // One that is gone is found out below, with what it said.
        let _ = worker.input.write_all(b"go\n");
    }
    let listen = |(worker, task): (&mut Worker, &Task)| match worker
        .line()
        .with_context(|| task.method.name.clone())?
    {
        Line::Told(told) => {
            worker.end().with_context(|| task.method.name.clone())?;
            Ok(*told)
        }
        Line::Ready => bail!("{}: ready twice", task.method.name),
    };
    workers.iter_mut().zip(tasks).map(listen).collect()
}

/// Has all of this program's file in the page cache, counted for this process: what the workers
/// execute is then not read anew within their limits, where pages of programs and of data would
/// drive each other out.
fn keep_program_in_memory() -> Result<()> {
    static KEPT: OnceLock<()> = OnceLock::new();
    if KEPT.get().is_none() {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let file = File::open(&program).with_context(|| format!("open {}", program.display()))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        std::io::copy(&mut file, &mut std::io::sink()).context("reading this program's file")?;
        let _ = KEPT.set(());
    }
    Ok(())
}

impl Worker {
    fn start(task: &Task, hidden: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let complaints = tempfile::tempfile().context("a file for what it says of errors")?;
        let mut command = Command::new(&program);
        command.args(hidden).arg(pager_word(task)?);
        // To make one takes more memory than the limit may leave.
        command.env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints.try_clone()?);
        die_with_parent(&mut command);
        let start = || format!("cannot start {}", program.display());
        let mut child = command.spawn().with_context(start)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!(start()) };
        Ok(Worker { child, input, output: BufReader::new(output), complaints })
    }

    /// The next line that is meant for the bench.
    fn line(&mut self) -> Result<Line> {
        let mut text = String::new();
        loop {
            text.clear();
            if self.output.read_line(&mut text).context("cannot read what it says")? == 0 {
                return self.end().and(Err(anyhow::anyhow!("ended without an answer")));
            }
            if let Some(line) = task::read(text.trim_end())? {
                return Ok(line);
            }
        }
    }

    /// Waits for its end; an error where that was none in good order.
    fn end(&mut self) -> Result<()> {
        // The rest of what a harness prints must find somebody who reads it.
        let _ = std::io::copy(&mut self.output, &mut std::io::sink());
        let status = self.child.wait().context("cannot ask after it")?;
        if status.success() {
            return Ok(());
        }
        let mut said = Vec::new();
        let read = self.complaints.rewind().and_then(|()| self.complaints.read_to_end(&mut said));
        read.context("what it said of errors")?;
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        if status.signal() == Some(libc::SIGKILL) {
            bail!(
                "was killed, as the kernel does where a memory limit is too low to go on: raise it"
            )
        }
        bail!("{status}: {last}")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only when it is gone, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
