// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doctor's part on settings: which files were read, what holds, and where it was said.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use dwell::device::Device;
use dwell::policy::CpuSignal;
use dwell_bench::units;
use dwell_host::settings::{
    DeviceNames, Effective, General, LayerError, Origin, Pattern, Set, Settings, SettingsError,
};
use serde::Serialize;

use crate::settings::{Layer, layers, together};
use crate::show::{self, Screen, Tone, finished};

/// The settings as JSON.
#[derive(Serialize)]
pub struct Told {
    files: Vec<ToldFile>,
    general: General,
    excluded_paths: Vec<Set<Pattern>>,
    excluded_programs: Vec<Set<Pattern>>,
    devices: Vec<ToldDevice>,
}

#[derive(Serialize)]
struct ToldFile {
    whose: &'static str,
    path: PathBuf,
    /// `read`, `missing` or `unusable`.
    state: &'static str,
    error: Option<String>,
    /// Where the error is, if the file is malformed.
    at: Option<SettingsError>,
}

#[derive(Serialize)]
struct ToldDevice {
    name: String,
    effective: Effective,
}

/// Settings as they are on this machine now.
pub struct Found {
    layers: Vec<Layer>,
    settings: Settings,
    devices: Vec<ToldDevice>,
}

impl Found {
    /// Reads the files, `given` among them, and asks what holds for these devices.
    pub fn look<'a>(given: Option<&Path>, devices: impl Iterator<Item = &'a Device>) -> Found {
        let layers = layers(given);
        let settings = together(&layers);
        let devices = devices.map(|device| ToldDevice {
            name: device.kernel_name.clone(),
            effective: settings.for_device(&DeviceNames::of(device)),
        });
        let devices = devices.collect();
        Found { layers, settings, devices }
    }

    /// Why files cannot be used.
    pub fn errors(&self) -> impl Iterator<Item = String> {
        self.layers.iter().filter_map(|layer| Some(layer.found.as_ref().err()?.to_string()))
    }

    /// All of it, for JSON.
    pub fn told(self) -> Told {
        Told {
            files: self.layers.into_iter().map(ToldFile::from).collect(),
            general: self.settings.general(),
            excluded_paths: self.settings.excluded_paths,
            excluded_programs: self.settings.excluded_programs,
            devices: self.devices,
        }
    }

    /// The values that hold, then the files.
    pub fn text(&self, screen: &Screen) -> String {
        let mut table = screen.table(&["setting", "value", "from"], &[]);
        for (name, value, origin) in self.rows() {
            let tone = if *origin == Origin::Default { Tone::Quiet } else { Tone::Strong };
            let origin = screen.cell(Tone::Quiet, show::one_line(&origin.to_string()));
            table.add_row([name.into(), screen.cell(tone, show::one_line(&value)), origin]);
        }
        let mut text = finished(&table) + "\n";
        for Layer { whose, path, found } in &self.layers {
            let path = show::one_line(&path.display().to_string());
            text += &match found {
                Ok(Some(_)) => screen.labelled(&format!("{whose:<9}  "), &format!("{path}, read")),
                Ok(None) => {
                    screen.labelled(&format!("{whose:<9}  "), &format!("{path}, not there"))
                }
                Err(error) => {
                    let what = format!("{}; nothing of this file holds", error);
                    screen.labelled_in(Tone::Bad, "✗ ", &show::one_line(&what))
                }
            };
        }
        text
    }

    fn rows(&self) -> Vec<(String, String, &Origin)> {
        let mut rows = Rows(Vec::new());
        let said = &self.settings;
        rows.said("policy", said.waiting.policy.as_ref(), Clone::clone, "adaptive");
        rows.said("goal", said.waiting.goal.as_ref(), text, "balanced");
        rows.said("cpu_threshold", said.waiting.cpu_threshold.as_ref(), percent, "the monitor's");
        rows.said("queue_limit", said.waiting.queue_limit.as_ref(), text, "none");
        rows.said("cpu_signal", said.waiting.cpu_signal.as_ref(), signal, "others");
        rows.said("steer", said.waiting.steer.as_ref(), text, "100% of requests");
        rows.said("leave_alone_ms", said.leave_alone_ms.as_ref(), text, "20");
        rows.said("shadow", said.shadow.as_ref(), text, "false");
        rows.said("spin_cap", said.spin_cap.as_ref(), percent, "none");
        rows.said("probe.on_add", said.probe_on_add.as_ref(), text, "false");
        for (name, patterns) in
            [("exclude.paths", &said.excluded_paths), ("exclude.programs", &said.excluded_programs)]
        {
            for pattern in patterns {
                rows.put(name, pattern.value.to_string(), &pattern.origin);
            }
        }
        for ToldDevice { name, effective: device } in &self.devices {
            let waiting = &said.waiting;
            let row = |key: &str| format!("{name}: {key}");
            if Some(&device.policy) != waiting.policy.as_ref() {
                rows.of_device(&row("policy"), Some(&device.policy), Clone::clone);
            }
            if device.cpu_threshold != waiting.cpu_threshold {
                rows.of_device(&row("cpu_threshold"), device.cpu_threshold.as_ref(), percent);
            }
            if device.queue_limit != waiting.queue_limit {
                rows.of_device(&row("queue_limit"), device.queue_limit.as_ref(), text);
            }
            if Some(&device.cpu_signal) != waiting.cpu_signal.as_ref() {
                rows.of_device(&row("cpu_signal"), Some(&device.cpu_signal), signal);
            }
            if device.steer != waiting.steer {
                rows.of_device(&row("steer"), device.steer.as_ref(), text);
            }
            rows.of_device(&row("class"), device.class.as_ref(), text);
            let (size, largest) = (&device.size_threshold_bytes, &device.largest_threshold_bytes);
            rows.of_device(&row("size_threshold"), size.as_ref(), bytes);
            rows.of_device(&row("largest_threshold"), largest.as_ref(), bytes);
            rows.of_device(&row("exclude"), Some(&device.exclude), text);
        }
        rows.0
    }
}

