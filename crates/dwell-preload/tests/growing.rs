// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that make files on a served mount longer, and look at them in all ways.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{Under, program, skip, untouched};
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::{Channels, DataPath, Options as Serving, Server, take_over};

/// By the kernel alone, and with channels beside it; passed through and not.
const WAYS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];

fn serve(backing: &Path, mount: &Path, passthrough: bool) -> Result<Server, String> {
    let daemon = Daemon::start(Options::default()).map_err(|error| error.to_string())?;
    let (backing, mount) = (backing.to_owned(), mount.to_owned());
    let serving = Serving { backing, mount, private: false, threads: 4, passthrough };
    take_over(&serving).map_err(|error| error.to_string())?;
    Server::start(&serving, Arc::new(daemon), Channels::default).map_err(|e| e.to_string())
}

fn under(channels: bool) -> Under {
    let under = Under::policy("spin");
    if channels { under.with_channels() } else { under }
}

#[test]
fn a_program_that_makes_files_longer_finds_the_same_as_without() {
    let grows = match program("grows.c") {
        Ok(grows) => grows,
        Err(why) => return skip(why),
    };
    for (place, (passthrough, channels)) in
        ["/dev/shm", "/var/tmp"].into_iter().flat_map(|place| WAYS.map(|way| (place, way)))
    {
        let at = || tempfile::tempdir_in(place).unwrap();
        let (plain, backing, mount) = (at(), at(), at());
        let server = match serve(backing.path(), mount.path(), passthrough) {
            Ok(server) => server,
            Err(why) => return skip(why),
        };
        let facts = || server.stopper().facts();
        if !facts().shared_mappings {
            return skip("no shared mappings on served mounts (Linux 6.6)");
        }
        let without = untouched(Command::new(&grows).arg(plain.path()));
        assert!(without.status.success(), "{}", without.stderr);
        let with = under(channels).run(Command::new(&grows).arg(mount.path()));
        let way = format!("{place}, {:?}, channels {channels}: {}", facts().data_path, with.stderr);
        assert_eq!(with.stdout, without.stdout, "{way}");
        assert_eq!(with.status, without.status, "{way}");
        for entry in fs::read_dir(plain.path()).unwrap() {
            let name = entry.unwrap().file_name();
            let [left, expected] =
                [backing.path(), plain.path()].map(|dir| fs::read(dir.join(&name)));
            assert!(left.unwrap() == expected.unwrap(), "{way}: {name:?} is another");
        }
    }
}

#[test]
fn a_databases_transactions_are_the_same_by_every_way() {
    const TRANSACTIONS: u64 = 50;
    if Command::new("sqlite3").arg("--version").output().is_err() {
        return skip("no sqlite3");
    }
    for (passthrough, channels) in WAYS {
        let at = || tempfile::tempdir_in("/dev/shm").unwrap();
        let (backing, mount) = (at(), at());
        let server = match serve(backing.path(), mount.path(), passthrough) {
            Ok(server) => server,
            Err(why) => return skip(why),
        };
        for journal in ["delete", "truncate", "wal"] {
            let said = format!("pragma journal_mode={journal}; create table t(a, b);");
            let add = "begin; insert into t values(1, zeroblob(500)); commit;";
            let end = "select count(*), sum(a) from t; pragma integrity_check;";
            let script = said + &add.repeat(TRANSACTIONS as usize) + end;
            let mut command = Command::new("sqlite3");
            let ended = under(channels).run(command.arg(mount.path().join(journal)).arg(&script));
            let expected = format!("{journal}\n{TRANSACTIONS}|{TRANSACTIONS}\nok\n");
            assert_eq!(ended.stdout, expected, "{}", ended.stderr);
        }
        let facts = server.stopper().facts();
        if !channels && facts.data_path == DataPath::Passthrough {
            let asked = ["read", "fill", "write"].map(|kind| facts.requests.get(kind).copied());
            assert_eq!(asked, [None; 3], "the kernel reads and writes by itself");
        }
    }
}
