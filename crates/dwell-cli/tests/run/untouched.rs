// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that cannot be preloaded run untouched, and are told of.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use super::{compile, put, run, text};

/// Says whether the library's variables reached it.
const TELLS: &str = "#include <stdio.h>\n#include <stdlib.h>\n\
    int main(void) { puts(getenv(\"DWELL_RUN\") ? \"ordered\" : \"untouched\"); return 0; }\n";

/// Runs a program that cannot be preloaded: it must not be, one line must say why, and it must do
/// what it does.
fn runs_untouched(dir: &Path, program: &Path, why: &str, expected: &str) {
    let output = run(dir, &[program]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), expected);
    assert!(said.contains(why) && said.contains("it runs untouched"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_static_program_and_scripts_of_it_run_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("static");
    if !compile(TELLS, &program, &["-static"]) {
        return println!("SKIP: cc cannot make static programs here");
    }
    runs_untouched(dir.path(), &program, "static: a static program cannot", "untouched\n");
    let script = dir.path().join("script");
    put(&script, format!("#!{}\n", program.display()).as_bytes(), 0o755);
    let why = format!("its interpreter {} is a static program", program.display());
    runs_untouched(dir.path(), &script, &why, "untouched\n");
}

#[test]
fn a_setuid_program_runs_untouched() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("setuid");
    if !compile(TELLS, &program, &[]) {
        return println!("SKIP: no C compiler");
    }
    if chown(&program, Some(65534), Some(65534)).is_err() {
        return println!("SKIP: only root can give a file to another user");
    }
    for (mode, why) in [(0o4755, "a setuid program"), (0o2755, "a setgid program")] {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let output = run(dir.path(), &[&program]);
        let said = text(&output.stderr);
        // Where set-id bits are ignored (nosuid, no_new_privs), so are they here.
        match said.contains("untouched") {
            true => runs_untouched(dir.path(), &program, why, "untouched\n"),
            false => println!("SKIP: {} ignores set-id bits", dir.path().display()),
        }
    }
}

#[test]
fn a_program_built_with_a_sanitizer_runs_untouched() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, why) in [
        (&["-fsanitize=address"][..], "built with AddressSanitizer"),
        (&["-fsanitize=address", "-static-libasan"], "built with a sanitizer"),
        (&["-fsanitize=thread"], "built with ThreadSanitizer"),
        (&["-fsanitize=leak"], "built with LeakSanitizer"),
    ] {
        let program = dir.path().join("sanitized");
        if !compile(TELLS, &program, flags) {
            println!("SKIP: cc cannot make programs with {flags:?} here");
            continue;
        }
        runs_untouched(dir.path(), &program, why, "untouched\n");
    }
}

#[test]
fn a_32_bit_program_is_told_apart_by_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("old");
    // An ELF header of class 32 for the i386, without any segment.
    let mut header = vec![0u8; 52];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    header[16..24].copy_from_slice(&[2, 0, 3, 0, 1, 0, 0, 0]);
    header[40] = 52;
    put(&program, &header, 0o755);
    let output = run(dir.path(), &[&program]);
    let said: Vec<&str> = text(&output.stderr).lines().collect();
    assert!(said[0].contains("a 32-bit program cannot be preloaded"), "{said:?}");
    assert_eq!(output.status.code(), Some(126), "{said:?}");
}