/// Rows of the table: what, its value, where it was said.
struct Rows<'a>(Vec<(String, String, &'a Origin)>);

impl<'a> Rows<'a> {
    fn put(&mut self, name: &str, value: String, origin: &'a Origin) {
        self.0.push((name.to_owned(), value, origin));
    }

    /// A value, or what holds where nobody said one.
    fn said<T>(
        &mut self,
        name: &str,
        set: Option<&'a Set<T>>,
        show: fn(&T) -> String,
        default: &str,
    ) {
        match set {
            Some(set) => self.put(name, show(&set.value), &set.origin),
            None => self.put(name, default.to_owned(), &Origin::Default),
        }
    }

    /// A value of a device, if somebody said it.
    fn of_device<T>(&mut self, name: &str, set: Option<&'a Set<T>>, show: fn(&T) -> String) {
        if let Some(set) = set.filter(|set| set.origin != Origin::Default) {
            self.put(name, show(&set.value), &set.origin);
        }
    }
}

fn text<T: Display>(value: &T) -> String {
    value.to_string()
}

fn percent(share: &f32) -> String {
    units::percent((*share).into())
}

fn bytes(bytes: &u64) -> String {
    units::bytes(*bytes)
}

fn signal(signal: &CpuSignal) -> String {
    match signal {
        CpuSignal::Others => "others".to_owned(),
        CpuSignal::Total => "total".to_owned(),
    }
}

impl From<Layer> for ToldFile {
    fn from(Layer { whose, path, found }: Layer) -> Self {
        let state = match &found {
            Ok(Some(_)) => "read",
            Ok(None) => "missing",
            Err(_) => "unusable",
        };
        let error = found.as_ref().err().map(ToString::to_string);
        let at = match found {
            Err(LayerError::Malformed(error)) => Some(error),
            _ => None,
        };
        ToldFile { whose, path, state, error, at }
    }
}
