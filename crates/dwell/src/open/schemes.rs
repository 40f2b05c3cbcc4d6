// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources behind addresses and paths: schemes that the engine knows, and openers that subsystems
//! register.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Options;
use crate::any::{Boxed, OtherSource};
use crate::emulated::Emulated;
use crate::error::Result;
use crate::memory::{self, Memory};
use crate::parameters::DeviceParameters;

/// What a scheme's opener returns.
pub struct Opened {
    /// The source.
    pub source: OtherSource,
    /// Tells its device apart from others.
    pub device: String,
    /// Parameters of its device; a profile given to [`Options::parameters`] wins.
    pub parameters: DeviceParameters,
}

/// Opens the addresses of one scheme.
pub type Opener = Box<dyn Fn(&str, &Options) -> Result<Opened> + Send + Sync>;

static OPENERS: RwLock<Vec<(String, Arc<Opener>)>> = RwLock::new(Vec::new());

/// Makes `File::open("SCHEME:…")` reach a source that the engine does not know. A scheme that is
/// registered again is replaced.
pub fn register(scheme: &str, opener: Opener) {
    let mut openers = OPENERS.write().unwrap_or_else(PoisonError::into_inner);
    openers.retain(|(known, _)| known != scheme);
    openers.push((scheme.to_owned(), Arc::new(opener)));
}

/// Opens paths of a kind of its own, such as those under a mount that a subsystem serves; `None`
/// for all others.
pub type PathOpener = Box<dyn Fn(&Path, &Options) -> Option<Result<Opened>> + Send + Sync>;

static PATH_OPENERS: RwLock<Vec<Arc<PathOpener>>> = RwLock::new(Vec::new());

/// Makes `File::open(path)` ask `opener` first. Openers are asked in the order in which they came.
pub fn register_paths(opener: PathOpener) {
    PATH_OPENERS.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(opener));
}

/// The scheme of an emulated device: `emu:z-nand`.
pub const EMULATED: &str = "emu";
/// The scheme of a file that is memory and is served by copying: `mem:/dev/shm/data`. It says that
/// nobody shortens the file while it is open ([`memory::Options::assume_stable`]).
pub const MEMORY: &str = "mem";

fn built_in(scheme: &str, address: &str, options: &Options) -> Option<Result<Opened>> {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let source: Result<OtherSource> = match scheme {
        EMULATED => address
            .parse()
            .and_then(|spec| Emulated::open(&spec))
            .map(|device| Box::new(Boxed(device)) as OtherSource),
        MEMORY => {
            let path = &address[MEMORY.len() + 1..];
            let options = memory::Options { writable: options.write, assume_stable: true };
            Memory::open_with(path, options).map(|file| Box::new(Boxed(file)) as OtherSource)
        }
        _ => return None,
    };
    // Each opening is a device of its own.
    let device = format!("{address}#{}", OPENED.fetch_add(1, Ordering::Relaxed));
    Some(source.map(|source| Opened { source, device, parameters: DeviceParameters::default() }))
}

/// Whether an address belongs to a registered scheme rather than to the file system.
pub fn is_scheme(address: &Path) -> bool {
    let scheme =
        address.to_str().and_then(|address| address.split_once(':')).map(|(scheme, _)| scheme);
    let openers = OPENERS.read().unwrap_or_else(PoisonError::into_inner);
    scheme.is_some_and(|scheme| {
        scheme == EMULATED || scheme == MEMORY || openers.iter().any(|(known, _)| known == scheme)
    })
}

impl Options {
    pub(super) fn by_scheme(&self, path: &Path) -> Option<Result<Opened>> {
        let address = path.to_str()?;
        let (scheme, _) = address.split_once(':')?;
        if let Some(opened) = built_in(scheme, address, self) {
            return Some(opened);
        }
        // An opener may open and register others: the lock is not held while it runs.
        let opener = {
            let openers = OPENERS.read().unwrap_or_else(PoisonError::into_inner);
            openers.iter().find(|(known, _)| known == scheme)?.1.clone()
        };
        Some(opener(address, self))
    }

    pub(super) fn by_path(&self, path: &Path) -> Option<Result<Opened>> {
        let openers = PATH_OPENERS.read().unwrap_or_else(PoisonError::into_inner).clone();
        openers.iter().find_map(|opener| opener(path, self))
    }
}
