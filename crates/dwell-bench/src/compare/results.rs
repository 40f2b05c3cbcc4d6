// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run prints: a sum to tell outputs apart, and where two of them part.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// As much of a differing line is shown.
const SHOWN: usize = 60;
/// Lines are longer only where there are none.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// A sum over a file's bytes with their number: the same for the same bytes on every machine.
pub(super) fn sum(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut length, mut buffer) = (0xcbf2_9ce4_8422_2325u64, 0u64, vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(format!("{hash:016x}-{length}")),
            read => {
                length += read as u64;
                for byte in &buffer[..read] {
                    hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
    }
}

/// Where two files part, in words; `None` where they do not.
pub(super) fn difference(ours: &Path, base: &Path) -> io::Result<Option<String>> {
    let (mut ours, mut base) =
        (BufReader::new(File::open(ours)?), BufReader::new(File::open(base)?));
    for number in 1u64.. {
        let (mine, theirs) = (line(&mut ours)?, line(&mut base)?);
        if mine != theirs {
            let (mine, theirs) = (shown(&mine), shown(&theirs));
            return Ok(Some(format!("line {number} is {mine} and was {theirs}")));
        }
        if mine.is_empty() {
            break;
        }
    }
    Ok(None)
}

fn line(file: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    file.take(LONGEST_LINE_BYTES).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn shown(line: &[u8]) -> String {
    if line.is_empty() {
        return "missing".into();
    }
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches('\n');
    let shortened: String = text.chars().take(SHOWN).collect();
    let more = if shortened.len() < text.len() { "…" } else { "" };
    format!("{shortened:?}{more}")
}

/// The last lines of a file, in one.
pub(super) fn tail(path: &Path) -> String {
    const LINES: usize = 5;
    const BYTES: u64 = 4096;
    let read = || -> io::Result<Vec<u8>> {
        use std::io::Seek;
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("; ");
    last.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: &tempfile::TempDir, name: &str, text: &[u8]) -> std::path::PathBuf {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn sums_tell_bytes_and_lengths_apart() {
        let directory = tempfile::tempdir().unwrap();
        let of = |text: &[u8]| sum(&file(&directory, "a", text)).unwrap();
        assert_eq!(of(b""), "cbf29ce484222325-0");
        assert_eq!(of(b"a"), "af63dc4c8601ec8c-1");
        assert_ne!(of(b"ab"), of(b"ba"));
        assert_eq!(of(&[7; 100_000]), of(&[7; 100_000]));
    }

    #[test]
    fn the_first_line_that_differs_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let a = file(&directory, "a", b"one\ntwo\nthree\n");
        let b = file(&directory, "b", b"one\n2\x1b\nthree\n");
        let c = file(&directory, "c", b"one\n");
        assert_eq!(difference(&a, &a).unwrap(), None);
        let says = difference(&b, &a).unwrap().unwrap();
        assert_eq!(says, "line 2 is \"2\\u{1b}\" and was \"two\"");
        assert_eq!(difference(&c, &a).unwrap().unwrap(), "line 2 is missing and was \"two\"");
        let long = file(&directory, "d", &[b'x'; 200]);
        assert!(difference(&long, &a).unwrap().unwrap().contains("…"));
    }

    #[test]
    fn a_tail_is_one_line_of_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let text: String = (0..2000).map(|i| format!("line\t{i}\n\n")).collect();
        let tail_of = tail(&file(&directory, "a", text.as_bytes()));
        assert_eq!(tail_of, "line 1995; line 1996; line 1997; line 1998; line 1999");
        assert_eq!(tail(Path::new("/nonexistent")), "");
    }
}
