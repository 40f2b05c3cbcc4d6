// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where scripts are run: a directory with Dwell in between, and one like it without.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dwell_bench::fixture::{FileSystem, LoopOnTmpfs, Unavailable};
use tempfile::TempDir;

use crate::generate::Abilities;
use crate::server::Server;

/// The policies of `dwell run`.
pub const POLICIES: [&str; 7] =
    ["adaptive", "spin", "block", "hybrid", "smartcon", "predictive", "its"];

/// What lies between actors and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The preloaded library, under a policy.
    Preload(&'static str),
    /// A served mount, whose users know nothing of channels.
    Served,
    /// A served mount under the preloaded library.
    Channels,
}

/// Programs of this build.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `dwell`.
    pub dwell: PathBuf,
    /// The actors' program.
    pub actor: PathBuf,
    /// The exerciser itself.
    pub exerciser: PathBuf,
}

impl Programs {
    /// Looks beside this program, and one directory up, where tests lie.
    ///
    /// # Errors
    /// One of them was not built.
    pub fn find() -> Result<Self> {
        let here = std::env::current_exe().context("this program's place")?;
        let near: Vec<&Path> = here.ancestors().skip(1).take(2).collect();
        let find = |name: &str| {
            let all = near.iter().map(|place| place.join(name));
            all.into_iter().find(|path| path.is_file()).with_context(|| {
                format!("no {name} beside {}: cargo build -p dwell-cli -p dwell-preload -p dwell-exerciser", here.display())
            })
        };
        find("libdwell_preload.so")?;
        let dwell = match std::env::var_os("DWELL") {
            Some(path) => path.into(),
            None => find("dwell")?,
        };
        Ok(Programs {
            dwell,
            actor: find("dwell-exerciser-actor")?,
            exerciser: find("dwell-exerciser")?,
        })
    }
}

/// A surface, set up; gone when dropped.
pub struct Site {
    /// Its name on the command line.
    pub name: String,
    layer: Layer,
    programs: Programs,
    /// Where runs without Dwell are made.
    pub plain: PathBuf,
    /// Where runs with Dwell are made.
    pub beneath: PathBuf,
    /// The same files, past a server.
    pub backing: Option<PathBuf>,
    // The file system goes before the directory that it is mounted in.
    _system: Option<FileSystem>,
    /// Settings, scripts and results.
    pub scratch: TempDir,
    passes_channels: bool,
    server: RefCell<Option<Server>>,
    server_kills: Cell<u64>,
}

/// The names of all surfaces that actors use.
pub fn names() -> Vec<String> {
    let preload = POLICIES
        .iter()
        .flat_map(|policy| ["tmpfs", "ext4"].map(|system| format!("preload-{system}-{policy}")));
    let others = ["served", "channels"].iter();
    let others = others.flat_map(|layer| ["tmpfs", "ext4"].map(|on| format!("{layer}-{on}")));
    preload.chain(others).collect()
}

impl Site {
    /// Sets up the surface of this name.
    ///
    /// # Errors
    /// No such name, or something is missing here: an [`Unavailable`].
    pub fn new(name: &str, programs: &Programs) -> Result<Self> {
        let mut words = name.split('-');
        let (layer, on, policy) = (words.next(), words.next(), words.next());
        let layer = match (layer, policy) {
            (Some("preload"), Some(policy)) => {
                let known = POLICIES.iter().find(|known| **known == policy);
                Layer::Preload(known.with_context(|| format!("no policy {policy}"))?)
            }
            (Some("served"), None) => Layer::Served,
            (Some("channels"), None) => Layer::Channels,
            _ => bail!("no surface {name}; there are: {}", names().join(" ")),
        };
        if !matches!(layer, Layer::Preload(_)) && !Path::new("/dev/fuse").exists() {
            return Err(missing("/dev/fuse is not there"));
        }
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = TempDir::with_prefix_in("dwell-exerciser-", &parent)?;
        let system = match on {
            Some("tmpfs") => None,
            Some("ext4") => {
                let device = Box::new(LoopOnTmpfs::blank(192 << 20)?);
                Some(FileSystem::new(device, "ext4", scratch.path())?)
            }
            _ => bail!("no surface {name}; there are: {}", names().join(" ")),
        };
        let top = system.as_ref().map_or_else(|| scratch.path().to_owned(), |at| at.path().into());
        let made = |name: &str| -> Result<PathBuf> {
            let path = top.join(name);
            fs::create_dir(&path)?;
            Ok(path)
        };
        let (plain, beneath) = (made("plain")?, made("beneath")?);
        fs::write(
            scratch.path().join("dwell.toml"),
            "leave_alone_ms = 0\n[[device]]\nmatch = \"loop*\"\nclass = \"fast\"\nsize_threshold = \"64KiB\"\n",
        )?;
        let mut site = Site {
            name: name.to_owned(),
            layer,
            programs: programs.clone(),
            plain,
            beneath,
            backing: None,
            scratch,
            passes_channels: false,
            server: RefCell::new(None),
            server_kills: Cell::new(0),
            _system: system,
        };
        if !matches!(layer, Layer::Preload(_)) {
            let mount = made("mount")?;
            let backing = std::mem::replace(&mut site.beneath, mount);
            site.backing = Some(backing);
            site.serve().map_err(|error| missing(&format!("nothing can be served: {error:#}")))?;
        }
        let help = site.dwell().args(["run", "--help"]).output()?;
        site.passes_channels = layer == Layer::Channels && text(&help).contains("--channels");
        Ok(site)
    }

