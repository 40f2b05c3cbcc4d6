// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line as it is described: what clap knows, with examples and the page of each
//! command. Manual pages and completions are made from the same.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate_to};

use crate::Cli;

/// Examples, and the page that says more, by the words of a command. A page stands also for what
/// lies below its command.
const TOPICS: &[(&str, &str, &[&str])] = &[
    ("", "README.md", &["dwell doctor", "dwell compare -- ./job", "dwell bench io /dev/nvme0n1"]),
    (
        "run",
        "docs/how-to/programs.md",
        &["dwell run -- ./server", "dwell run --shadow -- ./server"],
    ),
    (
        "ctl",
        "docs/how-to/top.md",
        &["dwell ctl 4711 off", "dwell ctl 4711 policy=block", "dwell ctl 4711 on --run"],
    ),
    ("off", "docs/how-to/top.md", &["dwell off --because 'the database is slow'"]),
    ("on", "docs/how-to/top.md", &["dwell on"]),
    (
        "top",
        "docs/how-to/top.md",
        &["dwell top", "dwell top --json", "dwell top --listen 127.0.0.1:9420"],
    ),
    (
        "probe",
        "docs/reference/probe.md",
        &["dwell probe /dev/nvme0n1", "dwell probe --quick data.db"],
    ),
    ("profile", "docs/reference/probe.md", &["dwell profile list"]),
    ("profile list", "docs/reference/probe.md", &["dwell profile list --json"]),
    ("profile show", "docs/reference/probe.md", &["dwell profile show NAME"]),
    ("profile rm", "docs/reference/probe.md", &["dwell profile rm NAME"]),
    ("doctor", "docs/reference/configuration.md", &["dwell doctor", "dwell doctor --json"]),
    (
        "explain",
        "docs/explanation/policies.md",
        &["dwell explain data.db --size 16k", "dwell explain /dev/nvme0n1 --load 30% --write"],
    ),
    ("bench", "docs/reference/bench.md", &["dwell bench io", "dwell bench workload varmail"]),
    (
        "bench io",
        "docs/reference/bench.md",
        &["dwell bench io /dev/nvme0n1", "dwell bench io data.db --sizes 4k --load cpu -o result"],
    ),
    (
        "bench workload",
        "docs/reference/workloads.md",
        &["dwell bench workload varmail", "dwell bench workload --print varmail"],
    ),
    ("bench nfs", "docs/how-to/nfs.md", &["dwell bench nfs nfs://server/export/file --read"]),
    (
        "bench bundle",
        "docs/how-to/troubleshooting.md",
        &["dwell bench bundle dwell-report -o bundle.json"],
    ),
    ("bench pager", "docs/how-to/pager.md", &["dwell bench pager data.db --memory-ratio 8"]),
    ("nfs", "docs/how-to/nfs.md", &["dwell nfs ls nfs://server/export"]),
    ("nfs cp", "docs/how-to/nfs.md", &["dwell nfs cp -r nfs://server/export ."]),
    ("nfs ls", "docs/how-to/nfs.md", &["dwell nfs ls nfs://server/export/directory"]),
    ("nfs stat", "docs/how-to/nfs.md", &["dwell nfs stat nfs://server/export/file"]),
    ("nfs cat", "docs/how-to/nfs.md", &["dwell nfs cat nfs://server/export/file"]),
    ("nfs rm", "docs/how-to/nfs.md", &["dwell nfs rm nfs://server/export/file"]),
    ("nfs mkdir", "docs/how-to/nfs.md", &["dwell nfs mkdir -p nfs://server/export/a/b"]),
    ("nfs mount", "docs/how-to/nfs.md", &["dwell nfs mount 'nfs://server/export?hard' directory"]),
    ("nfs unmount", "docs/how-to/nfs.md", &["dwell nfs unmount directory"]),
    ("lab", "docs/research/reproduce.md", &["dwell lab figure --list", "dwell lab sim wait"]),
    (
        "lab figure",
        "docs/research/reproduce.md",
        &["dwell lab figure --list", "dwell lab figure S4"],
    ),
    (
        "advise",
        "docs/how-to/advise.md",
        &[
            "dwell advise -- sqlite3 test.db '.read queries.sql'",
            "dwell advise --pid 4711 --seconds 30",
            "dwell advise --all --out report",
            "dwell advise --from fio.json",
        ],
    ),
    (
        "compare",
        "docs/how-to/compare.md",
        &[
            "dwell compare -- ./job",
            "dwell compare --rounds 20 --check 'sha256sum out' -- ./job out",
        ],
    ),
    ("lab trace", "docs/reference/trace-format.md", &["dwell lab trace record -o ls.dwt -- ls -l"]),
    (
        "lab trace record",
        "docs/reference/trace-format.md",
        &["dwell lab trace record -o ls.dwt -- ls -l"],
    ),
    ("lab trace info", "docs/reference/trace-format.md", &["dwell lab trace info ls.dwt"]),
    (
        "lab trace cut",
        "docs/reference/trace-format.md",
        &["dwell lab trace cut ls.dwt --limit 1000000 -o short.dwt"],
    ),
    (
        "lab trace import",
        "docs/reference/trace-format.md",
        &["dwell lab trace import lackey.txt -o program.dwt"],
    ),
    (
        "lab trace export",
        "docs/reference/trace-format.md",
        &["dwell lab trace export ls.dwt -o ls.champsim"],
    ),
    (
        "lab trace workloads",
        "docs/reference/trace-format.md",
        &["dwell lab trace workloads -o traces"],
    ),
    ("lab sim", "docs/research/simulator.md", &["dwell lab sim wait --set device.latency=3us"]),
    ("lab sim its", "docs/research/simulator.md", &["dwell lab sim its traces -o result"]),
    ("lab sim model", "docs/research/model.md", &["dwell lab sim model --device mram=35ns/line"]),
    (
        "lab sim sweep",
        "docs/how-to/python.md",
        &["dwell lab sim sweep grid.toml --shard 1/4 -o swept"],
    ),
    (
        "lab sim wait",
        "docs/research/sim-wait.md",
        &["dwell lab sim wait --set cores=32 --policies block,adaptive"],
    ),
    (
        "serve",
        "docs/how-to/serve.md",
        &["dwell serve start /srv/data /mnt/data", "dwell serve status"],
    ),
    ("serve start", "docs/how-to/serve.md", &["dwell serve start /srv/data /mnt/data"]),
    ("serve status", "docs/how-to/serve.md", &["dwell serve status --json"]),
    ("serve stop", "docs/how-to/serve.md", &["dwell serve stop /mnt/data"]),
];

