// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the compiler's unwinder as a static library, for `dwell` to start without a shared one.
//! Where there is none it is shared.

use std::env;
use std::path::Path;
use std::process::Command;

const LIBRARY: &str = "libgcc_eh.a";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(static_unwinder)");
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu")
        && env::var("HOST") == env::var("TARGET")
        && let Some(dir) = directory()
    {
        println!("cargo::rustc-link-search=native={dir}");
        println!("cargo::rustc-cfg=static_unwinder");
    }
}

fn directory() -> Option<String> {
    let output = Command::new("cc").arg(format!("-print-file-name={LIBRARY}")).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    // A library that it does not find it prints without a directory.
    let dir = Path::new(path.trim()).parent().filter(|dir| dir.is_absolute())?;
    Some(dir.to_str()?.to_owned())
}
