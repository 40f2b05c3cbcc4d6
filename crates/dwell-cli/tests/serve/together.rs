// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file by channel, by calls of the kernel and through memory: one file.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use dwell::parameters::DeviceParameters;
use dwell::queue::{Action, Io};
use dwell::source::Source as _;
use dwell::{File, Options};
use dwell_channel::client::Served as Open;

use crate::fixture::{Dice, Served};

/// A served file, through a channel.
struct Channel {
    file: File<Open>,
    descriptor: i32,
}

impl Channel {
    fn of(path: &Path) -> Channel {
        let options = Options::new().write(true);
        let open = Open::open(path, &options).unwrap();
        let descriptor = open.target();
        let policy = Arc::new(dwell::policy::Spin);
        Channel {
            file: File::over(open, path, "test", DeviceParameters::default(), policy, None),
            descriptor,
        }
    }

    fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; bytes];
        // SAFETY: the buffer is borrowed until the call returns.
        let io = unsafe {
            Io::plain(Action::Read, self.descriptor, buffer.as_mut_ptr(), bytes as u32, at)
        };
        let got = self.file.request(&io);
        buffer.truncate(usize::try_from(got).unwrap_or_else(|_| panic!("read at {at}: {got}")));
        buffer
    }

    fn write(&self, at: u64, data: &[u8]) {
        let memory = data.as_ptr().cast_mut();
        // SAFETY: the buffer is borrowed until the call returns, and a write changes nothing in it.
        let io =
            unsafe { Io::plain(Action::Write, self.descriptor, memory, data.len() as u32, at) };
        assert_eq!(self.file.request(&io), data.len() as i32);
    }
}

fn reads(served: &Served) -> u64 {
    served.facts()["requests"]["read"].as_u64().unwrap_or(0)
}

#[test]
fn writes_of_a_channel_are_read_by_everybody_and_the_other_way_round() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let channel = Channel::of(&path);
    let plain = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(channel.read(5, 10), [1; 10]);
    let before = reads(&served);
    for round in 0..100_u8 {
        let at = u64::from(round) * 701;
        channel.write(at, &[round; 300]);
        assert_eq!(channel.read(at, 300), vec![round; 300]);
    }
    assert_eq!(reads(&served), before, "none of it went through the kernel");
    assert_eq!(served.facts()["channels"]["channels"], 1);
    assert!(served.facts()["channels"]["commands"].as_u64().unwrap() >= 200);
    for round in 0..100_u8 {
        let (at, mut seen) = (u64::from(round) * 701, [0; 300]);
        plain.read_exact_at(&mut seen, at).unwrap();
        assert_eq!(seen, [round; 300]);
        plain.write_all_at(&[!round; 300], at).unwrap();
        assert_eq!(channel.read(at, 300), [!round; 300]);
    }
    let beneath = fs::read(served.backing.join("file")).unwrap();
    assert_eq!(beneath, fs::read(&path).unwrap());
}

#[test]
fn a_channel_sees_no_more_of_a_file_than_there_is() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let channel = Channel::of(&path);
    let plain = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(channel.read(10_000, 10), [1; 10]);
    plain.set_len(5_000).unwrap();
    assert!(channel.read(10_000, 10).is_empty());
    plain.set_len(20_000).unwrap();
    assert_eq!(channel.read(4_999, 3), [1, 0, 0]);
    channel.write(19_990, &[5; 100]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 20_090);
    let mut appends = OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut appends, b"end").unwrap();
    assert_eq!(channel.read(20_089, 10), b"\x05end");
    channel.write(20_093, b"more");
    std::io::Write::write_all(&mut appends, b"!").unwrap();
    assert_eq!(channel.read(20_090, 100), b"endmore!");
}

