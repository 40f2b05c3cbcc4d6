// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device or file under test, and what is known of it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use dwell::device::{Device, DeviceKind};
use dwell::emulated::Emulated;
use dwell::open;
use dwell::parameters::DeviceParameters;
use dwell::source::Source;
use dwell_host::probe::Probe;
use dwell_host::profile::{DeviceProfile, ProfileStore, SwitchCosts};

use crate::result;

/// Largest request that is measured, in bytes.
const MOST: u64 = 1 << 30;

/// The file, device or address that a run measures on.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Short name in tables.
    pub name: String,
    /// A file, a block device, or the address of a scheme.
    pub address: PathBuf,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether writes are allowed.
    pub write: bool,
    /// What the probe learned, as far as requests need it.
    pub parameters: DeviceParameters,
    /// All that the probe learned.
    pub profile: Option<DeviceProfile>,
    /// What it is, in one line.
    pub description: String,
    /// On emulated devices: what their wake-up costs.
    pub emulated: Option<String>,
    /// Length in bytes.
    pub bytes: u64,
    /// Requests are whole multiples of this many bytes.
    pub block_bytes: u64,
}

/// How a device is probed of which nothing is known.
#[derive(Clone, Debug)]
pub struct Probing {
    switches: SwitchCosts,
    hasty: bool,
}

impl Probing {
    /// For some seconds; what a switch costs on this machine is known.
    pub fn quick(switches: SwitchCosts) -> Self {
        Probing { switches, hasty: false }
    }

    /// For less than a second: there is a profile then, which says little of the device.
    pub fn hasty(switches: SwitchCosts) -> Self {
        Probing { switches, hasty: true }
    }

    /// The probe of a file, a device or the address of a scheme.
    pub fn of(&self, address: &Path) -> Probe {
        let probe = Probe { switches: Some(self.switches.clone()), ..Probe::new(address) };
        if self.hasty { probe.hasty() } else { probe.quick() }
    }
}

impl Subject {
    /// A subject that exists already. Its profile comes from `store`, or from a probe.
    pub fn new(
        name: impl Into<String>,
        address: &Path,
        write: bool,
        store: Option<&ProfileStore>,
        probing: &Probing,
    ) -> Result<Self> {
        // With the rights of the measurement, so that what they lack is said before it begins.
        let Reached { device, direct, extent } = reach(address, write)?;
        let stored = match (store, &device) {
            (Some(store), Some(device)) => {
                let release = dwell_host::capability::kernel_release().unwrap_or_default();
                store.load(device, &release, &device.scheduler)?
            }
            _ => None,
        };
        let profile = match stored {
            Some(profile) => profile,
            None => probing
                .of(address)
                .run(&mut |_, _| {})
                .with_context(|| format!("probing {}", address.display()))?,
        };
        let description = match &device {
            Some(device) => device.to_string(),
            None => address.display().to_string(),
        };
        Ok(Subject {
            name: name.into(),
            address: address.to_owned(),
            direct,
            write,
            parameters: profile.parameters(),
            profile: Some(profile),
            description,
            emulated: emulated(address)?,
            bytes: extent.bytes,
            block_bytes: extent.block_bytes,
        })
    }

    /// Fails unless there will be a subject at an address, and requests of these sizes fit it. It
    /// asks nobody for time: a probe takes seconds.
    pub fn check(address: &Path, write: bool, sizes: &[u64]) -> Result<()> {
        let Reached { extent, .. } = reach(address, write)?;
        let name = address.display().to_string();
        sizes.iter().try_for_each(|&size| extent.check_size(&name, size))
    }

    /// For the report.
    pub fn describe(&self) -> result::Device {
        result::Device {
            name: self.name.clone(),
            description: self.description.clone(),
            class: self.parameters.profile.map(|profile| profile.class.to_string()),
            size_threshold_bytes: self
                .parameters
                .profile
                .map(|profile| profile.size_threshold_bytes),
        }
    }

    /// A descriptor for the hand-written loops.
    pub(crate) fn open_plainly(&self) -> Result<std::fs::File> {
        if open::is_scheme(&self.address) {
            bail!("{}: only Dwell's own policies reach an address of a scheme", self.name);
        }
        OpenOptions::new()
            .read(true)
            .write(self.write)
            .custom_flags(if self.direct { libc::O_DIRECT } else { 0 })
            .open(&self.address)
            .with_context(|| format!("open {}", self.address.display()))
    }

    /// Fails unless requests of `size_bytes` fit and are whole blocks.
    pub fn check_size(&self, size_bytes: u64) -> Result<()> {
        let extent = Extent { bytes: self.bytes, block_bytes: self.block_bytes };
        extent.check_size(&self.name, size_bytes)
    }
}

/// A subject before anything is known of its device.
struct Reached {
    device: Option<Device>,
    direct: bool,
    extent: Extent,
}

/// Opens what an address names as a measurement will.
fn reach(address: &Path, write: bool) -> Result<Reached> {
    let scheme = open::is_scheme(address);
    let device = if scheme { None } else { Some(Device::beneath(address)?) };
    let memory = device.as_ref().is_some_and(|device| device.kind == DeviceKind::Tmpfs);
    let direct = device.is_some() && !memory;
    let opened = dwell::Options::new().direct(direct).write(write).open(address)?;
    let block_bytes = opened.source().alignment().into();
    Ok(Reached { device, direct, extent: Extent { bytes: opened.bytes()?, block_bytes } })
}

/// What requests have to fit.
struct Extent {
    bytes: u64,
    block_bytes: u64,
}

impl Extent {
    fn check_size(&self, name: &str, size_bytes: u64) -> Result<()> {
        let block = self.block_bytes;
        if size_bytes == 0 || !size_bytes.is_multiple_of(block) {
            bail!(
                "{name}: request size {size_bytes} bytes is not a multiple of the block, {block} bytes"
            );
        }
        if size_bytes > MOST {
            bail!("{name}: request size {size_bytes} bytes; at most {MOST}");
        }
        if size_bytes > self.bytes {
            bail!(
                "{name}: request size {size_bytes} bytes is larger than what it holds, {} bytes",
                self.bytes
            );
        }
        Ok(())
    }
}

/// What the emulation itself adds when a waiter blocks; no claim rests on such a device alone.
fn emulated(address: &Path) -> Result<Option<String>> {
    let Some(text) = address.to_str().filter(|text| text.starts_with("emu:")) else {
        return Ok(None);
    };
    let device = Emulated::open(&text.parse()?)?;
    Ok(Some(format!("emulated; a blocked waiter is {}", device.wakeup())))
}
