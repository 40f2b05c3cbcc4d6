// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library of `dwell run`, built as the tests are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // This test lies in TARGET/PROFILE/deps.
        let test = std::env::current_exe().unwrap();
        let place = test.parent().and_then(Path::parent).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--offline", "--quiet", "--package", "dwell-preload"]);
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        if place.ends_with("release") {
            build.arg("--release");
        }
        let built = build.env("CARGO_TARGET_DIR", place.parent().unwrap()).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        place.join("libdwell_preload.so")
    })
}
