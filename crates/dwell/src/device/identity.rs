// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names for devices that outlive a reboot: never a kernel name where anything better is known.

use std::path::Path;

use super::attribute::{read, read_active};
use super::{Device, DeviceKind};

/// `text` without padding and without what cannot be printed.
pub(super) fn one_blank(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).collect()
}

/// `text` as part of an identity: no blanks either.
pub(super) fn tidy(text: &str) -> String {
    one_blank(text).replace(' ', "_")
}

/// The identity of a whole device whose sysfs directory is `dir`, already resolved; `beneath` is
/// what it was found to be made of.
pub(super) fn identity(dir: &Path, name: &str, kind: DeviceKind, beneath: &[Device]) -> String {
    let attribute = |file: &str| read(&dir.join(file)).map(|text| tidy(&text));
    let model = || attribute("device/model").unwrap_or_else(|| "unknown".into());
    match kind {
        DeviceKind::Nvme => match (attribute("device/serial"), attribute("wwid")) {
            (Some(serial), _) => format!("nvme:{}:{serial}:n{}", model(), namespace(dir, name)),
            (None, Some(wwid)) => format!("nvme:{}:{wwid}", model()),
            (None, None) => format!("nvme:{}:{}:n{}", model(), place(dir), namespace(dir, name)),
        },
        DeviceKind::Virtio => {
            format!("virtio:{}", attribute("serial").unwrap_or_else(|| place(dir)))
        }
        DeviceKind::Scsi => match attribute("device/wwid") {
            Some(wwid) => format!("scsi:{}:{wwid}", model()),
            None => format!("scsi:{}:{}:{}", model(), place(dir), target(dir)),
        },
        DeviceKind::Loop => {
            let backing = match (beneath.first(), attribute("loop/backing_file")) {
                (Some(below), _) => {
                    let id = &below.whole().id;
                    match below.filesystem.as_deref() {
                        // Already part of the backing's own identity.
                        Some(fs) if id != fs && !id.starts_with(&format!("{fs}:")) => {
                            format!("{fs}:{id}")
                        }
                        _ => id.clone(),
                    }
                }
                (None, Some(file)) => format!("file:{file}"),
                (None, None) => "nothing".into(),
            };
            // Through the page cache or around it: two devices to whoever measures.
            match attribute("loop/dio").as_deref() {
                Some("1") => format!("loop:{backing}:direct"),
                _ => format!("loop:{backing}"),
            }
        }
        DeviceKind::Zram => match read_active(&dir.join("comp_algorithm")) {
            Some(algorithm) => format!("zram:{}", tidy(&algorithm)),
            None => "zram".into(),
        },
        DeviceKind::Ram => "brd".into(),
        DeviceKind::Pmem => {
            format!("pmem:{}", attribute("device/uuid").unwrap_or_else(|| name.to_owned()))
        }
        DeviceKind::NullBlk => format!("null_blk:{name}"),
        DeviceKind::Dm => match (attribute("dm/uuid"), attribute("dm/name")) {
            (Some(uuid), _) => format!("dm:{uuid}"),
            (None, Some(name)) => format!("dm:name:{name}"),
            (None, None) => format!("dm:{}", members(beneath)),
        },
        DeviceKind::Md => match (attribute("md/uuid"), attribute("md/level")) {
            (Some(uuid), _) => format!("md:{uuid}"),
            (None, level) => {
                format!("md:{}:{}", level.as_deref().unwrap_or("unknown"), members(beneath))
            }
        },
        DeviceKind::Tmpfs => "tmpfs".into(),
        DeviceKind::Other => ["wwid", "device/wwid", "serial", "device/serial", "device/cid"]
            .iter()
            .find_map(|file| attribute(file))
            .map_or_else(|| format!("block:{name}"), |unique| format!("block:{unique}")),
    }
}

/// What a stack is made of, in an order that does not depend on which member came up first.
fn members(beneath: &[Device]) -> String {
    let mut ids: Vec<_> = beneath
        .iter()
        .map(|below| match below.partition {
            Some(number) => format!("{}:p{number}", below.whole().id),
            None => below.id.clone(),
        })
        .collect();
    ids.sort();
    ids.join("+")
}

/// Number of an NVMe namespace: the attribute, else the end of `nvme0n1`.
fn namespace(dir: &Path, name: &str) -> String {
    read(&dir.join("nsid"))
        .or_else(|| name.rsplit_once('n').map(|(_, number)| number.to_owned()))
        .unwrap_or_else(|| "1".into())
}

/// Where the device is attached: its PCI address, or the platform device that carries a virtio
/// transport.
fn place(dir: &Path) -> String {
    let steps: Vec<_> = dir.iter().filter_map(|step| step.to_str()).collect();
    if let Some(address) = steps.iter().rev().find(|step| is_pci_address(step)) {
        return format!("pci-{address}");
    }
    let virtio = steps.iter().position(|step| numbered(step, "virtio"));
    match virtio.and_then(|at| at.checked_sub(1)) {
        Some(bus) => steps[bus].to_owned(),
        None => steps.last().map_or_else(String::new, |name| (*name).to_owned()),
    }
}

/// Channel, target and unit of a SCSI disk. The host's number changes from boot to boot.
fn target(dir: &Path) -> String {
    let step = dir
        .iter()
        .filter_map(|step| step.to_str())
        .find(|step| step.split(':').count() == 4 && step.split(':').all(is_number));
    match step.and_then(|step| step.split_once(':')) {
        Some((_host, rest)) => rest.to_owned(),
        None => "0:0:0".into(),
    }
}

/// Whether `step` is `stem` and a number.
pub(super) fn numbered(step: &str, stem: &str) -> bool {
    step.strip_prefix(stem).is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// `0000:00:02.0`
fn is_pci_address(step: &str) -> bool {
    let hex = |text: &str, digits| {
        text.len() >= digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<_> = step.split(':').collect();
    let [domain, bus, rest] = parts[..] else { return false };
    let Some((slot, function)) = rest.split_once('.') else { return false };
    hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && is_number(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_bridge_names_the_place() {
        let dir = Path::new("/sys/devices/pci0000:00/0000:00:1c.4/0000:02:00.0/nvme/nvme0/nvme0n1");
        assert_eq!(place(dir), "pci-0000:02:00.0");
    }

    #[test]
    fn a_virtio_disk_without_pci_is_named_by_its_transport() {
        let dir = Path::new("/sys/devices/platform/a0003e00.virtio_mmio/virtio3/block/vda");
        assert_eq!(place(dir), "a0003e00.virtio_mmio");
    }

    #[test]
    fn the_scsi_host_number_stays_out() {
        let dir = Path::new("/sys/devices/pci0000:00/0000:00:1f.2/ata7/host6/target6:0:2/6:0:2:1");
        assert_eq!(target(dir), "0:2:1");
    }

    #[test]
    fn padding_and_control_characters_stay_out() {
        assert_eq!(tidy("  QEMU  NVMe Ctrl \n"), "QEMU_NVMe_Ctrl");
        assert_eq!(tidy("a\u{0}b"), "ab");
    }
}
