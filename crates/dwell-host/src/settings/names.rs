// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names by which settings may know a device.

use std::path::{Path, PathBuf};

use dwell::device::Device;

/// Everything that a device answers to: its kernel name (`nvme0n1`, `/dev/nvme0n1`), its identity,
/// its model, the whole disk's where it is a partition, and where its file systems are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNames(Vec<String>);

impl DeviceNames {
    /// The names of a device of this machine. Where its file systems are mounted is looked up in
    /// this process's mounts.
    pub fn of(device: &Device) -> Self {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self::with_mounts(device, &table)
    }

    /// The same with the text of a `mountinfo` file.
    pub(super) fn with_mounts(device: &Device, mountinfo: &str) -> Self {
        let mut names = Vec::new();
        let whole = device.whole();
        let disk = (whole != device).then_some(whole);
        for device in [Some(device), disk].into_iter().flatten() {
            names.push(device.kernel_name.clone());
            names.push(format!("/dev/{}", device.kernel_name));
            names.push(device.id.clone());
            names.extend(device.model.clone());
            names.extend(mounts(mountinfo, device.dev_t).map(|path| path.display().to_string()));
        }
        DeviceNames(names)
    }

    /// A device that is known by these names.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        DeviceNames(names.into_iter().map(Into::into).collect())
    }

    /// Each name.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Where a device number is mounted.
fn mounts(mountinfo: &str, dev_t: u64) -> impl Iterator<Item = PathBuf> {
    let number = format!("{}:{}", libc::major(dev_t), libc::minor(dev_t));
    mountinfo.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(2);
        let mount = (fields.next()? == number).then(|| fields.nth(1))??;
        Some(Path::new(&unescaped(mount)).to_owned())
    })
}

/// A path of `mountinfo`, in which blanks, tabs, line ends and backslashes are octal.
fn unescaped(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_by_device_number() {
        let table = "21 1 254:2 / / rw,relatime shared:1 - ext4 /dev/vda2 rw\n\
                     30 21 0:30 / /tmp rw - tmpfs tmpfs rw\n\
                     31 21 254:2 /srv /with\\040blank rw - ext4 /dev/vda2 rw\n\
                     nonsense\n";
        let found: Vec<_> = mounts(table, libc::makedev(254, 2)).collect();
        assert_eq!(found, [PathBuf::from("/"), PathBuf::from("/with blank")]);
        assert_eq!(mounts(table, libc::makedev(254, 3)).count(), 0);
    }
}
