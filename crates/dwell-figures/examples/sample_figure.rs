// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the result and the picture of a figure of invented data, to look at while changing
//! either.

use std::path::PathBuf;

use dwell_bench::sample;
use dwell_figures::figure::{FigureResult, Measured, catalogue};

fn main() -> anyhow::Result<()> {
    let directory: PathBuf = std::env::args_os().nth(1).unwrap_or("target/sample".into()).into();
    let mut result = FigureResult::new("M1", sample::run().machine)?;
    let cases = catalogue().figures["M1"].cases.iter();
    for (i, case) in cases.enumerate().filter(|(i, _)| *i != 10) {
        let value =
            case.target.map_or(1.0, |target| target.bound()) * (0.985 + 0.01 * (i % 4) as f64);
        let ours = Measured { value, low: value * 0.985, high: value * 1.015 };
        result.measured(&case.case, ours)?;
    }
    result.save(&directory, None)
}
