// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of our own to write to: it has no name any more when the first byte is written, so that
//! the kernel drops it with this process, however that ends.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use dwell_policy::{Ns, Profile};

use super::sweep::{Arm, Bench, SIZES};
use dwell::device::Device;
use dwell::error::{Error, Result};

/// Length of the file, in bytes.
pub const BYTES: u64 = 64 << 20;

/// A file that was made here; its name goes when this is dropped.
struct Named(PathBuf);

impl Named {
    fn create(path: &Path) -> Result<Named> {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => Ok(Named(path.to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let what = "exists already; a scratch file is made, overwritten and removed: name \
                            one that is not there";
                Err(Error::invalid(path, what))
            }
            Err(error) => Err(Error::io("create", path, None, error)),
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // Somebody removed it before: then it is gone as well.
        let _ = fs::remove_file(&self.0);
    }
}

/// Makes a file at `path`, which must lie on `device`, and removes it: what cannot be done is known
/// before anything is measured.
///
/// # Errors
/// A file that exists already or lies on another device; what making it refuses.
pub fn rehearse(path: &Path, device: &Device) -> Result<()> {
    create_on(path, device).map(drop)
}

fn create_on(path: &Path, device: &Device) -> Result<Named> {
    let named = Named::create(path)?;
    let beneath = Device::beneath(path).map_err(|error| Error::invalid(path, error.to_string()))?;
    if beneath.whole().id == device.whole().id {
        return Ok(named);
    }
    let what = format!(
        "lies on {}, not on {}, which is being probed; name a scratch file there",
        beneath.whole().kernel_name,
        device.whole().kernel_name
    );
    Err(Error::invalid(path, what))
}

/// Makes a file at `path` as [`rehearse`] does, opens it once for each arm and fills it. Past
/// `until` on the monotonic clock it stays shorter.
///
/// # Errors
/// As [`rehearse`]; what writing refuses.
pub fn bench(
    path: &Path,
    device: &Device,
    arms: &[Arm],
    profile: Profile,
    direct: bool,
    until: Ns,
) -> Result<Bench> {
    let named = create_on(path, device)?;
    let mut bench = Bench::overwriting(path, arms, profile, direct)?;
    drop(named);
    bench.fill(BYTES, SIZES[SIZES.len() - 1] * 2, until)?;
    Ok(bench)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::sweep::Effort;

    #[test]
    fn a_scratch_file_that_exists_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "precious").unwrap();
        let device = Device::beneath(&path).unwrap();
        let refused = bench(&path, &device, &[Arm::INLINE], Profile::default(), false, 0);
        assert!(refused.err().unwrap().to_string().contains("exists already"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_scratch_file_on_another_device_is_refused_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scratch");
        let mut other = Device::beneath(&std::env::current_exe().unwrap()).unwrap();
        other.id = "another".into();
        other.partition = None;
        let refused = bench(&path, &other, &[Arm::INLINE], Profile::default(), false, 0);
        assert!(refused.err().unwrap().to_string().contains("lies on"));
        assert!(!path.exists());
    }

    #[test]
    fn writes_are_measured_without_a_name_left_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scratch");
        fs::write(&path, "x").unwrap();
        let device = Device::beneath(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mut bench =
            bench(&path, &device, &[Arm::INLINE], Profile::default(), false, 0).unwrap();
        assert!(!path.exists());
        assert_eq!(bench.bytes(), 1 << 20, "no time to fill more than the least");
        let effort = Effort { rounds: 1, settle_ns: 0, batch_ns: 0, limit_ns: 0 };
        let swept = bench.sweep(&[4096, 8192], effort, &mut |_| {}).unwrap();
        assert_eq!(swept.curves[0].mode, "inline-write");
        assert_eq!(swept.curves[0].points.len(), 1, "no time for a second size");
        assert!(swept.left_out.unwrap().contains("no size above 4 KiB"));
    }
}
