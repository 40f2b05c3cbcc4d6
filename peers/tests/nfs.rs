// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each NFS client moves every byte of a file, both ways, with any window, and says in one line
//! what it cannot do.

use std::fs;
use std::path::Path;
use std::process::Command;

use dwell_bench::fixture::{Export, Ganesha, Unavailable, in_own_network};
use dwell_bench::program::{Order, Peers, Program};
use dwell_bench::result::{Direction, Pattern, Requests};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dwell-peers");
const BYTES: u64 = 1 << 20;

fn peers() -> Peers {
    Peers::find(Some(Path::new(PROGRAM))).unwrap()
}

fn order(direction: Direction, size_bytes: u64, depth: u32) -> Order {
    let requests = Requests { pattern: Pattern::Seq, direction, depth };
    Order { span_ns: 0, size_bytes, requests, seed: 0, samples: false }
}

/// Bytes that every eight of them are their offset.
fn offsets() -> Vec<u8> {
    (0..BYTES / 8).flat_map(|at| (at * 8).to_le_bytes()).collect()
}

/// Runs a check with every client beside a server, where both can be had.
fn with_each(check: impl Fn(&str, &Ganesha, &Path) + Send + Sync) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let ran = in_own_network(|| {
        let server = Ganesha::start(&[Export::directory(dir.path())], false)?;
        for name in peers().list_nfs().unwrap() {
            check(&name, &server, dir.path());
        }
        Ok::<(), Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}

/// Whether a client is missing on this machine, as it says itself.
fn is_missing(name: &str, error: &anyhow::Error) -> bool {
    let line = format!("{error:#}");
    let missing = line.contains("is not installed");
    if missing {
        println!("SKIP: {name}: {line}");
    }
    missing
}

#[test]
fn each_client_moves_every_byte_with_any_window() {
    with_each(|name, server, dir| {
        let export = dir.display();
        let url = server.address(&format!("{export}/{name}"), "").parse().unwrap();
        let there = dir.join(name);
        let mut writer = Program::on_server(name, &url, BYTES, true, &peers());
        for (size, window) in [(8192, 1), (65536, 8), (8192, 32)] {
            // In place: the server would not know of another file by this name.
            if there.exists() {
                fs::write(&there, vec![0; BYTES as usize]).unwrap();
            }
            let answer = match writer.measure(&order(Direction::Write, size, window)) {
                Err(error) if is_missing(name, &error) => return,
                answer => answer.unwrap_or_else(|error| panic!("{name}: {error:#}")),
            };
            let round = answer.round;
            assert_eq!((round.bytes, round.requests), (BYTES, BYTES / size), "{name}");
            assert!(round.wall_ns > 0 && round.user_ns + round.system_ns > 0, "{name}: {round:?}");
            assert!(fs::read(&there).unwrap() == vec![0x5a; BYTES as usize], "{name}, {window}");
        }
        let configured = writer.configured().unwrap();
        println!("{name} {}: {}", configured.version, configured.settings.join("; "));
        fs::write(&there, offsets()).unwrap();
        let mut reader = Program::on_server(name, &url, BYTES, false, &peers()).verifying();
        for (size, window) in [(8192, 1), (65536, 8), (8192, 32)] {
            let round = reader.measure(&order(Direction::Read, size, window)).unwrap().round;
            assert_eq!((round.bytes, round.requests), (BYTES, BYTES / size), "{name}");
        }
        // Wrong bytes are noticed, and so is a file that is too short.
        let mut wrong = offsets();
        wrong[777_777] ^= 1;
        fs::write(&there, wrong).unwrap();
        let error = reader.measure(&order(Direction::Read, 8192, 4)).unwrap_err();
        assert!(format!("{error:#}").contains("wrong bytes were read at byte 77"), "{error:#}");
        fs::write(&there, &offsets()[..1000]).unwrap();
        let mut reader = Program::on_server(name, &url, BYTES, false, &peers());
        let error = reader.measure(&order(Direction::Read, 8192, 4)).unwrap_err();
        assert!(format!("{error:#}").contains("bytes were read at byte"), "{error:#}");
    });
}

#[test]
fn bad_orders_and_files_that_are_not_there_are_refused_in_one_line() {
    with_each(|name, server, dir| {
        let url = server.address(&format!("{}/absent", dir.display()), "").parse().unwrap();
        let mut client = Program::on_server(name, &url, BYTES, false, &peers());
        let cases = [
            (order(Direction::Write, 8192, 1), "--write"),
            (order(Direction::Read, 8192, 0), "a window of 0"),
            (order(Direction::Read, 3, 1), "not made of requests of 3 bytes"),
            (order(Direction::Read, 2 << 20, 1), "requests of 2097152 bytes"),
            (order(Direction::Read, 8192, 1), ""),
        ];
        for (order, part) in cases {
            let error = client.measure(&order).unwrap_err();
            if is_missing(name, &error) {
                return;
            }
            let line = format!("{error:#}");
            assert!(line.contains(part) && !line.contains('\n'), "{name}: {line}");
        }
    });
    for (address, part) in [
        ("nfs://127.0.0.1/x/y", "a port is wanted"),
        ("nfs://127.0.0.1:1/x/y", "mountport is wanted"),
        ("nfs://127.0.0.1:1/y?mountport=2", "an export and a file in it are wanted"),
        ("/tmp/file", "not an NFS address"),
    ] {
        let mut command = Command::new(PROGRAM);
        let output =
            command.args(["nfs-rs", "--bytes", "4096", "--path", address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{address}: {said}");
    }
}