/// The whole command line.
pub fn command() -> Command {
    described(Cli::command(), "")
}

/// A command with the examples and the page that belong to its words, and so all below it.
fn described(command: Command, words: &str) -> Command {
    let below = |sub: Command| {
        let words = format!("{words} {}", sub.get_name());
        described(sub, words.trim_start())
    };
    let command = command.mut_subcommands(below);
    let Some((_, page, examples)) = TOPICS.iter().find(|(of, ..)| *of == words) else {
        return command;
    };
    let said = command.get_after_help().map(|said| format!("{said}\n\n")).unwrap_or_default();
    let examples: String = examples.iter().map(|example| format!("  {example}\n")).collect();
    command.after_help(format!(
        "{said}Examples:\n{examples}\nMore: {page} (installed in share/doc/dwell)"
    ))
}

/// Every command with what it does and its options, as `docs/reference/commands.md`.
fn markdown() -> String {
    fn rows(command: &Command, words: &str, text: &mut String) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let words = format!("{words} {}", sub.get_name());
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let longs = sub.get_arguments().filter(|arg| !arg.is_hide_set());
            let longs = longs.filter_map(|arg| Some(format!("`--{}`", arg.get_long()?)));
            let longs = longs.collect::<Vec<_>>().join(" ");
            let about = about.replace('|', "\\|").replace('\n', " ");
            text.push_str(&format!("| `{words}` | {about} | {longs} |\n"));
            rows(sub, &words, text);
        }
    }
    let mut text =
        "# Commands\n\n`dwell COMMAND --help` and the manual pages explain each option. \
                    `dwell pages DIR` writes this page.\n\n| command | what it does | options |\n\
                    |---|---|---|\n"
            .to_owned();
    rows(&command(), "dwell", &mut text);
    text
}

