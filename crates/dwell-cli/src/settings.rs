// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings files: where they are, which of them are there, and what they say together.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use dwell_host::settings::{LayerError, Settings};

use crate::places;

/// Whose the settings are that belong to the person who started the command.
const USER: &str = "user";

/// One settings file.
pub struct Layer {
    /// Whose it is: `system`, `user`, `--config`.
    pub whose: &'static str,
    /// Where it is looked for.
    pub path: PathBuf,
    /// What it says; `None` when it is not there.
    pub found: Result<Option<Settings>, LayerError>,
}

/// The files of the machine, of this user and of `--config`, the one that wins last.
pub fn layers(given: Option<&Path>) -> Vec<Layer> {
    let (system, user) = places::settings();
    let mut layers = vec![layer("system", system)];
    layers.extend(user.map(|path| layer(USER, path)));
    if let Some(path) = given {
        let mut layer = layer("--config", path.to_owned());
        if let Ok(None) = layer.found {
            let error = io::Error::other("no such file; --config names an existing one");
            layer.found = Err(LayerError::Unreadable { path: path.to_owned(), error });
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
    usable(given, |_| false)
}

/// The same for what can do without the user's own file where the system does not let that be read:
/// `passed_over` hears of it.
///
/// # Errors
/// Those of [`read`].
pub fn read_with(given: Option<&Path>, passed_over: impl Fn(&LayerError)) -> Result<Settings> {
    usable(given, |layer| match &layer.found {
        Err(unreadable @ LayerError::Unreadable { error, .. })
            if layer.whose == USER && error.raw_os_error().is_some() =>
        {
            passed_over(unreadable);
            true
        }
        _ => false,
    })
}

fn usable(given: Option<&Path>, is_passed_over: impl Fn(&Layer) -> bool) -> Result<Settings> {
    let layers = layers(given);
    let failed = |layer: &&Layer| layer.found.is_err() && !is_passed_over(layer);
    match layers.iter().find(failed).and_then(|layer| layer.found.as_ref().err()) {
        Some(error) => Err(anyhow!("{error}")),
        None => Ok(together(&layers)),
    }
}

fn layer(whose: &'static str, path: PathBuf) -> Layer {
    Layer { whose, found: Settings::of_file(&path), path }
}
