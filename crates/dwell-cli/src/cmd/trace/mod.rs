// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab trace`: records, looks at, cuts and converts execution traces.

mod info;
mod workloads;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use dwell_bench::units;
use dwell_trace::record::{self, Outcome, Recording};
use dwell_trace::{Reader, cut, export, import};

use crate::progress::Progress;
use crate::signals::{self, Signals};
use crate::{given, places, show};

/// Execution traces: which instructions a program ran and which memory they touched
#[derive(Subcommand)]
pub enum Trace {
    Record(Record),
    Info(info::Info),
    Cut(Cut),
    Import(Import),
    Export(Export),
    Workloads(workloads::Workloads),
}

/// Run a command under Valgrind and record it
#[derive(Args)]
pub struct Record {
    /// The trace to write [default: the command's name with .dwt]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite a file that is there
    #[arg(short, long)]
    force: bool,
    /// Leave out the first N instructions
    #[arg(long, default_value_t = 0)]
    skip: u64,
    /// End the program after N recorded instructions, to within a block
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Record the processes too that the command starts, each into a file of its own
    #[arg(long)]
    children: bool,
    /// Print what was recorded as JSON
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Copy a part of a trace
#[derive(Args)]
pub struct Cut {
    /// The trace
    trace: PathBuf,
    /// The trace to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Overwrite a file that is there
    #[arg(short, long)]
    force: bool,
    /// First instruction, to within a block
    #[arg(long, default_value_t = 0)]
    skip: u64,
    /// How many instructions, to within a block
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

/// Make a trace from the text of Valgrind's lackey (--trace-mem=yes)
#[derive(Args)]
pub struct Import {
    /// The text, or - for standard input
    text: PathBuf,
    /// The trace to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Overwrite a file that is there
    #[arg(short, long)]
    force: bool,
    /// Stop after N instructions
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

/// Write a trace as ChampSim's records of 64 bytes per instruction
#[derive(Args)]
pub struct Export {
    /// The trace
    trace: PathBuf,
    /// The file to write, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Overwrite a file that is there
    #[arg(short, long)]
    force: bool,
    /// Only this thread
    #[arg(long)]
    thread: Option<u32>,
    /// Stop after N instructions
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

/// Does what is asked.
pub fn run(trace: &Trace) -> Result<()> {
    match trace {
        Trace::Record(args) => args.run(),
        Trace::Info(args) => args.run(),
        Trace::Cut(args) => args.run(),
        Trace::Import(args) => args.run(),
        Trace::Export(args) => args.run(),
        Trace::Workloads(args) => args.run(),
    }
}

/// What has been recorded so far, as a phase of the progress.
fn so_far(instructions: u64, started: Instant) -> String {
    let rate = instructions as f64 / started.elapsed().as_secs_f64().max(1e-3);
    format!("{} instructions, {}", units::count(instructions), units::per_second(rate))
}

impl Record {
    fn run(&self) -> Result<()> {
        if !places::is_program(&self.command[0]) {
            bail!("{}: there is no such program", self.command[0].display());
        }
        let name = Path::new(&self.command[0]).file_name().unwrap_or_default();
        let out = self.out.clone().unwrap_or_else(|| Path::new(name).with_extension("dwt"));
        given::new_output(&out, self.force)?;
        let plan = Recording {
            command: self.command.clone(),
            out,
            skip: self.skip,
            limit: self.limit,
            children: self.children,
            tool_dir: places::trace_tool()?,
        };
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        let outcome = record_with_progress(&plan, &name.to_string_lossy(), &signals)?;
        match self.json {
            true => show::out(&show::json(&recorded_json(&outcome))?)?,
            // Standard output is the program's.
            false => _ = io::stderr().write_all(recorded_table(&outcome).as_bytes()),
        }
        if let Some(signal) = signals.received() {
            let kept = "what was recorded until then is kept".into();
            bail!(signals::Ended { signal, kept });
        }
        if !outcome.status.success() && self.limit.is_none() {
            eprintln!("dwell: {}: {}", name.to_string_lossy(), outcome.status);
        }
        Ok(())
    }
}

/// Records under a progress line that names the program.
fn record_with_progress(plan: &Recording, name: &str, signals: &Signals) -> Result<Outcome> {
    let (mut progress, started) = (Progress::of(name), Instant::now());
    let outcome = record::record(plan, &mut |instructions| {
        let share = plan.limit.map_or(0.0, |limit| instructions as f64 / limit.max(1) as f64);
        progress.show(&so_far(instructions, started), share);
        !signals.stop.load(Ordering::Relaxed)
    });
    progress.finish();
    Ok(outcome?)
}

fn recorded_table(outcome: &Outcome) -> String {
    let screen = show::Screen::stderr();
    let heads = ["trace", "process", "instructions", "accesses", "size", "bytes per event*", ""];
    let mut table = screen.table(&heads, &[1, 2, 3, 4, 5]);
    for trace in &outcome.traces {
        let written = &trace.written;
        let events = (written.instructions + written.accesses).max(1);
        table.add_row([
            trace.path.display().to_string(),
            trace.about.pid.to_string(),
            units::count(written.instructions),
            units::count(written.accesses),
            units::bytes(written.bytes),
            format!("{:.3}", written.bytes as f64 / events as f64),
            if trace.killed { "killed: its last events are missing" } else { "" }.into(),
        ]);
    }
    show::finished(&table) + "* an instruction or an access\n"
}

fn recorded_json(outcome: &Outcome) -> serde_json::Value {
    let traces = outcome.traces.iter().map(|trace| {
        serde_json::json!({
            "path": trace.path,
            "about": trace.about,
            "instructions": trace.written.instructions,
            "blocks": trace.written.blocks,
            "accesses": trace.written.accesses,
            "bytes": trace.written.bytes,
            "killed": trace.killed,
        })
    });
    serde_json::json!({
        "traces": traces.collect::<Vec<_>>(),
        "status": outcome.status.to_string(),
    })
}

/// Says on standard error where a trace was cut short.
fn open(path: &Path) -> Result<Reader> {
    let trace = Reader::open(path)?;
    if let Some(at) = trace.cut_short_at() {
        let path = show::one_line(&path.display().to_string());
        eprintln!("dwell: {path}: ends early at byte {at}; what comes before is whole");
    }
    Ok(trace)
}

impl Cut {
    fn run(&self) -> Result<()> {
        let mut trace = open(&self.trace)?;
        let total = self.limit.min(trace.instructions().saturating_sub(self.skip)).max(1) as f64;
        if same_file(&self.trace, &self.out) {
            bail!("{}: a trace cannot be cut onto itself; give another --out", self.out.display());
        }
        given::new_output(&self.out, self.force)?;
        let mut progress = Progress::of("cut");
        let written = whole(&self.out, |out| {
            cut::cut(&mut trace, out, self.skip, self.limit, &mut |done| {
                progress.show("copying", done as f64 / total);
            })
        });
        progress.finish();
        told(&self.out, written?)
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(a).is_some() && real(a) == real(b)
}

/// Has a file written. One that was made for it and is not whole is removed again.
fn whole<T>(out: &Path, write: impl FnOnce(&Path) -> dwell_trace::Result<T>) -> Result<T> {
    let is_new = out.symlink_metadata().is_err();
    let written = write(out);
    if written.is_err() && is_new {
        let _ = std::fs::remove_file(out);
    }
    Ok(written?)
}

fn told(out: &Path, written: dwell_trace::Written) -> Result<()> {
    let (instructions, accesses) = (written.instructions, written.accesses);
    let (instructions, accesses) = (units::count(instructions), units::count(accesses));
    let (size, out) = (units::bytes(written.bytes), out.display());
    Ok(show::out(&format!("{out}: {instructions} instructions, {accesses} accesses, {size}\n"))?)
}

impl Import {
    fn run(&self) -> Result<()> {
        let mut progress = Progress::of("import");
        let started = Instant::now();
        let mut text: Box<dyn std::io::BufRead> = match self.text.to_str() {
            Some("-") => Box::new(std::io::stdin().lock()),
            _ => {
                let file = File::open(&self.text);
                Box::new(BufReader::new(file.with_context(|| self.text.display().to_string())?))
            }
        };
        given::new_output(&self.out, self.force)?;
        let written = whole(&self.out, |out| {
            import::lackey(&mut text, &self.text, out, self.limit, &mut |instructions| {
                progress.show(&so_far(instructions, started), 0.0);
            })
        });
        progress.finish();
        told(&self.out, written?)
    }
}

/// A file that is made when the first bytes come.
struct Late<'a> {
    path: &'a Path,
    file: Option<BufWriter<File>>,
}

impl Write for Late<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            none => none.insert(BufWriter::new(File::create(self.path)?)).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

impl Export {
    fn run(&self) -> Result<()> {
        let mut trace = open(&self.trace)?;
        let total = self.limit.min(trace.instructions()).max(1) as f64;
        given::new_output(&self.out, self.force)?;
        let mut progress = Progress::of("export");
        let mut out: Box<dyn Write> = match self.out.to_str() {
            Some("-") => Box::new(BufWriter::new(std::io::stdout().lock())),
            _ => Box::new(Late { path: &self.out, file: None }),
        };
        let records =
            export::champsim(&mut trace, &mut out, self.thread, self.limit, &mut |done| {
                progress.show("writing records", done as f64 / total);
            });
        progress.finish();
        let records = records.with_context(|| self.out.display().to_string())?;
        eprintln!("{records} records of {} bytes", export::RECORD_BYTES);
        Ok(())
    }
}
