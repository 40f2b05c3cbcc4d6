// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell run`: become a command, with Dwell loaded into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use dwell::seccomp::filters;
use dwell::share::Share;
use dwell_host::profile::ProfileStore;
use dwell_host::settings::{LayerError, Paging, Pattern, RunOrder, Set, Settings, Waiting};

use super::explain::policy_name;
use super::off;
use crate::exec;
use crate::given;
use crate::places;
use crate::program::{self, CannotRun, Program};
use crate::runtime_dir::runtime_dir;
use crate::settings;
use crate::show;
use crate::size;

/// The library that is loaded.
const LIBRARY: &str = "libdwell_preload.so";
/// Names it where it is in no usual place.
const LIBRARY_VARIABLE: &str = "DWELL_PRELOAD";
/// What the loader reads.
const LOADED: &str = "LD_PRELOAD";
/// The kernel takes no longer text than 128 KiB, the variable's name included.
const LONGEST_ORDER_BYTES: usize = (128 << 10) - 64;

/// Run a command under Dwell, which decides how its file requests wait
///
/// The command replaces this process: process id, exit status, signals and open files are as
/// without Dwell. If a program cannot be preloaded (static, set-user-id), it runs untouched, and a
/// line on stderr says so.
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: the command's own; 2 after a wrong command line, 125 when Dwell itself fails, 126 when the command cannot be run, 127 \
when there is no such command.")]
pub struct Args {
    /// Use this wait policy on every device
    #[arg(long, value_name = "POLICY", value_parser = policy_name)]
    policy: Option<String>,
    /// Decide and record, but change nothing
    #[arg(long)]
    shadow: bool,
    /// Steer only a part: "5% of requests", "5% of processes" or "5% of hosts"
    #[arg(long, value_name = "SHARE")]
    steer: Option<Share>,
    /// Bring in mapped files with Dwell's pager: a path's pattern; files that nobody may write
    #[arg(long, value_name = "GLOB", value_parser = Pattern::of_path)]
    pager: Vec<Pattern>,
    /// Memory for the pages of each file of --pager
    #[arg(long, value_name = "SIZE", default_value = "256MiB", requires = "pager", value_parser = paging_bytes)]
    pager_memory: u64,
    /// Use channels for files under a mount of dwell serve
    #[arg(long)]
    channels: bool,
    /// Write the statistics of the run to a file, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Read settings that override those of the machine and the user
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print what was decided and why when the command ends
    #[arg(short, long)]
    verbose: bool,
    /// Print no progress and no warnings
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Memory that a region can do with.
fn paging_bytes(text: &str) -> Result<u64, String> {
    match size::bytes(text)? {
        bytes if bytes < 1 << 20 => Err("the pager wants 1MiB at least".to_owned()),
        bytes => Ok(bytes),
    }
}

/// The order to page, with what stderr is.
fn paging(args: &Args) -> Option<Paging> {
    let status = rustix::fs::fstat(std::io::stderr()).ok();
    let files = (!args.pager.is_empty()).then(|| args.pager.clone())?;
    let stderr = status.map(|status| (status.st_dev, status.st_ino));
    Some(Paging { files, budget_bytes: args.pager_memory, stderr })
}

/// Becomes the command; comes back only if it cannot.
pub fn run(args: &Args) -> Result<()> {
    let program = program::find(&args.command[0])?;
    let Program { path, closed, is_binary } = &program;
    let variables = match closed {
        Some(why) => {
            args.say(&format!(
                "{}: {why} cannot be preloaded; it runs untouched (dwell advise -- CMD shows its waits; Dwell's library can be \
                 linked into it)",
                path.display()
            ));
            Vec::new()
        }
        None => variables(args)
            .map_err(|error| CannotRun { status: 125, what: format!("{error:#}") })?,
    };
    let error = exec::exec(path, &args.command, &variables, !is_binary);
    Err(CannotRun::refused(path, &error).into())
}

/// What the command's processes are to find in their environment.
fn variables(args: &Args) -> Result<Vec<(&'static str, OsString)>> {
    let passed_over = |error: &LayerError| args.say(&format!("{error}; it is passed over"));
    let said = settings::read_with(args.config.as_deref(), passed_over)?.under(options(args));
    let library = library()?;
    let order = serde_json::to_string(&order(args, said)?)?;
    ensure!(
        order.len() <= LONGEST_ORDER_BYTES,
        "the settings make {} KiB of text, more than a command's environment can carry (128 KiB); \
         shorten the lists of [exclude]",
        order.len() >> 10
    );
    let loaded = preloaded(&library, env::var_os(LOADED).as_deref());
    Ok(vec![(LOADED, loaded), (RunOrder::VARIABLE, order.into())])
}

/// What the command line says, as the last layer of the settings.
fn options(args: &Args) -> Settings {
    let policy = args.policy.as_ref().map(|policy| Set::option("--policy", policy.clone()));
    let steer = args.steer.map(|share| Set::option("--steer", share));
    Settings {
        waiting: Waiting { policy, steer, ..Waiting::default() },
        shadow: args.shadow.then(|| Set::option("--shadow", true)),
        ..Settings::default()
    }
}

fn order(args: &Args, settings: Settings) -> Result<RunOrder> {
    let absolute = |path: &Path| std::path::absolute(path).context("no current directory");
    let stats_dir = runtime_dir().map_err(|error| {
        args.say(&format!("this run will not be seen by dwell top and dwell ctl: {error:#}"));
    });
    let stats_file = args.stats.as_deref().map(absolute).transpose()?;
    given::output(stats_file.as_deref()).context("--stats")?;
    let profiles = places::known_profiles();
    args.say_unusable(&profiles);
    if let Some(off) = places::off_switch().off() {
        args.say(&format!("Dwell is {}; until it is on, nothing is decided", off::words(&off)));
    }
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(RunOrder {
        run_id: u64::from_ne_bytes(random),
        root_pid: std::process::id(),
        policy: args.policy.clone(),
        shadow: settings.general().shadow.value,
        stats_dir: stats_dir.ok(),
        stats_file,
        profile_dir: absolute(&profiles.dir)?,
        machine_profile_dir: profiles.machine,
        quiet: args.quiet,
        verbose: args.verbose,
        channels: args.channels,
        filters: filters(),
        pager: paging(args),
        settings,
    })
}

impl Args {
    /// Names the profiles of this kernel that cannot be used: the devices that they are of pass
    /// straight through, and nobody else says so.
    fn say_unusable(&self, profiles: &ProfileStore) {
        let machine = profiles.machine.as_ref().map(ProfileStore::new);
        for store in [Some(profiles), machine.as_ref()].into_iter().flatten() {
            // What cannot be listed is not there for this user.
            for listed in store.list().unwrap_or_default() {
                if let Err(error) = &listed.profile
                    && listed.is_of_this_kernel()
                {
                    self.say(&format!("{error}; until then its device passes straight through"));
                }
            }
        }
    }