#[test]
fn times_and_lengths_tell_of_what_a_channel_wrote() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 4096]).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(old).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mtime(), 1000);
    let channel = Channel::of(&path);
    channel.write(10, b"now");
    assert!(fs::metadata(&path).unwrap().mtime() > 1000, "a write shows");
    file.set_modified(old).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mtime(), 1000, "what was set later stays");
}

#[test]
fn a_mapped_file_is_the_kernels_until_it_is_closed() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    let channel = Channel::of(&path);
    channel.write(100, b"by channel");
    let plain = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let Some(map) = crate::maps::Mapped::of(&plain) else { return };
    assert_eq!(map.read(100, 10), b"by channel");
    channel.write(200, b"after");
    assert_eq!(map.read(200, 5), b"after", "no channel goes past the mapping");
    map.write(300, b"memory");
    assert_eq!(channel.read(300, 6), b"memory");
    drop(map);
    assert_eq!(channel.read(300, 6), b"memory");
}

#[test]
fn open_files_keep_their_rights_and_unlinked_ones_their_bytes() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    let channel = Channel::of(&path);
    channel.write(0, b"one");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    channel.write(3, b"two");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another file").unwrap();
    channel.write(6, b"three");
    assert_eq!(channel.read(0, 11), b"onetwothree");
    assert_eq!(fs::read(&path).unwrap(), b"another file");
}

#[test]
fn a_channel_leaves_no_set_user_id_on_what_it_writes() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    let channel = Channel::of(&path);
    channel.write(0, b"granted");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let writes = || served.facts()["requests"]["write"].as_u64().unwrap_or(0);
    let before = writes();
    channel.write(0, b"refused");
    // The kernel's way, which takes the bit from whoever may not keep it: from everybody, where the
    // kernel writes by itself.
    let passes = served.passes();
    assert_eq!(writes() - before, u64::from(!passes));
    let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
    assert_eq!(mode, if passes || !crate::fixture::is_root() { 0o755 } else { 0o4755 });
}

#[test]
fn a_killed_daemon_comes_back_and_channels_with_it() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    let channel = Channel::of(&path);
    channel.write(0, b"before");
    served.kill();
    served.serve(&[]);
    let again = Channel::of(&path);
    assert_eq!(again.read(0, 6), b"before");
    drop(channel);
}

#[test]
fn random_requests_by_every_way_agree_with_a_model() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    for seed in 0..8 {
        let mut dice = Dice::of(seed);
        let mut model = vec![0_u8; 30_000];
        fs::write(&path, &model).unwrap();
        let channels = [Channel::of(&path), Channel::of(&path)];
        let plain = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        for step in 0..600 {
            let at = dice.below(40_000) as usize;
            let bytes = dice.below(6_000) as usize;
            let new = vec![dice.below(256) as u8; bytes];
            let end = at + bytes;
            let expected = model.get(at..end.min(model.len())).unwrap_or(&[]).to_vec();
            let which = &channels[dice.below(2) as usize];
            let story =
                || format!("seed {seed}, step {step}: {bytes} bytes at {at} of {}", model.len());
            match dice.below(10) {
                0..=2 => assert!(which.read(at as u64, bytes) == expected, "{}", story()),
                3 | 4 => {
                    let mut seen = vec![0; bytes];
                    let got = plain.read_at(&mut seen, at as u64).unwrap();
                    assert!(seen[..got] == expected, "{}", story());
                }
                5..=8 if bytes > 0 => {
                    match dice.below(2) {
                        0 => which.write(at as u64, &new),
                        _ => plain.write_all_at(&new, at as u64).unwrap(),
                    }
                    model.resize(model.len().max(end), 0);
                    model[at..end].copy_from_slice(&new);
                }
                9 if dice.below(4) == 0 => {
                    plain.set_len(at as u64).unwrap();
                    model.resize(at, 0);
                }
                _ => assert_eq!(plain.metadata().unwrap().len(), model.len() as u64, "{}", story()),
            }
        }
        assert!(fs::read(served.backing.join("file")).unwrap() == model, "seed {seed}");
    }
}
