// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a report and a table of invented data, to look at while changing either.

use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let directory: PathBuf = std::env::args_os().nth(1).unwrap_or("target/sample".into()).into();
    let run = dwell_bench::sample::run();
    dwell_bench::report::save(&run, &directory.join("report.html"))?;
    let crowded = dwell_bench::sample::crowded();
    dwell_bench::report::save(&crowded, &directory.join("crowded.html"))?;
    let comparison = dwell_bench::sample::comparison();
    dwell_bench::compare::save_report(&comparison, &directory.join("compare.html"))?;
    run.save(&directory.join("run.json"))?;
    let curves =
        dwell_bench::report::probe_curves("loop", &dwell_bench::sample::curves(), Some(65536));
    std::fs::write(directory.join("probe.svg"), curves.svg())?;
    println!("{}", dwell_bench::table::table(&run, 100));
    println!("{}", dwell_bench::compare::table(&comparison));
    println!("{}", directory.join("report.html").display());
    Ok(())
}
