// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell-kernels`: small programs that behave in memory like what they stand for. One thread each,
//! the same work for the same arguments, one line of result.

mod caffenet;
mod inputs;
mod stencil;

use std::path::PathBuf;
use std::process::ExitCode;

use dwell_workloads::graphs::{NoHints, Walks};
use dwell_workloads::{csr, graphs};

const USAGE: &str = "\
usage: dwell-kernels text --bytes N --out FILE       text that compresses like English
       dwell-kernels scene --spheres N --out FILE    a scene for povray
       dwell-kernels graph --scale N --out FILE      an R-MAT graph of 2^N vertices, 16 edges each
       dwell-kernels stencil --side N --steps N      seven points over six arrays of N^3
       dwell-kernels caffenet --divisor N --images N CaffeNet with its channels divided
       dwell-kernels pagerank --graph FILE --rounds N
       dwell-kernels labels --graph FILE --rounds N
       dwell-kernels walk --graph FILE --walks N --steps N
       dwell-kernels sssp --graph FILE
       dwell-kernels bfs --graph FILE";

/// Options by name.
struct Options(Vec<String>);

impl Options {
    fn text(&self, name: &str) -> Result<&str, String> {
        let pairs = self.0.chunks(2).find(|pair| pair[0].strip_prefix("--") == Some(name));
        let value = pairs.and_then(|pair| pair.get(1)).map(String::as_str);
        value.ok_or_else(|| format!("--{name} is missing\n{USAGE}"))
    }

    fn number(&self, name: &str, most: u64) -> Result<usize, String> {
        let text = self.text(name)?;
        match text.parse::<u64>() {
            Ok(number) if (1..=most).contains(&number) => Ok(number as usize),
            _ => Err(format!("--{name} {text}: must be 1 to {most}")),
        }
    }

    fn path(&self, name: &str) -> Result<PathBuf, String> {
        self.text(name).map(PathBuf::from)
    }
}

fn run() -> Result<String, String> {
    let mut words = std::env::args().skip(1);
    let kernel = words.next().ok_or(USAGE)?;
    let options = Options(words.collect());
    let mapped = || csr::Mapped::open(&options.path("graph")?);
    let rounds = || options.number("rounds", 1000);
    Ok(match kernel.as_str() {
        "text" => inputs::text(options.number("bytes", 1 << 34)?, &options.path("out")?)?,
        "scene" => inputs::scene(options.number("spheres", 1 << 24)?, &options.path("out")?)?,
        "graph" => csr::generate(options.number("scale", 26)? as u32, &options.path("out")?)?,
        "stencil" => stencil::run(options.number("side", 1024)?, options.number("steps", 10_000)?),
        "caffenet" => {
            caffenet::run(options.number("divisor", 16)?, options.number("images", 100_000)?)
        }
        "pagerank" => graphs::pagerank(&mapped()?.graph(), rounds()?, &mut NoHints),
        "labels" => graphs::labels(&mapped()?.graph(), rounds()?, &mut NoHints),
        "walk" => {
            let (walks, steps) =
                (options.number("walks", 1 << 34)?, options.number("steps", 1000)?);
            graphs::walk(&mapped()?.graph(), Walks { walks, steps, together: 1 }, &mut NoHints)
        }
        "sssp" => graphs::sssp(&mapped()?.graph(), &mut NoHints),
        "bfs" => graphs::bfs(&mapped()?.graph(), &mut NoHints),
        other => return Err(format!("{other}: no such kernel\n{USAGE}")),
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("dwell-kernels: {why}");
            ExitCode::FAILURE
        }
    }
}