/// What packages install beside the programs: manual pages and completions.
#[derive(clap::Args)]
pub struct Pages {
    /// Directory for them.
    dir: PathBuf,
}

impl Pages {
    /// Writes `man/*.1`, and `completions/` for bash, zsh and fish.
    pub fn write(&self) -> Result<()> {
        let (man, completions) = (self.dir.join("man"), self.dir.join("completions"));
        for dir in [&man, &completions] {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let failed = |dir: &Path| format!("cannot write to {}", dir.display());
        let page = self.dir.join("commands.md");
        fs::write(&page, markdown()).with_context(|| failed(&page))?;
        clap_mangen::generate_to(command(), &man).with_context(|| failed(&man))?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            generate_to(shell, &mut shown(&command()), "dwell", &completions)
                .with_context(|| failed(&completions))?;
        }
        Ok(())
    }
}

/// A command without what is hidden of it, which completions would offer.
fn shown(command: &Command) -> Command {
    let mut bare = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()))
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(shown));
    if let Some(version) = command.get_version() {
        bare = bare.version(version.to_owned());
    }
    match command.get_about() {
        Some(about) => bare.about(about.clone()),
        None => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_offer_nothing_hidden() {
        let place = tempfile::tempdir().unwrap();
        Pages { dir: place.path().into() }.write().unwrap();
        for name in ["dwell.bash", "_dwell", "dwell.fish"] {
            let text = fs::read_to_string(place.path().join("completions").join(name)).unwrap();
            for (word, is_there) in
                [("advise", true), ("version", true), ("crunch", false), ("hasty-probe", false)]
            {
                assert_eq!(text.contains(word), is_there, "{name}: {word}");
            }
        }
    }

    #[test]
    fn the_book_lists_every_command() {
        let page = include_str!("../../../docs/reference/commands.md");
        assert!(page == markdown(), "write docs/reference/commands.md anew: dwell pages DIR");
    }

    /// The words of every command that is not hidden.
    fn all(command: &Command, words: &str, found: &mut Vec<String>) {
        found.push(words.to_owned());
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            all(sub, format!("{words} {}", sub.get_name()).trim_start(), found);
        }
    }

    fn words_of_all() -> Vec<String> {
        let mut found = Vec::new();
        all(&command(), "", &mut found);
        found
    }

    /// Words as a shell takes them, single quotes around some.
    fn split(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        let words = parts.flat_map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn every_command_has_examples_that_parse_and_a_page_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let known = words_of_all();
        for words in &known {
            let topic = TOPICS.iter().find(|(of, ..)| of == words);
            let (_, page, examples) = topic.unwrap_or_else(|| panic!("dwell {words}: no topic"));
            assert!(root.join(page).is_file(), "dwell {words}: {page}");
            assert!(!examples.is_empty(), "dwell {words}");
            for example in *examples {
                let parsed = command().try_get_matches_from(split(example));
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
                assert!(example.starts_with("dwell "), "{example}");
            }
        }
        for (words, ..) in TOPICS {
            assert!(known.iter().any(|known| known == words), "dwell {words}: there is none");
        }
    }

    #[test]
    fn every_command_has_a_manual_page_and_completions() {
        let dir = tempfile::tempdir().unwrap();
        Pages { dir: dir.path().to_owned() }.write().unwrap();
        let words = words_of_all();
        for words in &words {
            let name = format!("dwell {words}").trim_end().replace(' ', "-");
            let page = fs::read_to_string(dir.path().join(format!("man/{name}.1"))).unwrap();
            assert!(page.contains("Examples:"), "{name}");
        }
        assert_eq!(fs::read_dir(dir.path().join("man")).unwrap().count(), words.len());
        for name in ["dwell.bash", "_dwell", "dwell.fish"] {
            let script = fs::read_to_string(dir.path().join("completions").join(name)).unwrap();
            assert!(script.contains("probe") && script.contains("largest-threshold"), "{name}");
        }
    }
}
