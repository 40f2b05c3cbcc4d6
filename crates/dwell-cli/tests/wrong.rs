// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every command with every kind of wrong input: the exit status, the first line, and nothing
//! measured before.

use std::any::TypeId;
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Arg;

/// Longer, and something was measured. A machine that is busy gets its time.
const SOON: Duration = Duration::from_secs(10);

/// All commands that do something by themselves, by their words.
fn leaves() -> Vec<(Vec<String>, clap::Command)> {
    fn walk(
        words: &[String],
        command: &clap::Command,
        found: &mut Vec<(Vec<String>, clap::Command)>,
    ) {
        let mut subs = command.get_subcommands().filter(|sub| !sub.is_hide_set()).peekable();
        if subs.peek().is_none() {
            return found.push((words.to_vec(), command.clone()));
        }
        for sub in subs {
            walk(&[words, &[sub.get_name().to_owned()]].concat(), sub, found);
        }
    }
    let mut found = Vec::new();
    walk(&[], &dwell_cli::command(), &mut found);
    assert!(found.len() > 25, "{}", found.len());
    found
}

/// A directory of wrong things, in which commands run.
struct Place {
    dir: tempfile::TempDir,
    failures: RefCell<Vec<String>>,
    /// The user that runs the commands, where it is not this one.
    user: Option<u32>,
}

/// A user that reads what all may read.
const NOBODY: u32 = 65534;

