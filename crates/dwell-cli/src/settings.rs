// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings files: where they are, which of them are there, and what they say together.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use dwell::settings::{Settings, SettingsError};

use crate::places;

/// Nobody writes this much by hand; what is longer was never a settings file.
const LONGEST_BYTES: u64 = 1 << 20;

/// One settings file.
pub struct Layer {
    /// Whose it is: `system`, `user`, `--config`.
    pub whose: &'static str,
    /// Where it is looked for.
    pub path: PathBuf,
    /// What it says; `None` when it is not there.
    pub found: Result<Option<Settings>, LayerError>,
}

/// Why a settings file says nothing.
#[derive(Debug)]
pub enum LayerError {
    /// It cannot be read.
    Unreadable(String),
    /// It is malformed.
    Malformed(SettingsError),
}

impl std::fmt::Display for LayerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LayerError::Unreadable(what) => f.write_str(what),
            LayerError::Malformed(error) => error.fmt(f),
        }
    }
}

/// The files of the machine, of this user and of `--config`, the one that wins last.
pub fn layers(given: Option<&Path>) -> Vec<Layer> {
    let (system, user) = places::settings();
    let mut layers = vec![layer("system", system)];
    layers.extend(user.map(|path| layer("user", path)));
    if let Some(path) = given {
        let mut layer = layer("--config", path.to_owned());
        if let Ok(None) = layer.found {
            let what = format!("{}: no such file; --config names an existing one", path.display());
            layer.found = Err(LayerError::Unreadable(what));
        }
        layers.push(layer);
    }
    layers
}

/// What all layers say together; those that cannot be used say nothing.
pub fn together(layers: &[Layer]) -> Settings {
    let said = layers.iter().filter_map(|layer| layer.found.as_ref().ok()?.clone());
    said.fold(Settings::default(), Settings::under)
}

/// What the files say, if all of them can be used.
///
/// # Errors
/// The first that cannot: file, line and key.
pub fn read(given: Option<&Path>) -> Result<Settings> {
    let layers = layers(given);
    match layers.iter().find_map(|layer| layer.found.as_ref().err()) {
        Some(error) => Err(anyhow!("{error}")),
        None => Ok(together(&layers)),
    }
}

fn layer(whose: &'static str, path: PathBuf) -> Layer {
    let found = match text(&path) {
        Ok(text) => Settings::parse(&text, &path).map(Some).map_err(LayerError::Malformed),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(LayerError::Unreadable(format!(
            "{}: cannot be read as settings: {error}",
            path.display()
        ))),
    };
    Layer { whose, path, found }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(LONGEST_BYTES + 1).read_to_string(&mut text)?;
    match read as u64 > LONGEST_BYTES {
        true => Err(io::Error::other("it is longer than 1 MiB")),
        false => Ok(text),
    }
}