    /// Whether requests take channels only where they are asked for, and channels make no file
    /// longer.
    pub fn asks_for_channels(&self) -> bool {
        self.passes_channels
    }

    /// What scripts may do here.
    pub fn abilities(&self) -> Abilities {
        let served = self.backing.is_some();
        Abilities { unnamed: !served, disturb: served, ring_position: !served, no_append: !served }
    }

    /// `dwell`, without what this machine's settings say.
    fn dwell(&self) -> Command {
        let mut command = Command::new(&self.programs.dwell);
        let of = |name: &str| self.scratch.path().join(name);
        command.env("DWELL_PROFILES", of("profiles"));
        command.env("DWELL_SYSTEM_CONFIG", of("none.toml")).env("XDG_CONFIG_HOME", of("none"));
        command.env_remove("LD_PRELOAD").env_remove("DWELL_RUN").stdin(Stdio::null());
        command
    }

    /// The actors' program, before whose arguments stands what leads it through this surface.
    pub fn command(&self, with_dwell: bool) -> Command {
        let policy = match self.layer {
            Layer::Preload(policy) => policy,
            Layer::Channels => "spin",
            Layer::Served => return Command::new(&self.programs.actor),
        };
        if !with_dwell {
            return Command::new(&self.programs.actor);
        }
        let mut command = self.dwell();
        command.args(["run", "--quiet", "--policy", policy, "--config"]);
        command.arg(self.scratch.path().join("dwell.toml"));
        command.arg("--stats").arg(self.stats());
        if self.passes_channels {
            command.arg("--channels");
        }
        command.arg("--").arg(&self.programs.actor);
        command
    }

    /// Where a process under the library leaves its figures.
    pub fn stats(&self) -> PathBuf {
        self.scratch.path().join("stats.json")
    }

    fn serve(&self) -> Result<()> {
        let backing = self.backing.as_deref().context("nothing is served here")?;
        let errors = self.scratch.path().join("server");
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let mut command = self.dwell();
            command.args(["serve", "start", "--foreground"]).arg(backing).arg(&self.beneath);
            match Server::start(&mut command, &errors) {
                Ok(server) => {
                    self.server.replace(Some(server));
                    return Ok(());
                }
                // A daemon that just ended may not be gone for everybody yet.
                Err(error) if !format!("{error:#}").contains("served already") => {
                    return Err(error);
                }
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The process of the server beneath, if there is one.
    pub fn server_id(&self) -> Option<u32> {
        self.server.borrow().as_ref().map(Server::id)
    }

    /// Kills of servers so far: those whose waited status is the kill's.
    pub fn server_kills(&self) -> u64 {
        self.server_kills.get()
    }

    /// What to say of a server that ended by itself. There is none then, until
    /// [`Site::has_server`].
    ///
    /// # Errors
    /// It cannot be asked after.
    pub fn server_death(&self) -> Result<Option<String>> {
        let mut server = self.server.borrow_mut();
        let death = server.as_mut().map(Server::ended).transpose()?.flatten();
        if death.is_some() {
            *server = None;
        }
        Ok(death)
    }

    /// Starts a server beneath where there should be one and is none.
    ///
    /// # Errors
    /// It does not come up.
    pub fn has_server(&self) -> Result<()> {
        let is_missing = self.backing.is_some() && self.server.borrow().is_none();
        if is_missing { self.serve().context("the server does not come up again") } else { Ok(()) }
    }

    /// Kills the server beneath as nothing else does, and starts it again.
    ///
    /// # Errors
    /// It was not there, had ended by itself, or does not come back.
    pub fn disturb(&self) -> Result<()> {
        let server = self.server.take().context("there is no server to kill")?;
        if let Some(death) = server.kill()? {
            bail!(death);
        }
        self.server_kills.update(|kills| kills + 1);
        self.serve().context("the server does not come back")
    }
}

fn missing(why: &str) -> anyhow::Error {
    anyhow::Error::new(Missing(why.to_owned()))
}

/// Why a surface cannot be had here.
#[derive(Debug)]
pub struct Missing(pub String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Whether an error says that something is missing on this machine.
pub fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Missing>().is_some() || error.downcast_ref::<Unavailable>().is_some()
}

fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.backing.is_some() {
            let mut stop = self.dwell();
            stop.args(["serve", "stop", "--force"]).arg(&self.beneath);
            let _ = stop.output();
            drop(self.server.take());
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let at = self.beneath.display().to_string();
            if mounts.lines().any(|line| line.split(' ').nth(4) == Some(&at)) {
                let mut unmount = Command::new("umount");
                let _ = unmount.arg("-l").arg(&at).stderr(Stdio::null()).status();
            }
        }
    }
}
