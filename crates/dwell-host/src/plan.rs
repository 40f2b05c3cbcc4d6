// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Dwell will do on each block device of this machine, as things are now.

use dwell_policy::policy::Adaptive;
use dwell_policy::{Decision, Kind, Reason, Routes, Wait, WaitPolicy};

use crate::profile::{DeviceProfile, ProfileError, ProfileStore};
use dwell::device::Device;
use dwell::kernel;

/// What will be done with direct I/O on one device.
#[derive(Debug)]
pub struct Plan {
    /// The device.
    pub device: Device,
    /// Its profile under this kernel and scheduler, or why it cannot be used.
    pub profile: Result<Option<DeviceProfile>, ProfileError>,
    /// Routes that its requests can take.
    pub routes: Routes,
    /// What the default policy decides for a lone 4 KiB read of an idle machine.
    pub small_read: Decision,
}

impl Plan {
    /// Why every read and write of the device is waited for in the same way; `None` where requests
    /// are decided one by one.
    pub fn always(&self) -> Option<Reason> {
        let profile = self.profile.as_ref().ok().and_then(Option::as_ref);
        Adaptive::default().always_inline(profile.map(|p| &p.decision)).map(|(_, why)| why)
    }
}

/// The plan of every block device that holds something, by kernel name.
pub fn plan(store: &ProfileStore) -> Vec<Plan> {
    let of = |device: Device| {
        let profile = store.of(&device);
        let parameters =
            profile.as_ref().ok().and_then(Option::as_ref).map(DeviceProfile::parameters);
        let parameters = parameters.unwrap_or_default();
        let routes = kernel::offered(parameters.polled);
        let wait = Wait { routes, ..Wait::new(Kind::Read, 4096, parameters.profile.as_ref()) };
        let small_read = Adaptive::default().choose(&wait);
        Plan { device, profile, routes, small_read }
    };
    Device::all().into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_profiles_everything_begins_by_passing_through() {
        let dir = tempfile::tempdir().unwrap();
        for plan in plan(&ProfileStore::new(dir.path())) {
            assert_eq!(plan.always(), None, "{}", plan.device);
            assert_eq!(plan.small_read.reason, Reason::Unprobed);
            assert!(plan.device.size_bytes > 0);
        }
    }
}
