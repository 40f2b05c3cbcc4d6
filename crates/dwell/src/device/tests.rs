// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices found in made-up machines.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;

/// A sysfs tree in a temporary directory, and the paths that lead into it.
struct Fixture {
    root: tempfile::TempDir,
    places: HashMap<PathBuf, Place>,
}

impl Locate for Fixture {
    fn locate(&self, path: &Path) -> Result<Place, DeviceError> {
        let missing = || DeviceError::Missing { path: path.to_owned() };
        self.places.get(path).cloned().ok_or_else(missing)
    }
}

impl Fixture {
    fn new() -> Self {
        Fixture { root: tempfile::tempdir().unwrap(), places: HashMap::new() }
    }

    /// Adds a block device at `dir` below `devices/`, with attributes, and its `/dev` node.
    fn block(&mut self, dir: &str, dev: (u32, u32), attributes: &[(&str, &str)]) -> PathBuf {
        let (major, minor) = dev;
        let dir = self.root.path().join("devices").join(dir);
        fs::create_dir_all(&dir).unwrap();
        self.write(&dir.join("dev"), &format!("{major}:{minor}\n"));
        self.write(&dir.join("size"), "2048\n");
        for (file, content) in attributes {
            self.write(&dir.join(file), content);
        }
        let link = self.root.path().join(format!("dev/block/{major}:{minor}"));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&dir, link).unwrap();
        let node = Path::new("/dev").join(dir.file_name().unwrap());
        self.places.insert(node, Place::Block { dev_t: libc::makedev(major, minor) });
        dir
    }

    fn write(&self, file: &Path, content: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn slave(&self, of: &Path, slave: &Path) {
        fs::create_dir_all(of.join("slaves")).unwrap();
        symlink(slave, of.join("slaves").join(slave.file_name().unwrap())).unwrap();
    }

    fn file(&mut self, path: &str, fs: &str, source: &str, dev: (u32, u32)) {
        let mount = Mount {
            dev_t: libc::makedev(dev.0, dev.1),
            fs: fs.into(),
            source: source.into(),
            size_bytes: 1 << 30,
            read_only: false,
        };
        self.places.insert(path.into(), Place::File(mount));
    }

    /// An NVMe namespace below its controller.
    fn nvme(&mut self, number: u32) -> PathBuf {
        let controller = format!("pci0000:00/0000:0{number}:00.0/nvme/nvme{number}");
        let dir = self.block(
            &format!("{controller}/nvme{number}n1"),
            (259, number),
            &[
                ("nsid", "1\n"),
                ("queue/scheduler", "[none] mq-deadline kyber\n"),
                ("queue/io_poll", "1\n"),
                ("queue/logical_block_size", "4096\n"),
                ("queue/rotational", "0\n"),
            ],
        );
        let controller = dir.parent().unwrap().to_owned();
        self.write(&controller.join("model"), "Fast  Drive 9   \n");
        self.write(&controller.join("serial"), &format!("S{number}00 \n"));
        self.write(&controller.join("transport"), "pcie\n");
        symlink(&controller, dir.join("device")).unwrap();
        dir
    }

    fn virtio(&mut self) -> PathBuf {
        self.block(
            "pci0000:00/0000:00:02.0/virtio1/block/vda",
            (254, 0),
            &[("serial", ""), ("queue/scheduler", "none [mq-deadline]\n"), ("ro", "0\n")],
        )
    }

    fn find(&self, path: &str) -> Result<Device, DeviceError> {
        beneath(Path::new(path), &Sysfs::at(self.root.path()), self)
    }
}

#[test]
fn an_nvme_namespace_is_named_by_its_serial_and_not_by_its_slot() {
    let mut machine = Fixture::new();
    machine.nvme(3);
    let device = machine.find("/dev/nvme3n1").unwrap();
    assert_eq!(device.id, "nvme:Fast_Drive_9:S300:n1");
    assert_eq!(device.model.as_deref(), Some("Fast Drive 9"));
    assert_eq!(
        (device.size_bytes, device.logical_block_bytes, device.scheduler.as_str()),
        (2048 * 512, 4096, "none")
    );
    assert!(device.io_poll && !device.rotational && !device.kernel_worker);
    assert_eq!(device.irqs, [IrqName::numbered("nvme3q".into(), 1)]);
}

