// SPDX-License-Identifier: MIT OR Apache-2.0
//! Daemons that a command starts: this program once more, in the background.

use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::show;

/// This program, to be started once more.
pub fn command() -> Result<Command> {
    let program = env::current_exe().context("cannot find this program")?;
    Ok(Command::new(program))
}

/// Starts a daemon in the background and passes on what it says.
pub fn launch(mut command: Command) -> Result<()> {
    // It keeps no directory of its caller's in use.
    command.current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start the daemon")?;
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            said += &line?;
            said += "\n";
        }
    }
    match ended(&mut child)? {
        None => Ok(show::out(&said)?),
        Some(why) => bail!("{why}"),
    }
}

/// Why a daemon ended before it served; `None` where it serves.
fn ended(child: &mut Child) -> Result<Option<String>> {
    // It has closed its output: it serves and has let its standard error go too, or it is ending.
    let mut text = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut text)?;
    }
    let text = text.trim().trim_start_matches("dwell: ").to_owned();
    match child.try_wait()? {
        None if text.is_empty() => Ok(None),
        None => Ok(Some(text).filter(|_| !child.wait().is_ok_and(|status| status.success()))),
        Some(status) if text.is_empty() => Ok(Some(format!("the daemon ended: {status}"))),
        Some(_) => Ok(Some(text)),
    }
}

/// Redirects standard error to a log in this directory, and standard output to /dev/null.
pub fn leave_output(dir: &Path, name: &str) -> Result<()> {
    let log = dir.join(name);
    let log = File::options()
        .append(true)
        .create(true)
        .open(&log)
        .with_context(|| log.display().to_string())?;
    rustix::stdio::dup2_stderr(&log).context("cannot leave standard error")?;
    // The starter takes the end of this for the word that all is well.
    rustix::stdio::dup2_stdout(File::open("/dev/null")?).context("cannot leave standard output")?;
    Ok(())
}

/// A thread that panics may have left half of something done: the whole daemon ends, and whoever
/// watches over it starts another.
pub fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_panic_of_any_thread_ends_a_controller() {
        const NAME: &str = "cmd::daemon::tests::a_panic_of_any_thread_ends_a_controller";
        if env::var_os("DWELL_TEST_PANIC").is_some() {
            abort_on_panic();
            let _ = std::thread::spawn(|| panic!("as it must")).join();
            return;
        }
        let mut again = Command::new(env::current_exe().unwrap());
        let again = again.args(["--exact", NAME]).env("DWELL_TEST_PANIC", "1");
        let ended = again.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        const SIGABRT: i32 = 6;
        assert_eq!(ended.signal(), Some(SIGABRT), "{ended}");
    }
}
