// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell nfs mount` and `unmount`: an export as a directory, served by a daemon of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context as _, Result};
use clap::Args;
use dwell_nfs::fuse::{self, Mounted};
use dwell_nfs::url::Url;

use crate::cmd::daemon;
use crate::{runtime_dir, show, signals};

/// What to mount, and where.
#[derive(Args)]
pub struct Mount {
    /// nfs://server/export/path
    #[arg(value_parser = super::address)]
    address: String,
    /// Directory where programs find it; only yours may look in
    directory: PathBuf,
    /// Stay in the foreground; Ctrl-C and SIGTERM unmount
    #[arg(long)]
    foreground: bool,
    /// Started by `nfs mount`, which waits for a word on standard output.
    #[arg(long, hide = true, requires = "foreground")]
    detached: bool,
}

/// What to unmount.
#[derive(Args)]
pub struct Unmount {
    /// The directory
    directory: PathBuf,
    /// Unmount even if programs use it; they get errors
    #[arg(long)]
    force: bool,
}

/// Mounts an export, in the background unless it is to stay.
pub fn mount(args: &Mount) -> Result<()> {
    if args.foreground {
        return serve(args);
    }
    let mut command = daemon::command()?;
    command.args(["nfs", "mount", "--foreground", "--detached", "--", &args.address]);
    command.arg(absolute(&args.directory)?);
    daemon::launch(command)
}

/// Unmounts an export.
pub fn unmount(args: &Unmount) -> Result<()> {
    fuse::unmount(&args.directory, args.force)?;
    Ok(show::out(&format!("{}: unmounted\n", named(&args.directory)))?)
}

fn named(path: &Path) -> String {
    show::one_line(&path.to_string_lossy())
}

fn serve(args: &Mount) -> Result<()> {
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    daemon::abort_on_panic();
    let url: Url = args.address.parse()?;
    let at = named(&args.directory);
    let mut word = String::new();
    if fuse::is_left_behind(&args.directory)? {
        word += &format!("{at}: took over from a daemon that was killed\n");
    }
    let told = |error: &dwell_nfs::Error| {
        let _ = writeln!(std::io::stderr(), "dwell: {error}");
    };
    let mounted = Mounted::start_telling(&url, &args.directory, told)?;
    let stopper = mounted.stopper();
    let (mut before, place) = (false, at.clone());
    let stop = move |signal| {
        let asked_before = std::mem::replace(&mut before, true);
        let force = signal == signals::TERMINATE || asked_before;
        let Err(error) = stopper.stop(force) else { return };
        if asked_before && !stopper.is_mounted() {
            let what = "ended before everything that programs wrote was durable";
            let _ = writeln!(std::io::stderr(), "dwell: {place}: {what}");
            std::process::exit(1);
        }
        let _ = writeln!(std::io::stderr(), "dwell: {error} (once more to force it)");
    };
    signals::each(stop).context("cannot watch for signals")?;
    word += &format!("{url} is mounted at {at}; locks are local to this machine\n");
    show::out(&word)?;
    if args.detached {
        daemon::leave_output(&runtime_dir::serve_dir()?, "nfs.log")?;
    }
    Ok(mounted.wait()?)
}
