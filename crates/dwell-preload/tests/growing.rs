// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that makes files on a served mount longer, and looks at them in all ways.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{Under, program, skip, untouched};
use dwell_channel::controller::{Controller, Options};
use dwell_channel::fs::{Channels, Options as Serving, Server, take_over};

fn serve(backing: &Path, mount: &Path) -> Result<Server, String> {
    let controller = Controller::start(Options::default()).map_err(|error| error.to_string())?;
    let (backing, mount) = (backing.to_owned(), mount.to_owned());
    let serving = Serving { backing, mount, private: false, threads: 4, passthrough: true };
    take_over(&serving).map_err(|error| error.to_string())?;
    Server::start(&serving, Arc::new(controller), Channels::default).map_err(|e| e.to_string())
}

#[test]
fn a_program_that_makes_files_longer_finds_the_same_as_without() {
    let grows = match program("grows.c") {
        Ok(grows) => grows,
        Err(why) => return skip(why),
    };
    for place in ["/dev/shm", "/var/tmp"] {
        let at = || tempfile::tempdir_in(place).unwrap();
        let (plain, backing, mount) = (at(), at(), at());
        let server = match serve(backing.path(), mount.path()) {
            Ok(server) => server,
            Err(why) => return skip(why),
        };
        let facts = || server.stopper().facts();
        if !facts().shared_mappings {
            return skip("no shared mappings on served mounts (Linux 6.6)");
        }
        let without = untouched(Command::new(&grows).arg(plain.path()));
        assert!(without.status.success(), "{}", without.stderr);
        let with = Under::policy("spin").run(Command::new(&grows).arg(mount.path()));
        assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
        assert_eq!(with.status, without.status, "{}", with.stderr);
        for entry in fs::read_dir(plain.path()).unwrap() {
            let name = entry.unwrap().file_name();
            let [left, expected] =
                [backing.path(), plain.path()].map(|dir| fs::read(dir.join(&name)));
            assert!(left.unwrap() == expected.unwrap(), "{name:?} is another");
        }
        // 2570 pieces are written, and 750 of them while the file is mapped or open to append.
        let asked = facts().requests["write"];
        assert!((1..900).contains(&asked), "{asked} writes came by the kernel");
    }
}

#[test]
fn what_a_database_writes_in_transactions_is_no_request_of_the_kernels() {
    const TRANSACTIONS: u64 = 100;
    if Command::new("sqlite3").arg("--version").output().is_err() {
        return skip("no sqlite3");
    }
    for journal in ["delete", "truncate", "wal"] {
        let at = || tempfile::tempdir_in("/dev/shm").unwrap();
        let (backing, mount) = (at(), at());
        let server = match serve(backing.path(), mount.path()) {
            Ok(server) => server,
            Err(why) => return skip(why),
        };
        let said = format!("pragma journal_mode={journal}; create table t(a, b);");
        let add = "begin; insert into t values(1, zeroblob(500)); commit;";
        let end = "select count(*), sum(a) from t; pragma integrity_check;";
        let script = said + &add.repeat(TRANSACTIONS as usize) + end;
        let run = |name: &str, under: Option<Under>| {
            let mut command = Command::new("sqlite3");
            command.arg(mount.path().join(name)).arg(&script);
            let before = server.stopper().facts().requests;
            let ended = match under {
                Some(under) => under.run(&mut command),
                None => untouched(&mut command),
            };
            let after = server.stopper().facts().requests;
            let of = |kind: &str| {
                let of =
                    |requests: &BTreeMap<String, u64>| requests.get(kind).copied().unwrap_or(0);
                of(&after) - of(&before)
            };
            let expected = format!("{journal}\n{TRANSACTIONS}|{TRANSACTIONS}\nok\n");
            assert_eq!(ended.stdout, expected, "{}", ended.stderr);
            of("read") + of("write") + of("fsync")
        };
        let without = run("without", None);
        let with = run("with", Some(Under::policy("spin")));
        assert!(without > TRANSACTIONS * 2, "{journal}: {without}");
        assert!(with < TRANSACTIONS / 4, "{journal}: {with} requests came by the kernel");
    }
}