    /// A warning, which --quiet leaves out.
    fn say(&self, text: &str) {
        if !self.quiet {
            // Where this cannot be said, the command is still to be run.
            let _ = writeln!(std::io::stderr(), "dwell: {}", show::one_line(text));
        }
    }
}

/// The library: where a variable says, else where it was built or installed.
pub(super) fn library() -> Result<PathBuf> {
    let library = match env::var_os(LIBRARY_VARIABLE).filter(|chosen| !chosen.is_empty()) {
        Some(chosen) => {
            let chosen = std::path::absolute(chosen).context("no current directory")?;
            ensure!(
                chosen.is_file(),
                "{LIBRARY_VARIABLE} names {}, and there is no such file",
                chosen.display()
            );
            chosen
        }
        // Without the way round `..`, which a chroot or a move could change.
        None => {
            let found = places::installed(LIBRARY)
                .map_err(|error| anyhow!("{error:#}, or name it in {LIBRARY_VARIABLE}"))?;
            found.canonicalize().with_context(|| found.display().to_string())?
        }
    };
    let fits = |byte: &u8| !byte.is_ascii_whitespace() && !matches!(byte, b':' | b'$');
    ensure!(
        library.as_os_str().as_bytes().iter().all(fits),
        "{}: {LOADED} cannot carry a path with a blank, a colon or a dollar sign in it; put the \
         library elsewhere and name it in {LIBRARY_VARIABLE}",
        library.display()
    );
    Ok(library)
}

/// The library before whatever is preloaded already.
fn preloaded(library: &Path, already: Option<&OsStr>) -> OsString {
    let mut loaded = library.as_os_str().to_owned();
    let already = already.unwrap_or_default().as_bytes();
    let others = already.split(|byte| matches!(byte, b':' | b' '));
    for other in
        others.filter(|other| !other.is_empty() && *other != library.as_os_str().as_bytes())
    {
        loaded.push(":");
        loaded.push(OsStr::from_bytes(other));
    }
    loaded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_preloaded_library_stays_behind_this_one() {
        let of = |already: Option<&str>| {
            let loaded = preloaded("/l/x.so".as_ref(), already.map(OsStr::new));
            loaded.into_string().unwrap()
        };
        assert_eq!(of(None), "/l/x.so");
        assert_eq!(of(Some("")), "/l/x.so");
        assert_eq!(of(Some("a.so:/b.so c.so")), "/l/x.so:a.so:/b.so:c.so");
        assert_eq!(of(Some("a.so:/l/x.so")), "/l/x.so:a.so");
    }
}