#[test]
fn a_multipath_namespace_counts_the_interrupts_of_its_controllers() {
    let mut machine = Fixture::new();
    let dir = machine.block("virtual/nvme-subsystem/nvme-subsys4/nvme4n1", (259, 9), &[]);
    let subsystem = dir.parent().unwrap().to_owned();
    machine.write(&subsystem.join("serial"), "S4\n");
    machine.write(&subsystem.join("nvme0/state"), "live\n");
    machine.write(&subsystem.join("nvme7/state"), "live\n");
    symlink(&subsystem, dir.join("device")).unwrap();
    let device = machine.find("/dev/nvme4n1").unwrap();
    let stems: Vec<_> = device.irqs.iter().map(|irq| irq.stem.as_str()).collect();
    assert_eq!(stems, ["nvme0q", "nvme7q"]);
}

#[test]
fn a_partition_shares_the_profile_of_its_disk() {
    let mut machine = Fixture::new();
    let disk = machine.nvme(0);
    let below = "pci0000:00/0000:00:00.0/nvme/nvme0/nvme0n1/nvme0n1p2";
    assert!(disk.ends_with("nvme0n1"));
    machine.block(below, (259, 7), &[("partition", "2\n"), ("size", "8\n"), ("ro", "1\n")]);
    machine.file("/srv/file", "ext4", "/dev/nvme0n1p2", (259, 7));
    let device = machine.find("/srv/file").unwrap();
    assert_eq!(device.id, "nvme:Fast_Drive_9:S000:n1:p2");
    assert_eq!((device.kernel_name.as_str(), device.size_bytes), ("nvme0n1p2", 4096));
    assert_eq!(device.filesystem.as_deref(), Some("ext4"));
    assert!(device.read_only && !device.whole().read_only && device.io_poll);
    assert_eq!(device.whole(), &machine.find("/dev/nvme0n1").unwrap());
    assert_eq!(device.irqs, device.whole().irqs);
}

#[test]
fn a_mapping_over_two_drives_counts_the_interrupts_of_both() {
    let mut machine = Fixture::new();
    let (one, two) = (machine.nvme(0), machine.nvme(1));
    let dm = machine.block("virtual/block/dm-0", (253, 0), &[("dm/uuid", "LVM-abc\n")]);
    machine.slave(&dm, &one);
    machine.slave(&dm, &two);
    let device = machine.find("/dev/dm-0").unwrap();
    assert_eq!((device.id.as_str(), device.kind), ("dm:LVM-abc", DeviceKind::Dm));
    assert_eq!(device.beneath.len(), 2);
    let stems: Vec<_> = device.irqs.iter().map(|irq| irq.stem.as_str()).collect();
    assert_eq!(stems, ["nvme0q", "nvme1q"]);
    assert!(!device.kernel_worker);
}

#[test]
fn encryption_is_known_to_need_a_worker() {
    let mut machine = Fixture::new();
    machine.block("virtual/block/dm-3", (253, 3), &[("dm/uuid", "CRYPT-LUKS2-x-y\n")]);
    assert!(machine.find("/dev/dm-3").unwrap().kernel_worker);
}

