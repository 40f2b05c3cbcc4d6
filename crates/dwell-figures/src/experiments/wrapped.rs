// SPDX-License-Identifier: MIT OR Apache-2.0
//! What experiments on unmodified programs share: `dwell run`, where any user may run it, and the
//! profiles that it goes by.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dwell_host::profile::ProfileStore;
use tempfile::TempDir;

use super::Lab;
use dwell_bench::compare::{self, Comparison, Plan, UNTOUCHED, Variant, Wrapper};
use dwell_bench::workload::Place;

/// The policy under which programs are run.
pub const POLICY: &str = "adaptive";
/// What lies beside the program `dwell` and does the work.
const LIBRARY: &str = "libdwell_preload.so";

/// A copy of `dwell` with its library and with profiles, in a directory that every user can enter:
/// some servers refuse to run as root.
pub struct Wrapping {
    scratch: TempDir,
}

impl Wrapping {
    /// The copy, or why programs cannot be wrapped here.
    pub fn make(lab: &Lab) -> Result<Result<Self, String>> {
        let Some(dwell) = &lab.dwell else {
            return Ok(Err("this program has no `dwell run`".into()));
        };
        let scratch = tempfile::tempdir().context("a directory for a copy of dwell")?;
        open_to_all(scratch.path())?;
        let wrapping = Wrapping { scratch };
        let copy = wrapping.dwell();
        fs::copy(dwell, &copy).with_context(|| format!("copying {}", dwell.display()))?;
        open_to_all(&copy)?;
        let library = dwell.with_file_name(LIBRARY);
        if library.is_file() {
            let copy = wrapping.scratch.path().join(LIBRARY);
            fs::copy(&library, &copy).with_context(|| format!("copying {}", library.display()))?;
            open_to_all(&copy)?;
        }
        fs::create_dir(wrapping.profiles()).context("a directory for profiles")?;
        open_to_all(&wrapping.profiles())?;
        let tried =
            started(Command::new(&copy).args(["run", "--policy", POLICY, "--quiet", "--", "true"]));
        let tried = tried.with_context(|| format!("cannot start {}", copy.display()))?;
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr);
            let said = said.lines().last().unwrap_or_default().to_owned();
            return Ok(Err(format!("dwell run does not run here: {said}")));
        }
        Ok(Ok(wrapping))
    }

    /// The program.
    pub fn dwell(&self) -> PathBuf {
        self.scratch.path().join("dwell")
    }

    fn profiles(&self) -> PathBuf {
        self.scratch.path().join("profiles")
    }

    /// What makes `dwell run` know nothing but what it learned so itself.
    pub fn unprobed(&self) -> Vec<(OsString, OsString)> {
        let of = |name: &str| self.scratch.path().join(name).into();
        vec![
            ("DWELL_PROFILES".into(), of("no-profiles")),
            ("DWELL_HOST_PAGE".into(), of("host-page")),
        ]
    }

    /// Lets `dwell run` know what the probe learned of a place.
    pub fn know(&self, place: &Place) -> Result<()> {
        let Some(profile) = &place.profile else { return Ok(()) };
        let file = ProfileStore::new(self.profiles()).save(profile)?;
        let readable = Permissions::from_mode(0o644);
        fs::set_permissions(&file, readable).with_context(|| file.display().to_string())
    }

    /// A command untouched and by `wrapper`.
    pub fn plan(&self, program: Vec<OsString>, wrapper: Wrapper, rounds: usize) -> Plan {
        Plan {
            rounds,
            directory: self.scratch.path().join("output"),
            environment: vec![("DWELL_PROFILES".into(), self.profiles().into())],
            ..Plan::new(program, &[POLICY], wrapper)
        }
    }
}

/// Runs a program that was just written. A thread that forked meanwhile has it open for writing
/// until it execs, and so long the program is busy.
fn started(command: &mut Command) -> std::io::Result<Output> {
    let busy = |ran: &std::io::Result<Output>| {
        ran.as_ref().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy)
    };
    let mut ran = command.stdin(Stdio::null()).output();
    for _ in 0..100 {
        if !busy(&ran) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        ran = command.output();
    }
    ran
}

/// Lets every user read, enter and run.
pub fn open_to_all(path: &Path) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
        .with_context(|| format!("opening {} to all users", path.display()))
}

/// Compares to the end.
pub fn compared(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Comparison> {
    let comparison = compare::run(plan, Vec::new(), progress)?;
    match comparison.ended {
        None => Ok(comparison),
        // Half of it is no figure.
        Some(why) => bail!(why),
    }
}

/// The wrapped variant and the untouched one.
pub fn both_variants(comparison: &Comparison) -> Result<(&Variant, &Variant)> {
    Ok((variant(comparison, POLICY)?, variant(comparison, UNTOUCHED)?))
}

/// The variant of that name.
fn variant<'a>(comparison: &'a Comparison, name: &str) -> Result<&'a Variant> {
    let found = comparison.variants.iter().find(|variant| variant.name == name);
    found.with_context(|| format!("the variant {name} is missing"))
}