impl Place {
    fn new() -> Place {
        let place =
            Place { dir: tempfile::tempdir().unwrap(), failures: RefCell::default(), user: None };
        let at = |name: &str| place.dir.path().join(name);
        fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("file"), vec![7; 2 << 20]).unwrap();
        // Not even root reads it.
        drop(UnixListener::bind(at("socket")).unwrap());
        place
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        for (name, at) in [
            ("DWELL_PROFILES", "profiles"),
            ("DWELL_HOST_PAGE", "page"),
            ("DWELL_SYSTEM_CONFIG", "none.toml"),
            ("XDG_CONFIG_HOME", "none"),
        ] {
            command.env(name, self.dir.path().join(at));
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Exit status and what was said, on standard error first.
    fn run(&self, words: &[String]) -> (i32, String) {
        let began = Instant::now();
        let output = self.command(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let took = began.elapsed();
        assert!(took < SOON, "{words:?} took {took:?}: {said}");
        (output.status.code().unwrap(), said)
    }

    fn check(&self, words: &[String], status: i32, begins: &str, holds: &str) {
        let (code, said) = self.run(words);
        let first = said.lines().next().unwrap_or_default();
        let good = code == status && first.starts_with(begins) && first.contains(holds);
        if !good {
            let words = words.join(" ");
            let wanted = format!("{status} {begins}…{holds}…");
            let failure = format!("dwell {words}: {code}, not {wanted}:\n{said}");
            self.failures.borrow_mut().push(failure);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let failures = self.failures.borrow();
        assert!(failures.is_empty() || thread::panicking(), "{}", failures.join("\n"));
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn takes_a_value(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_positional() && !arg.is_hide_set()
}

#[test]
fn an_option_that_there_is_not_is_status_2() {
    let place = Place::new();
    for (leaf, _) in leaves() {
        let unknown = "unexpected argument '--no-such-option' found";
        place.check(&[&leaf[..], &words("--no-such-option")].concat(), 2, "dwell: ", unknown);
    }
    place.check(&words("no-such-command"), 2, "dwell: unrecognized subcommand", "");
    place.check(&words("bench no-such-command"), 2, "dwell: unrecognized subcommand", "");
}

#[test]
fn no_command_that_is_hidden_is_proposed() {
    let place = Place::new();
    let (_, said) = place.run(&words("rnu"));
    assert!(!said.contains("crunch"), "{said}");
    let (_, said) = place.run(&words("serv"));
    assert!(said.contains("similar subcommand exists: 'serve'"), "{said}");
}

#[test]
fn an_argument_that_is_missing_is_status_2() {
    let place = Place::new();
    let missing = "dwell: the following required arguments were not provided";
    /// Commands that mean something without any argument.
    const ALONE: [&str; 12] = [
        "off",
        "on",
        "top",
        "doctor",
        "profile list",
        "bench io",
        "bench nfs",
        "bench pager",
        "bench bundle",
        "lab sim model",
        "lab sim wait",
        "serve status",
    ];
    for (leaf, command) in leaves() {
        let alone = ALONE.contains(&leaf.join(" ").as_str());
        if !alone {
            place.check(&leaf, 2, missing, "");
        }
        for arg in command.get_arguments().filter(|arg| takes_a_value(arg)) {
            let option = format!("--{}", arg.get_long().unwrap());
            let words = [&leaf[..], std::slice::from_ref(&option)].concat();
            place.check(&words, 2, "dwell: a value is required for ", &option);
        }
    }
}

#[test]
fn a_value_that_is_none_is_status_2() {
    /// Options that take any text.
    const TEXT: [&str; 5] = ["--because", "--setup", "--check", "--case", "--pager"];
    /// Options whose values are looked at with others, in the table below; or by the kernel.
    const LATER: [&str; 4] = ["--set", "--baseline", "--scheduler", "--on"];
    let place = Place::new();
    for (leaf, command) in leaves() {
        for arg in command.get_arguments().filter(|arg| takes_a_value(arg)) {
            let option = format!("--{}", arg.get_long().unwrap());
            let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
            let later = LATER.contains(&option.as_str())
                || leaf.join(" ") + &option == "bench io--scenario";
            if is_path || later || TEXT.contains(&option.as_str()) {
                continue;
            }
            let words = [&leaf[..], &[format!("{option}=@@")]].concat();
            place.check(&words, 2, "dwell: invalid value '@@' for ", &option);
        }
    }
}

#[test]
fn several_words_that_are_wrong_together_are_status_2() {
    let place = Place::new();
    for (line, says) in [
        ("run --policy guess true", "no such policy"),
        ("ctl 1 sideways", "no such order"),
        ("ctl one off", "want the number of a process"),
        ("advise --pid one", "want the number of a process"),
        ("explain file --write --sync", "cannot be used with"),
        ("explain file --depth 0", "invalid value '0'"),
        ("probe file file --svg x.svg", "one PATH"),
        ("lab figure X99", "no figure X99"),
        ("figure S4", "the command is dwell lab figure"),
        ("sim wait", "the command is dwell lab sim"),
        ("trace info x.dwt", "the command is dwell lab trace"),
        ("lab figure S4 --max-time 5s", "6s to 600s"),
        ("lab figure S4 --max-time soon", "as 300ms or 2s"),
        ("compare --policies block,guess -- true", "no such policy"),
        ("compare --rounds 0 -- true", "invalid value '0'"),
        ("top --interval 0", "0.1 to 3600"),
        ("advise --pid 1 --all", "cannot be used with"),
        ("advise --seconds 0 --all", "invalid value '0'"),
        ("bench io file --sizes 4k,4k", "named twice"),
        ("bench io file --baseline hybrid --policies block,spin", "not among those"),
        ("bench io file --bystanders 2", "none is started"),
        ("bench io file --sizes 0", "at least 1 byte"),
        ("bench io file file", "named twice"),
        ("bench io file --force", "--write"),
        ("bench io emu:no-such", "not a preset"),
        ("bench io nfs://x", "no export"),
        ("bench workload varmail --on loop,loop", "named twice"),
        ("bench workload varmail --policies block,block", "named twice"),
        ("bench nfs nfs://127.0.0.1:1/x --windows 2,2", "named twice"),
        ("bench nfs nfs://127.0.0.1:1/x --contenders async,async", "named twice"),
        ("bench nfs nfs://127.0.0.1:1/x --contenders peer:", "peer:"),
        ("bench pager --contenders mmap,mmap", "named twice"),
        ("bench pager --work random,random", "named twice"),
        ("bench pager --on zram,zram", "named twice"),
        ("bench pager --bytes 1", "1MiB at least"),
        ("bench pager file --bytes 2M", "cannot be used with"),
        ("bench pager file --scale 20", "cannot be used with"),
        ("bench pager --scale 20", "no graph"),
        ("bench pager --work random --stride 2", "--work strided"),
        ("bench pager file file", "named twice"),
        ("bench pager emu:no-such", "not a preset"),
        ("probe emu:no-such", "not a preset"),
        ("explain emu:no-such", "not a preset"),
        ("explain nfs://x", "no export"),
        ("off --because=", "a value is required"),
        ("lab figure S4 --case no-such", "no row of S4"),
        ("lab figure --all S4", "cannot be used with"),
        ("lab trace cut x -o y --limit 0", "invalid value '0'"),
        ("lab trace record --limit 0 -- true", "invalid value '0'"),
        ("lab sim model --device x=0ns", "above 0"),
        ("lab sim wait --policies block,block", "named twice"),
        ("bench workload no-such", "no-such"),
        ("bench workload --print no-such", "no-such"),
        ("bench workload varmail --set no_such=1", "no_such"),
        ("bench workload varmail --baseline spin", "not among those"),
        ("bench nfs http://server/", "http://server/"),
        ("bench nfs nfs://127.0.0.1:1/x --bytes 0", "at least 1 byte"),
        ("bench pager file --contenders mmap --baseline region", "not among those"),
        ("nfs ls directory", "directory"),
        ("nfs cp file other", "neither is an NFS address"),
        ("nfs cp nfs:// file", "nfs://"),
        ("nfs cp file nfs://127.0.0.1:1/x --threads 0", "invalid value '0'"),
        ("lab sim its x.toml --set no_such=1", "no_such"),
        ("lab sim its x.toml --policies guess", "guess"),
        ("lab sim model --set no_such=1", "no_such"),
        ("doctor --color sometimes", "sometimes"),
        ("lab sim sweep x.toml --shard 5/4 -o out", "3/64"),
        ("lab sim wait --set no_such=1", "no_such"),
        ("lab sim wait --policies guess", "no such policy"),
        ("serve start directory mount --policy guess", "no such policy"),
        ("lab trace workloads -o out no-such", "no such workload"),
        ("lab trace workloads -o out --scale 0", "above 0"),
    ] {
        place.check(&words(line), 2, "dwell: ", says);
    }
    place.check(&["profile", "rm", ""].map(str::to_owned), 2, "dwell: ", "NAME");
}

#[test]
fn nothing_is_measured_where_the_machine_lacks_what_is_asked_for() {
    let place = Place::new();
    fs::write(place.dir.path().join("tiny"), "tiny").unwrap();
    fs::write(place.dir.path().join("no.toml"), "x\n").unwrap();
    for (line, says) in [
        ("bench io file --sizes 3000", "not a multiple of the block"),
        ("bench io file --sizes 4M", "larger than what it holds"),
        ("bench io tiny", "larger than what it holds"),
        ("bench io file --write", "--force allows that"),
        ("bench io file --scheduler no-such", "no-such"),
        ("bench io file --samples x.txt", ".csv or .parquet"),
        ("bench io file --policies peer:no-such,block", "peers"),
        ("lab figure S4 --kept file", "is no directory"),
        ("lab sim its no.toml", "no.toml: not a batch: line 1: "),
        ("lab sim sweep no.toml -o out", "line 1: "),
        ("lab sim wait no.toml", "line 1: "),
        ("lab sim model --calibration no.toml", "line 1: "),
        ("bench workload ./no.toml", "no.toml, line 1: "),
        ("lab trace import no.toml -o file", "--force"),
        ("lab trace record -o file -- true", "--force"),
        ("bench bundle -o file", "--force"),
        ("bench bundle directory -o out", "name a directory that bench or advise wrote"),
    ] {
        place.check(&words(line), 1, "dwell: ", says);
    }
}

/// Commands with a place that is wrong, `{}`; what they end with where nothing is there, where it
/// cannot be read, and where it is a directory. 0 leaves a kind out: the command takes it.
const PLACES: &[(&str, [i32; 3])] = &[
    // A shell's statuses, and the command's own.
    ("run ./{}", [127, 126, 126]),
    ("run --config {} true", [125, 125, 125]),
    ("advise -- ./{}", [127, 126, 126]),
    ("advise --from {}", [1, 1, 1]),
    ("advise --out file/{} -- true", [1, 1, 1]),
    ("compare -- ./{}", [1, 1, 1]),
    ("lab trace record -o x.dwt -- ./{}", [1, 1, 1]),
    ("ctl 4194305 off", [1, 1, 1]),
    ("top --once --openmetrics none/{}", [1, 1, 1]),
    ("top --listen unix:none/{}", [1, 1, 1]),
    ("probe {}", [1, 1, 1]),
    ("probe --quick file {}", [1, 1, 1]),
    ("probe --quick file --svg none/{}", [1, 1, 1]),
    ("probe file --config {}", [1, 1, 1]),
    ("profile show {}", [1, 1, 1]),
    ("profile rm {}", [1, 1, 1]),
    ("doctor --config {}", [1, 1, 1]),
    ("explain {}", [1, 1, 1]),
    ("bench io {}", [1, 1, 1]),
    ("bench io file {}", [1, 1, 1]),
    ("bench io file --scenario {}", [1, 1, 1]),
    ("bench io file --samples none/{}", [1, 1, 1]),
    ("bench io file --peers-program {}", [1, 1, 1]),
    ("bench io emu:z-nand --out file/{}", [1, 1, 1]),
    ("bench workload ./{}", [1, 1, 1]),
    ("bench workload varmail --on {}", [1, 1, 0]),
    ("bench workload varmail --out file/{}", [1, 1, 1]),
    ("bench nfs nfs://127.0.0.1:1/x --peers-program {}", [1, 1, 1]),
    ("bench nfs nfs://127.0.0.1:1/x --out file/{}", [1, 1, 1]),
    ("bench pager {}", [1, 1, 1]),
    ("bench pager file --out file/{}", [1, 1, 1]),
    ("nfs cp ./{} nfs://127.0.0.1:1/x", [1, 1, 1]),
    ("nfs mount nfs://127.0.0.1:1/x {}", [1, 1, 0]),
    ("nfs unmount {}", [1, 1, 1]),
    ("lab figure S4 --out file/{}", [1, 1, 1]),
    ("lab figure S4 --traces {}", [1, 1, 0]),
    ("lab trace info {}", [1, 1, 1]),
    ("lab trace cut {} -o x.dwt", [1, 1, 1]),
    ("lab trace import {} -o x.dwt", [1, 1, 1]),
    ("lab trace import file -o none/{}", [1, 1, 1]),
    ("lab trace export {} -o x", [1, 1, 1]),
    ("lab trace workloads --list --catalogue {}", [1, 1, 1]),
    ("lab trace workloads -o file/{}", [1, 1, 1]),
    ("bench bundle {} -o out", [1, 1, 1]),
    ("lab sim sweep {} -o out", [1, 1, 1]),
    ("lab sim its {}", [1, 1, 1]),
    ("lab sim its x.toml -o file/{}", [1, 1, 1]),
    ("lab sim model --calibration {}", [1, 1, 1]),
    ("lab sim wait {}", [1, 1, 1]),
    ("lab sim wait --probed {}", [1, 1, 1]),
    ("serve start {} mount", [1, 1, 0]),
    ("serve start directory {}", [1, 1, 0]),
    ("serve stop {}", [1, 1, 1]),
];

#[test]
fn a_place_that_is_wrong_is_named_in_one_line() {
    let place = Place::new();
    for (line, statuses) in PLACES {
        for (name, status) in ["missing", "socket", "directory"].iter().zip(statuses) {
            if *status == 0 {
                continue;
            }
            let named = if line.contains("{}") { *name } else { "" };
            // Where the place above it is wrong already, that is what is named.
            let named = if line.contains("/{}") && !line.contains("./{}") { "" } else { named };
            let line = words(&line.replace("{}", name));
            place.check(&line, *status, "dwell: ", named);
        }
    }
}

#[test]
fn a_file_that_only_others_may_read_is_named() {
    let mut place = Place::new();
    let secret = place.dir.path().join("secret");
    fs::write(&secret, vec![7; 2 << 20]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&secret).is_ok() {
        place.user = Some(NOBODY);
        let there = place.command(&words("--version")).output();
        if !there.is_ok_and(|output| output.status.success()) {
            println!(
                "SKIP: root reads files whatever their permissions, and nobody cannot start dwell here"
            );
            return;
        }
    }
    for (line, statuses) in PLACES.iter().filter(|(line, _)| line.contains(" {}")) {
        if statuses[1] == 1 && !line.contains("out") {
            place.check(&words(&line.replace("{}", "secret")), 1, "dwell: ", "secret");
        }
    }
}

#[test]
fn no_command_is_forgotten() {
    let without_places = ["off", "on", "profile list", "serve status"];
    let only_addresses = ["nfs ls", "nfs stat", "nfs cat", "nfs rm", "nfs mkdir"];
    for (leaf, _) in leaves() {
        let leaf = leaf.join(" ");
        let known = PLACES.iter().any(|(line, _)| line.starts_with(&format!("{leaf} ")))
            || without_places.contains(&leaf.as_str())
            || only_addresses.contains(&leaf.as_str());
        assert!(known, "dwell {leaf}: add it to PLACES");
    }
}
