// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading what sysfs says of block devices. The root is an argument, so that tests read trees of
//! their own.

use std::fs;
use std::path::{Path, PathBuf};

use super::attribute::{read, read_active};
use super::identity::{identity, numbered, one_blank};
use super::place::{Locate, Place};
use super::{Device, DeviceError, DeviceKind, IrqName, beneath_file};

/// Where sysfs is mounted.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Sysfs::at("/sys")
    }
}

fn number(file: PathBuf) -> Result<Option<u64>, DeviceError> {
    let Some(found) = read(&file) else { return Ok(None) };
    match found.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(DeviceError::Attribute { file, found }),
    }
}

fn flag(file: PathBuf) -> bool {
    read(&file).is_some_and(|text| text != "0")
}

/// Last step of a path, with the `!` that sysfs writes for `/`.
fn last_step(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().replace('!', "/")
}

/// Names in a directory, sorted; none when it is absent.
fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

impl Sysfs {
    /// A sysfs mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Sysfs { root: root.into() }
    }

    /// Kernel names of all whole disks, free loop devices included.
    pub fn disks(&self) -> Vec<String> {
        entries(&self.root.join("block"))
    }

    /// Whether a disk of that kernel name offers polled completions.
    pub fn io_poll(&self, kernel_name: &str) -> bool {
        flag(self.root.join("block").join(kernel_name).join("queue/io_poll"))
    }

    /// A parameter of a kernel module, as text.
    pub fn parameter(&self, module: &str, parameter: &str) -> Option<String> {
        read(&self.root.join("module").join(module).join("parameters").join(parameter))
    }

    /// Whether a kernel thread may have to carry out the requests of the disk of this number.
    pub(super) fn may_need_worker(&self, number: &str) -> bool {
        let Ok(mut dir) = fs::canonicalize(self.root.join("dev/block").join(number)) else {
            return true;
        };
        if dir.join("partition").exists() {
            dir.pop();
        }
        match kind_of(&dir, &last_step(&dir)) {
            DeviceKind::Virtio => false,
            DeviceKind::Nvme => {
                let controllers = controllers(&dir);
                let is_local = |at: &PathBuf| transport(at).is_some_and(|how| how == "pcie");
                controllers.is_empty() || !controllers.iter().all(is_local)
            }
            _ => true,
        }
    }

    fn link(&self, dev_t: u64) -> PathBuf {
        let (major, minor) = (libc::major(dev_t), libc::minor(dev_t));
        self.root.join(format!("dev/block/{major}:{minor}"))
    }

    /// Whether `dev_t` is a block device.
    pub(super) fn has(&self, dev_t: u64) -> bool {
        self.link(dev_t).exists()
    }

    /// The block device `dev_t`; `asked` is the path that led to it.
    pub(super) fn block(
        &self,
        dev_t: u64,
        asked: &Path,
        places: &dyn Locate,
        depth: u32,
    ) -> Result<Device, DeviceError> {
        let dir = fs::canonicalize(self.link(dev_t)).map_err(|_| DeviceError::Unknown {
            path: asked.to_owned(),
            major: libc::major(dev_t),
            minor: libc::minor(dev_t),
            sysfs: self.root.clone(),
        })?;
        self.describe(&dir, dev_t, asked, places, depth)
    }

    /// The whole disk of that kernel name.
    pub(super) fn disk(
        &self,
        kernel_name: &str,
        places: &dyn Locate,
        depth: u32,
    ) -> Result<Device, DeviceError> {
        let link = self.root.join("block").join(kernel_name.replace('/', "!"));
        let dir = fs::canonicalize(&link)
            .map_err(|error| DeviceError::Unreachable { path: link.clone(), error })?;
        self.describe(&dir, device_number(&dir), &link, places, depth)
    }

    fn describe(
        &self,
        dir: &Path,
        dev_t: u64,
        asked: &Path,
        places: &dyn Locate,
        depth: u32,
    ) -> Result<Device, DeviceError> {
        // sysfs counts in sectors of 512 bytes, whatever the device's own block is.
        let size_bytes = number(dir.join("size"))?.unwrap_or(0).saturating_mul(512);
        let read_only = flag(dir.join("ro"));
        if let (Some(partition), Some(parent)) = (number(dir.join("partition"))?, dir.parent()) {
            let disk = self.describe(parent, device_number(parent), asked, places, depth)?;
            return Ok(Device {
                id: format!("{}:p{partition}", disk.id),
                kernel_name: last_step(dir),
                dev_t,
                size_bytes,
                read_only,
                partition: u32::try_from(partition).ok(),
                filesystem: None,
                beneath: vec![disk.clone()],
                ..disk
            });
        }

        let kernel_name = last_step(dir);
        let kind = kind_of(dir, &kernel_name);
        let beneath =
            if depth == 0 { Vec::new() } else { self.beneath(dir, kind, asked, places, depth - 1) };
        let queue = dir.join("queue");
        let block = number(queue.join("logical_block_size"))?;
        let irqs = match kind {
            DeviceKind::Dm | DeviceKind::Md => {
                let mut irqs: Vec<_> = beneath.iter().flat_map(|d| d.irqs.clone()).collect();
                irqs.sort_by(|a, b| a.stem.cmp(&b.stem));
                irqs.dedup();
                irqs
            }
            _ => irqs(dir, kind),
        };
        Ok(Device {
            id: identity(dir, &kernel_name, kind, &beneath),
            kind,
            dev_t,
            model: read(&dir.join("device/model")).map(|text| one_blank(&text)),
            size_bytes,
            logical_block_bytes: block.and_then(|b| u32::try_from(b).ok()).unwrap_or(512),
            scheduler: read_active(&queue.join("scheduler")).unwrap_or_else(|| "none".into()),
            io_poll: flag(queue.join("io_poll")),
            rotational: flag(queue.join("rotational")),
            dax: flag(queue.join("dax")),
            read_only,
            partition: None,
            kernel_worker: kernel_worker(dir, kind),
            filesystem: None,
            irqs,
            beneath,
            kernel_name,
        })
    }

    /// What a whole device is made of. A part that cannot be found is left out.
    fn beneath(
        &self,
        dir: &Path,
        kind: DeviceKind,
        asked: &Path,
        places: &dyn Locate,
        depth: u32,
    ) -> Vec<Device> {
        if kind == DeviceKind::Loop {
            let Some(backing) = read(&dir.join("loop/backing_file")) else { return Vec::new() };
            let backing = Path::new(&backing);
            let found = match places.locate(backing) {
                Ok(Place::Block { dev_t }) => self.block(dev_t, asked, places, depth),
                Ok(Place::File(mount)) => beneath_file(asked, &mount, self, places, depth),
                Err(error) => Err(error),
            };
            return found.into_iter().collect();
        }
        let slaves = dir.join("slaves");
        entries(&slaves)
            .iter()
            .filter_map(|name| {
                let slave = fs::canonicalize(slaves.join(name)).ok()?;
                self.describe(&slave, device_number(&slave), asked, places, depth).ok()
            })
            .collect()
    }
}

