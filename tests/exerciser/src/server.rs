// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon of a served mount as a child of the exerciser, which so learns how it ended.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// So long may a process take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon.
#[derive(Debug)]
pub struct Server {
    child: Child,
    errors: PathBuf,
    // Open as long as it may write there.
    _output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts one by a command that stays in the foreground, and returns once it serves. What it
    /// says of errors goes to a file.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start(command: &mut Command, errors: &Path) -> Result<Self> {
        // It keeps no directory in use, and Ctrl-C is not for it.
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(errors)?);
        let mut child = command.spawn()?;
        let Some(output) = child.stdout.take() else { bail!("no standard output") };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line)? > 0 {
            if line.starts_with("serving ") {
                return Ok(Server { child, errors: errors.to_owned(), _output: output });
            }
            line.clear();
        }
        let status = child.wait()?;
        let said = fs::read_to_string(errors).unwrap_or_default();
        bail!("{status}: {}", said.trim())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What to say of it, if it ended by itself.
    ///
    /// # Errors
    /// It cannot be asked after.
    pub fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| self.by_itself(status)))
    }

    fn by_itself(&self, status: ExitStatus) -> String {
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let said: Vec<&str> = said.lines().take(10).collect();
        format!("the server ended by itself: {status} {}", said.join(" | "))
    }

    /// Kills it as nothing else does; what to say of it, if it ended by itself before that.
    ///
    /// # Errors
    /// It does not end.
    pub fn kill(mut self) -> Result<Option<String>> {
        use std::os::unix::process::ExitStatusExt as _;
        if let Some(said) = self.ended()? {
            return Ok(Some(said));
        }
        self.child.kill()?;
        let Some(status) = self.wait()? else { bail!("a killed daemon does not end") };
        let killed = status.signal() == Some(libc::SIGKILL);
        Ok((!killed).then(|| self.by_itself(status)))
    }

    /// Waits for its end, if that comes.
    fn wait(&mut self) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(None)
    }
}

impl Drop for Server {
    /// One that was stopped, or is to go with everything else.
    fn drop(&mut self) {
        if !matches!(self.wait(), Ok(Some(_))) {
            let _ = self.child.kill();
        }
    }
}
