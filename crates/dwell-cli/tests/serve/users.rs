// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several users on one mount of root's: rights, owners and groups come out as on the file system
//! beneath; and a user without root on a mount of their own.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::{Served, done, is_root, text};

/// A shell as somebody else; words are "UID GID GROUP,GROUP".
fn shell(who: &str, script: &str, dir: &Path) -> Output {
    let words: Vec<&str> = who.split(' ').collect();
    let groups = match words.get(2) {
        Some(groups) => format!("--groups={groups}"),
        None => "--clear-groups".to_owned(),
    };
    Command::new("setpriv")
        .args([&format!("--reuid={}", words[0]), &format!("--regid={}", words[1]), &groups])
        .args(["sh", "-c", script])
        .current_dir(dir)
        .output()
        .unwrap()
}

fn as_root() -> Option<Served> {
    if !is_root() {
        println!("SKIP: only root can act as several users");
        return None;
    }
    let served = Served::start()?;
    // Everybody may reach the directories.
    fs::set_permissions(served.mount.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    for dir in [&served.mount, &served.plain] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
    }
    Some(served)
}

#[test]
fn every_users_script_does_the_same_as_without_the_server() {
    let Some(served) = as_root() else { return };
    let script = "
        umask 027; echo a > made; mkdir dir; mkfifo pipe; ln -s made link; ln made hard
        umask 0; echo b > open; chmod 2775 dir; echo c > dir/inherits; mkdir dir/below
        chmod 6755 made; chgrp 3000 open; chown 1 open; chmod 4711 open
        echo x >> theirs; cat roots; echo y > roots; rm -f roots; mv roots mine; touch -d 1999-01-01 theirs; : > theirs
        echo z >> suid; rm sticky; truncate -s 3 suid2
    ";
    for who in ["1000 1000", "1000 1000 3000,3001", "1000 3000", "0 1000", "1000 0"] {
        let mut found = Vec::new();
        for dir in [&served.mount, &served.plain] {
            let dir = dir.join(who);
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
            for (name, mode) in [
                ("theirs", 0o666),
                ("roots", 0o600),
                ("suid", 0o6777),
                ("suid2", 0o6777),
                ("sticky", 0o666),
            ] {
                fs::write(dir.join(name), "as it was").unwrap();
                fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            let said = text(&shell(who, script, &dir));
            let mut lines = vec![said];
            lines.extend(crate::step::tree(&dir));
            found.push(lines);
        }
        assert_eq!(found[0], found[1], "as {who}");
    }
}

/// `stat` asks for nothing but the mode, which the kernel may have remembered.
#[test]
fn set_id_bits_go_with_a_write_as_without_the_server_and_at_once() {
    let Some(served) = as_root() else { return };
    let modes = [0o4777, 0o2777, 0o6777, 0o2666, 0o4666, 0o6666];
    let script = "
        for mode in 4777 2777 6777 2666 4666 6666; do
            stat -c %a w$mode; printf x | dd of=w$mode conv=notrunc status=none; stat -c %a w$mode
            stat -c %a a$mode; echo x >> a$mode; stat -c %a a$mode
            stat -c %a t$mode; truncate -s 3 t$mode; stat -c %a t$mode
            stat -c %a e$mode; : > e$mode; stat -c %a e$mode
            stat -c %a f$mode; fallocate -l 9000 f$mode; stat -c %a f$mode
            stat -c %a c$mode; cp --reflink=never w$mode c$mode; stat -c %a c$mode
        done";
    for who in ["1000 1000", "1000 3000", "1000 1000 3000,3001", "0 0", "0 1000"] {
        let found = [&served.mount, &served.plain].map(|dir| {
            let dir = dir.join(format!("set-ids {who}"));
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
            for (mode, kind) in
                modes.into_iter().flat_map(|mode| "watefc".chars().map(move |k| (mode, k)))
            {
                let path = dir.join(format!("{kind}{mode:o}"));
                fs::write(&path, "as it was").unwrap();
                chown(&path, Some(0), Some(3000)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            text(&shell(who, script, &dir))
        });
        assert_eq!(found[0], found[1], "as {who}");
    }
}

/// A file that is open already is written as nobody's: the bits go, and nobody sees them a moment
/// longer.
#[test]
fn set_id_bits_given_to_an_open_file_go_with_the_next_write() {
    use std::os::unix::fs::FileExt as _;
    let Some(served) = as_root() else { return };
    let path = served.mount.join("open");
    fs::write(&path, "as it was").unwrap();
    chown(&path, Some(1000), Some(3000)).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    for mode in [0o4777, 0o2777, 0o6777, 0o2666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let told = || {
            let (flags, only) = (rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::MODE);
            let told = rustix::fs::statx(rustix::fs::CWD, &path, flags, only).unwrap();
            u32::from(told.stx_mode) & 0o7777
        };
        assert_eq!(told(), mode);
        file.write_all_at(b"x", 0).unwrap();
        // Root keeps them where the server writes as root.
        assert_eq!(told(), if served.passes() { mode & 0o777 } else { mode });
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(shell("1000 1000", "echo y >> open", &served.mount).status.success());
        assert_eq!(told(), mode & 0o777, "written by somebody outside of the group");
    }
}

#[test]
fn access_lists_count() {
    let Some(served) = as_root() else { return };
    let setfacl = Command::new("setfacl").arg("--version").output().is_ok();
    if !setfacl {
        println!("SKIP: setfacl (package acl) is not installed");
        return;
    }
    let mut found = Vec::new();
    for dir in [&served.mount, &served.plain] {
        let dir = dir.join("acl");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(dir.join("file"), "text").unwrap();
        fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
        done(Command::new("setfacl").args(["-m", "u:1000:rw,g::-,g:3000:r"]).arg(dir.join("file")));
        done(Command::new("setfacl").args(["-d", "-m", "u:1000:rwx,o::-"]).arg(&dir));
        let mut said = Vec::new();
        for who in ["1000 1000", "1001 0", "1001 1001 3000", "1002 1002"] {
            said.push(text(&shell(
                who,
                "cat file; echo more >> file; umask 077; echo > by-$(id -u)-$(id -g)",
                &dir,
            )));
        }
        said.push(done(Command::new("getfacl").args(["-nR", "."]).current_dir(&dir)));
        said.extend(crate::step::tree(&dir));
        found.push(said);
    }
    assert_eq!(found[0], found[1]);
}

#[test]
fn nobody_but_root_reads_privileged_attributes() {
    let Some(served) = as_root() else { return };
    let path = served.mount.join("file");
    fs::write(&path, "").unwrap();
    rustix::fs::setxattr(&path, "trusted.secret", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.open", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    let script = "import os; print(os.listxattr('file'))";
    let Ok(root) = Command::new("python3").args(["-c", script]).current_dir(&served.mount).output()
    else {
        println!("SKIP: python3 is not installed");
        return;
    };
    assert!(text(&root).contains("trusted.secret"), "{}", text(&root));
    let user =
        text(&shell("1000 1000", &format!("python3 -c \"{script}\" || true"), &served.mount));
    assert!(!user.contains("trusted.secret"), "{user}");
}

#[test]
fn a_user_serves_their_own_files_without_root() {
    let Some(served) = Served::prepare() else { return };
    if !is_root() {
        // Then every other test is this one.
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        println!("SKIP: fusermount3 (package fuse3) is not installed");
        return;
    }
    let base = served.mount.parent().unwrap();
    fs::set_permissions(base, fs::Permissions::from_mode(0o755)).unwrap();
    for dir in [&served.backing, &served.mount] {
        chown(dir, Some(1000), Some(1000)).unwrap();
    }
    let run = base.join("run");
    fs::create_dir(&run).unwrap();
    chown(&run, Some(1000), Some(1000)).unwrap();
    // The program may lie where that user may not go, and the device be closed to users.
    let program = Path::new(env!("CARGO_BIN_EXE_dwell"));
    done(Command::new("cp").arg(program).arg(base.join("dwell")));
    fs::create_dir(base.join("dev")).unwrap();
    let user = "
        export XDG_RUNTIME_DIR=$PWD/run HOME=$PWD/run
        ./dwell serve start --private backing mount
        echo hi > mount/file; cat mount/file; mv mount/file mount/f2; ls mount backing
        ./dwell serve status
        pid=$(./dwell serve status --json | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' | head -n 1)
        kill -9 $pid; for try in $(seq 200); do [ -e /proc/$pid ] && sleep 0.05; done
        ./dwell serve start --private backing mount
        cat mount/f2; touch ready; while [ ! -e seen ]; do sleep 0.05; done
        ./dwell serve stop mount; cat backing/f2; ls mount";
    let root = "
        mount -t tmpfs none dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
        (while [ ! -e ready ]; do sleep 0.05; done; stat mount/f2; touch seen) &
        setpriv --reuid=1000 --regid=1000 --clear-groups sh -c \"$1\"; touch ready seen; wait";
    chown(base, Some(1000), Some(1000)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", root, "sh", user]).current_dir(base);
    let words = text(&command.output().unwrap());
    assert!(words.contains("serving") && words.contains("f2"), "{words}");
    assert_eq!(words.matches("took over").count(), 2, "{words}");
    assert_eq!(words.matches("hi\n").count(), 3, "{words}");
    assert!(words.contains("stopped"), "{words}");
    let refused = words.matches("ermission denied").count();
    assert_eq!(refused, 2, "the backing directory is hidden, and root may not look in: {words}");
    assert_eq!(fs::metadata(served.backing.join("f2")).unwrap().uid(), 1000);
}
