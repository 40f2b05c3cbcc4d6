// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hashes of sources, for build scripts: a saved result knows whether the code is still the one
//! that made it. Comments and what only tests compile do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// A name and the files and directories that it covers.
pub type Source = (String, Vec<PathBuf>);

/// Writes `sources.rs`, a table of these names with the hash of each source.
pub fn write_table(sources: &[Source]) -> io::Result<()> {
    let mut table = String::from("pub(super) const SOURCES: &[(&str, u64)] = &[\n");
    for (name, paths) in sources {
        let _ = writeln!(table, "    ({name:?}, {:#x}),", hash(paths)?);
    }
    table += "];\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    fs::write(out.join("sources.rs"), table)
}

/// Every module in a directory, under its name after a prefix: `channel.rs` and `channel/` are one.
pub fn below(directory: &Path, prefix: &str) -> io::Result<Vec<Source>> {
    let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in entries(directory)? {
        if let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) {
            modules.entry(format!("{prefix}/{stem}")).or_default().push(path);
        }
    }
    Ok(modules.into_iter().collect())
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

/// The hash of all Rust files at or beneath some paths.
fn hash(paths: &[PathBuf]) -> io::Result<u64> {
    let mut files = Vec::new();
    paths.iter().try_for_each(|path| find(path, &mut files))?;
    let mut kept = Vec::new();
    let mut of_tests = BTreeSet::new();
    for file in files {
        let Parts { lines, modules } = parts(&fs::read_to_string(&file)?);
        of_tests.extend(modules.iter().flat_map(|module| places(&file, module)));
        kept.push((file, lines));
    }
    kept.retain(|(file, _)| !file.ancestors().any(|place| of_tests.contains(place)));
    // FNV-1a.
    let add = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let lines = kept.iter().flat_map(|(_, lines)| lines);
    Ok(lines.flat_map(|line| line.bytes()).fold(0xcbf2_9ce4_8422_2325, add))
}

fn find(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", path.display());
    if path.is_dir() {
        return entries(path)?.iter().try_for_each(|path| find(path, files));
    }
    if path.extension().is_some_and(|end| end == "rs") {
        files.push(path.to_owned());
    }
    Ok(())
}

/// What counts of a file, and the modules that only its tests have: `tests`, or a path.
struct Parts {
    lines: Vec<String>,
    modules: Vec<String>,
}

/// Leaves out comments, and each item after `#[cfg(test)]`. The file is as `cargo fmt` leaves it.
fn parts(text: &str) -> Parts {
    let mut parts = Parts { lines: Vec::new(), modules: Vec::new() };
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if trimmed == "#[cfg(test)]" {
            parts.modules.extend(pass_item(line.len() - line.trim_start().len(), &mut lines));
        } else if !trimmed.starts_with("//") {
            parts.lines.push(trimmed.to_owned());
        }
    }
    parts
}

/// Passes an item that begins so many columns from the left: the module that it declares, if any.
fn pass_item<'t>(indent: usize, lines: &mut impl Iterator<Item = &'t str>) -> Option<String> {
    let mut path = None;
    let first = lines.find(|line| {
        let line = line.trim();
        let named = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"));
        path = named.map(str::to_owned).or_else(|| path.take());
        !line.starts_with("#[") && !line.starts_with("//")
    })?;
    if let Some(module) = first.trim().strip_suffix(';')
        && let Some((_, name)) = module.rsplit_once("mod ")
    {
        return path.or_else(|| Some(name.to_owned()));
    }
    let ends = |line: &str| line.ends_with([';', '}']);
    let at_indent = |line: &str| line.len() - line.trim_start().len() == indent;
    if !ends(first) && !first.ends_with(',') {
        // Its last line is the first one that stands as far left and ends something.
        lines.find(|line| at_indent(line) && (line.trim().starts_with('}') || ends(line)));
    }
    None
}

/// Where a module that a file declares may be.
fn places(file: &Path, module: &str) -> Vec<PathBuf> {
    let directory = file.parent().unwrap_or(Path::new(""));
    if module.ends_with(".rs") {
        return vec![directory.join(module)];
    }
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let within = match stem {
        "mod" | "lib" | "main" => directory.to_owned(),
        stem => directory.join(stem),
    };
    vec![within.join(format!("{module}.rs")), within.join(module)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(directory: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    const FILES: [(&str, &str); 5] = [
        ("a.rs", "mod b;\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;\nfn a() {}\n"),
        (
            "a/b.rs",
            "impl B {\n    #[cfg(test)]\n    fn t() {\n        t()\n    }\n    fn b() {}\n}\n",
        ),
        ("a_tests.rs", "fn t() {}\n"),
        ("c.rs", "#[cfg(test)]\nmod tests;\nfn c() {}\n"),
        ("c/tests.rs", "fn t() {}\n"),
    ];

    fn hashes(files: &[(&str, &str)]) -> BTreeMap<String, u64> {
        let place = tempfile::tempdir().unwrap();
        put(place.path(), files);
        let sources = below(place.path(), "x").unwrap();
        sources.iter().map(|(name, paths)| (name.clone(), hash(paths).unwrap())).collect()
    }

    /// The hashes after a text in one of the files became another.
    fn after(file: &str, from: &str, to: &str) -> BTreeMap<String, u64> {
        let files = FILES.map(|(name, text)| match name == file {
            true => (name, text.replace(from, to)),
            false => (name, text.to_owned()),
        });
        let files: Vec<(&str, &str)> =
            files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert!(files.iter().zip(FILES).any(|(now, before)| now.1 != before.1), "{file}: {from}");
        hashes(&files)
    }

    #[test]
    fn a_name_covers_its_file_and_its_directory() {
        let before = hashes(&FILES);
        assert!(before.keys().eq(["x/a", "x/a_tests", "x/c"]));
        assert_ne!(after("a.rs", "fn a", "fn other")["x/a"], before["x/a"]);
        assert_ne!(after("a/b.rs", "fn b", "fn other")["x/a"], before["x/a"]);
    }

    #[test]
    fn tests_and_comments_do_not_count_and_code_after_them_does() {
        let before = hashes(&FILES);
        assert_eq!(after("a/b.rs", "t()\n", "other()\n"), before);
        assert_eq!(after("c/tests.rs", "fn t", "fn other"), before);
        assert_eq!(after("c.rs", "fn c", "// Why.\nfn c"), before);
        assert_ne!(after("c.rs", "fn c", "fn other")["x/c"], before["x/c"]);
    }
}