/// The device number in a device's `dev` attribute; 0:0 when there is none.
fn device_number(dir: &Path) -> u64 {
    read(&dir.join("dev"))
        .and_then(|text| {
            let (major, minor) = text.split_once(':')?;
            Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
        })
        .unwrap_or(0)
}

fn kind_of(dir: &Path, name: &str) -> DeviceKind {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match stem {
        _ if name.starts_with("nvme") => DeviceKind::Nvme,
        "loop" => DeviceKind::Loop,
        "zram" => DeviceKind::Zram,
        "ram" => DeviceKind::Ram,
        "nullb" => DeviceKind::NullBlk,
        "dm-" => DeviceKind::Dm,
        _ if name.starts_with("pmem") => DeviceKind::Pmem,
        _ if dir.join("md").is_dir() => DeviceKind::Md,
        _ if name.starts_with("vd") => DeviceKind::Virtio,
        _ if name.starts_with("sd") => DeviceKind::Scsi,
        _ => DeviceKind::Other,
    }
}

/// Whether a thread of the kernel carries requests out.
fn kernel_worker(dir: &Path, kind: DeviceKind) -> bool {
    match kind {
        DeviceKind::Loop => true,
        DeviceKind::Nvme => is_remote(dir),
        DeviceKind::Dm => read(&dir.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with("CRYPT-")),
        DeviceKind::Md => read(&dir.join("md/level"))
            .is_some_and(|level| matches!(level.as_str(), "raid4" | "raid5" | "raid6")),
        _ => false,
    }
}

/// Whether a controller of an NVMe namespace is reached through a network.
fn is_remote(dir: &Path) -> bool {
    let mut transports = controllers(dir).into_iter().filter_map(|at| transport(&at));
    transports.any(|transport| transport != "pcie")
}

fn transport(controller: &Path) -> Option<String> {
    read(&controller.join("transport"))
}

/// The controllers of an NVMe namespace. Where it has several, it hangs below a subsystem that
/// lists them.
fn controllers(dir: &Path) -> Vec<PathBuf> {
    let Ok(above) = fs::canonicalize(dir.join("device")) else { return Vec::new() };
    if numbered(&last_step(&above), "nvme") {
        return vec![above];
    }
    let listed = entries(&above).into_iter().filter(|name| numbered(name, "nvme"));
    listed.map(|name| above.join(name)).collect()
}

/// The names of the interrupts that complete a whole device's requests, where a driver's naming
/// is known.
fn irqs(dir: &Path, kind: DeviceKind) -> Vec<IrqName> {
    match kind {
        DeviceKind::Nvme if !is_remote(dir) => {
            let names = controllers(dir).into_iter().map(|controller| last_step(&controller));
            // Queue 0 carries admin commands.
            names.map(|name| IrqName::numbered(format!("{name}q"), 1)).collect()
        }
        DeviceKind::Virtio | DeviceKind::Scsi => {
            let virtio = dir.iter().filter_map(|s| s.to_str()).find(|s| numbered(s, "virtio"));
            let Some(virtio) = virtio else { return Vec::new() };
            let requests = if kind == DeviceKind::Virtio {
                // Before Linux 4.1 there was one queue, of another name.
                vec![
                    IrqName::numbered(format!("{virtio}-req."), 0),
                    IrqName::plain(format!("{virtio}-requests")),
                ]
            } else {
                vec![IrqName::plain(format!("{virtio}-request"))]
            };
            // One vector shared by all queues, or the single line of an MMIO transport.
            let shared =
                [IrqName::plain(format!("{virtio}-virtqueues")), IrqName::plain(virtio.to_owned())];
            requests.into_iter().chain(shared).collect()
        }
        _ => Vec::new(),
    }
}