#[test]
fn only_of_hardware_is_it_certain_that_no_kernel_thread_works_for_it() {
    let mut machine = Fixture::new();
    machine.nvme(0);
    let partition = "pci0000:00/0000:00:00.0/nvme/nvme0/nvme0n1/nvme0n1p2";
    machine.block(partition, (259, 7), &[("partition", "2\n")]);
    machine.virtio();
    for (transport, at) in [("pcie", 4), ("tcp", 5)] {
        let path = format!("virtual/nvme-subsystem/nvme-subsys{at}/nvme{at}n1");
        let dir = machine.block(&path, (259, 10 + at), &[]);
        let subsystem = dir.parent().unwrap().to_owned();
        machine.write(&subsystem.join(format!("nvme{at}/transport")), transport);
        symlink(&subsystem, dir.join("device")).unwrap();
    }
    machine.block("virtual/block/loop0", (7, 0), &[]);
    machine.block("virtual/block/dm-0", (253, 0), &[("dm/uuid", "LVM-abc\n")]);
    let sysfs = Sysfs::at(machine.root.path());
    let may = |number: &str| sysfs.may_need_worker(number);
    assert_eq!(["259:0", "259:7", "259:14", "254:0"].map(may), [false; 4]);
    assert_eq!(["259:15", "7:0", "253:0", "0:42", "emu"].map(may), [true; 5]);
    assert!(machine.find("/dev/nvme5n1").unwrap().kernel_worker);
}

#[test]
fn an_array_without_uuid_is_named_by_its_members_in_any_order() {
    let mut machine = Fixture::new();
    let (one, two) = (machine.nvme(0), machine.nvme(1));
    let md = machine.block("virtual/block/md127", (9, 127), &[("md/level", "raid5\n")]);
    machine.slave(&md, &two);
    machine.slave(&md, &one);
    let device = machine.find("/dev/md127").unwrap();
    assert_eq!(device.id, "md:raid5:nvme:Fast_Drive_9:S000:n1+nvme:Fast_Drive_9:S100:n1");
    assert_eq!(device.kind, DeviceKind::Md);
    assert!(device.kernel_worker);
}

#[test]
fn a_virtio_disk_without_serial_is_named_by_its_slot() {
    let mut machine = Fixture::new();
    machine.virtio();
    let device = machine.find("/dev/vda").unwrap();
    assert_eq!(device.id, "virtio:pci-0000:00:02.0");
    assert_eq!(device.scheduler, "mq-deadline");
    assert!(device.irqs.iter().any(|irq| irq.matches("virtio1-req.0")));
    assert!(!device.irqs.iter().any(|irq| irq.matches("virtio1-config")));
}

#[test]
fn a_loop_device_leads_to_what_holds_its_file() {
    let mut machine = Fixture::new();
    machine.virtio();
    machine.file("/images/disk.img", "ext4", "/dev/vda", (254, 0));
    let backing = ("loop/backing_file", "/images/disk.img\n");
    machine.block("virtual/block/loop5", (7, 5), &[backing]);
    machine.block("virtual/block/loop6", (7, 6), &[backing, ("loop/dio", "1\n")]);
    let device = machine.find("/dev/loop5").unwrap();
    assert_eq!(device.id, "loop:ext4:virtio:pci-0000:00:02.0");
    assert_eq!(device.beneath[0].kernel_name, "vda");
    assert!(device.kernel_worker && device.irqs.is_empty());
    assert_eq!(device.interrupts(), None);
    assert_eq!(machine.find("/dev/loop6").unwrap().id, format!("{}:direct", device.id));
}

#[test]
fn a_loop_device_on_memory_is_named_so_whatever_its_number() {
    let mut machine = Fixture::new();
    machine.file("/dev/shm/img", "tmpfs", "tmpfs", (0, 23));
    machine.block("virtual/block/loop0", (7, 0), &[("loop/backing_file", "/dev/shm/img\n")]);
    assert_eq!(machine.find("/dev/loop0").unwrap().id, "loop:tmpfs");
}

#[test]
fn a_loop_device_whose_file_is_gone_is_still_found() {
    let mut machine = Fixture::new();
    machine.block("virtual/block/loop0", (7, 0), &[("loop/backing_file", "/x/y (deleted)\n")]);
    let device = machine.find("/dev/loop0").unwrap();
    assert_eq!(device.id, "loop:file:/x/y_(deleted)");
    assert!(device.beneath.is_empty());
}

#[test]
fn loops_that_lie_on_each_other_do_not_recurse_for_ever() {
    let mut machine = Fixture::new();
    machine.block("virtual/block/loop0", (7, 0), &[("loop/backing_file", "/dev/loop1\n")]);
    machine.block("virtual/block/loop1", (7, 1), &[("loop/backing_file", "/dev/loop0\n")]);
    machine.find("/dev/loop0").unwrap();
}

