// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store keeps of the device beneath an address, as things are on this machine now.

use std::path::Path;

use super::{DeviceProfile, ProfileError, ProfileStore};
use crate::capability::profiled_release;
use dwell::device::{Device, DeviceError, DeviceKind};
use dwell::error::Error;
use dwell::open::{self, Options};
use dwell::parameters::DeviceParameters;

/// The device beneath an address, and its profile under this kernel and its present scheduler.
#[derive(Clone, Debug)]
pub struct Beneath {
    /// The device; `None` where the address belongs to a scheme.
    pub device: Option<Device>,
    /// Its profile; `None` when it was not probed under this kernel and scheduler.
    pub profile: Option<DeviceProfile>,
}

impl Beneath {
    /// Whether its profile speaks of direct I/O: files that live in the page cache have none.
    pub fn direct(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.kind != DeviceKind::Tmpfs)
    }

    /// Choices for opening it as it was probed.
    pub fn options(&self) -> Options {
        Options::new().direct(self.direct()).parameters(self.parameters())
    }

    /// What issuing requests needs of it.
    pub fn parameters(&self) -> DeviceParameters {
        self.profile.as_ref().map(DeviceProfile::parameters).unwrap_or_default()
    }
}

/// Why nothing can be said of an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeneathError {
    /// No device was found.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// What was to be made cannot be.
    #[error(transparent)]
    Made(#[from] Error),
}

impl ProfileStore {
    /// Finds the device beneath a path, or the source of a scheme's address, and its profile.
    ///
    /// # Errors
    /// A path that is no storage; a profile that is damaged.
    pub fn beneath(&self, address: &Path) -> Result<Beneath, BeneathError> {
        if open::is_scheme(address) {
            let id = address.display().to_string();
            let profile = self.load_by_id(&id, &profiled_release(), "none")?;
            return Ok(Beneath { device: None, profile });
        }
        let device = Device::beneath(address)?;
        let profile = self.of(&device)?;
        Ok(Beneath { device: Some(device), profile })
    }

    /// As [`ProfileStore::beneath`], for the files of a directory.
    ///
    /// # Errors
    /// As [`ProfileStore::beneath`].
    pub fn beneath_files_in(&self, directory: &Path) -> Result<Beneath, BeneathError> {
        let device = Device::beneath_files_in(directory)?;
        let profile = self.of(&device)?;
        Ok(Beneath { device: Some(device), profile })
    }

    /// As [`ProfileStore::beneath`], for an address about to be opened with `options`: a missing
    /// file is made first where they say so, since only what is there lies on a device.
    ///
    /// # Errors
    /// As [`ProfileStore::beneath`]; what the system refuses when the file is made.
    pub fn beneath_opened(
        &self,
        address: &Path,
        options: &Options,
    ) -> Result<Beneath, BeneathError> {
        if options.create && !open::is_scheme(address) && !address.exists() {
            options.open(address)?;
        }
        self.beneath(address)
    }

    /// The profile of a device under this kernel and its present scheduler.
    ///
    /// # Errors
    /// A profile that is damaged.
    pub fn of(&self, device: &Device) -> Result<Option<DeviceProfile>, ProfileError> {
        self.load(device, &profiled_release(), &device.whole().scheduler)
    }
}
