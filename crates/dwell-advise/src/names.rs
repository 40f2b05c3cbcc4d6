// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of devices and processes, from sysfs and procfs.

use std::collections::BTreeMap;
use std::fs;

/// Kernel names of devices by the kernel's number, and of programs by process id.
#[derive(Default)]
pub struct Names {
    devices: BTreeMap<u32, String>,
    programs: BTreeMap<u32, String>,
}

impl Names {
    /// The kernel name of a device, or its numbers where it is gone.
    pub fn device(&mut self, number: u32) -> String {
        self.devices.entry(number).or_insert_with(|| device(number)).clone()
    }

    /// Remembers what a process is called.
    pub fn learn(&mut self, process: u32, name: &str) {
        self.programs.entry(process).or_insert_with(|| name.to_owned());
    }

    /// What a process is called, or its number where it is gone.
    pub fn program(&self, process: u32) -> String {
        self.programs.get(&process).cloned().unwrap_or_else(|| process.to_string())
    }
}

fn device(number: u32) -> String {
    let numbers = format!("{},{}", number >> 20, number & 0xf_ffff);
    device_name(&numbers).unwrap_or(numbers)
}

/// The kernel name of a block device of this machine by its numbers, as in `8,0`.
pub fn device_name(numbers: &str) -> Option<String> {
    let path = format!("/sys/dev/block/{}/uevent", numbers.replace(',', ":"));
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("DEVNAME=").map(str::to_owned))
}

/// What a task is called; `None` where it is gone.
pub fn program(task: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{task}/comm")).ok()
}

/// The process that a task is of; `None` where it is gone.
pub fn process_of(task: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// The processes that `process` has started, and theirs.
pub fn descendants(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|text| text.parse().ok()) {
                if !found.contains(&child) {
                    found.push(child);
                }
            }
        }
    }
    found
}
