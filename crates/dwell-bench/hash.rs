// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hashes of sources, for build scripts: a saved result knows whether the code is still the one
//! that made it. Comments and tests do not count.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Writes `sources.rs`, a table of these names with the hash of each source.
pub fn write_table(sources: &[(String, PathBuf)]) -> io::Result<()> {
    let mut table = String::from("pub(super) const SOURCES: &[(&str, u64)] = &[\n");
    for (name, path) in sources {
        let _ = writeln!(table, "    ({name:?}, {:#x}),", hash(path)?);
    }
    table += "];\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    fs::write(out.join("sources.rs"), table)
}

/// Every file and directory in a directory, under its name after a prefix.
pub fn below(directory: &Path, prefix: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let named = |path: PathBuf| {
        let stem = path.file_stem()?.to_str()?.to_owned();
        Some((format!("{prefix}/{stem}"), path))
    };
    Ok(entries(directory)?.into_iter().filter_map(named).collect())
}

/// The directory of the package that is built.
pub fn here() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where"))
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    Ok(entries)
}

/// The hash of a file, or of all files beneath a directory; the hash of nothing where there is
/// none.
fn hash(path: &Path) -> io::Result<u64> {
    let mut state = 0xcbf2_9ce4_8422_2325;
    add(path, &mut state)?;
    Ok(state)
}

fn add(path: &Path, state: &mut u64) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", path.display());
    if path.is_dir() {
        return entries(path)?.iter().try_for_each(|path| add(path, state));
    }
    if path.extension().is_none_or(|end| end != "rs") {
        return Ok(());
    }
    for line in fs::read_to_string(path)?.lines().map(str::trim) {
        if line == "#[cfg(test)]" {
            break;
        }
        if !line.starts_with("//") {
            // FNV-1a.
            for byte in line.bytes() {
                *state = (*state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
    Ok(())
}