#[test]
fn a_free_loop_device_is_refused() {
    let mut machine = Fixture::new();
    machine.block("virtual/block/loop0", (7, 0), &[("size", "0\n")]);
    let said = machine.find("/dev/loop0").unwrap_err().to_string();
    assert!(said.starts_with("/dev/loop0: loop0 holds 0 bytes"), "{said}");
}

#[test]
fn zram_is_named_by_its_algorithm() {
    let mut machine = Fixture::new();
    let algorithm = ("comp_algorithm", "lzo [lzo-rle] lz4\n");
    machine.block("virtual/block/zram0", (252, 0), &[algorithm]);
    let device = machine.find("/dev/zram0").unwrap();
    assert_eq!((device.id.as_str(), device.kind), ("zram:lzo-rle", DeviceKind::Zram));
    assert!(device.irqs.is_empty() && !device.kernel_worker);
}

#[test]
fn a_file_in_memory_has_no_block_device() {
    let mut machine = Fixture::new();
    machine.file("/dev/shm/x", "tmpfs", "tmpfs", (0, 23));
    let device = machine.find("/dev/shm/x").unwrap();
    assert_eq!((device.id.as_str(), device.kind), ("tmpfs", DeviceKind::Tmpfs));
    assert_eq!(device.to_string(), "tmpfs, page cache only");
}

#[test]
fn file_systems_without_one_device_are_told_by_their_name() {
    let mut machine = Fixture::new();
    machine.nvme(0);
    machine.file("/btrfs/x", "btrfs", "/dev/nvme0n1", (0, 50));
    machine.file("/nfs/x", "nfs4", "host:/export one", (0, 51));
    machine.file("/ntfs/x", "fuseblk", "/dev/nvme0n1", (259, 0));
    machine.file("/x", "overlay", "overlay", (0, 52));
    let cases = [
        ("/btrfs/x", "btrfs:nvme:Fast_Drive_9:S000:n1", 1),
        ("/nfs/x", "nfs4:host:/export_one", 0),
        ("/ntfs/x", "fuseblk:nvme:Fast_Drive_9:S000:n1", 1),
        ("/x", "overlay:overlay", 0),
    ];
    for (path, id, below) in cases {
        let device = machine.find(path).unwrap();
        assert_eq!((device.id.as_str(), device.kind), (id, DeviceKind::Other));
        assert_eq!(device.beneath.len(), below, "{path}");
        assert_eq!(device.filesystem.as_deref(), Some(device.kernel_name.as_str()));
        assert!(device.to_string().contains("without one block device"), "{device}");
    }
}

#[test]
fn an_overlay_that_shows_the_real_device_number_leads_to_the_device() {
    let mut machine = Fixture::new();
    machine.nvme(0);
    machine.file("/x", "overlay", "overlay", (259, 0));
    assert_eq!(machine.find("/x").unwrap().kernel_name, "nvme0n1");
}

#[test]
fn a_node_without_driver_is_refused() {
    let mut machine = Fixture::new();
    machine.places.insert("/dev/sdz".into(), Place::Block { dev_t: libc::makedev(8, 400) });
    let said = machine.find("/dev/sdz").unwrap_err().to_string();
    assert!(said.starts_with("/dev/sdz: block device 8:400 is unknown"), "{said}");
}

#[test]
fn a_damaged_attribute_is_named() {
    let mut machine = Fixture::new();
    machine.block("virtual/block/zram0", (252, 0), &[("size", "many\n")]);
    let said = machine.find("/dev/zram0").unwrap_err().to_string();
    assert!(said.contains("zram0/size") && said.contains("\"many\""), "{said}");
}

#[test]
fn the_device_of_this_program_is_found_on_any_machine() {
    let exe = std::env::current_exe().unwrap();
    let device = Device::beneath(&exe).unwrap();
    assert!(device.filesystem.is_some() && !device.id.is_empty(), "{device:?}");
}
