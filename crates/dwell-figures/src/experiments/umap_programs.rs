// SPDX-License-Identifier: MIT OR Apache-2.0
//! G6: the programs by which UMap's authors show UMap, a sort in place and a breadth-first search,
//! by the pager, by the kernel's mappings and by UMap itself.

use anyhow::Result;

use super::lab::{skip, skip_all};
use super::pager::{
    HINTED, PLAIN, add_peak, against_best, entry, file_bytes, graph, race, test_file,
};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::pager::{Program, UMAP, Work, has_umap, limits, regions};
use dwell_bench::result::Run;
use dwell_bench::stand::Kind;

/// G6.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    if let Err(why) = limits() {
        return skip_all(result, &why.to_string()).map(|()| None);
    }
    let bytes = file_bytes(lab);
    let data = match test_file(lab, Kind::Loop, bytes)? {
        Ok(data) => data,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let rivals = |more: &[&'static str]| -> Vec<&'static str> {
        more.iter().copied().chain(PLAIN).chain(UMAP).collect()
    };
    let sort = vec![entry(lab, &data, Work::Sort, &rivals(&["region"]))?];
    let run = race(lab, &data, sort, 5, (0.0, 0.5), progress)?;
    enter(result, &run, Work::Sort, "region", &PLAIN)?;
    drop(data);
    let search = Work::Graph(Program::BreadthFirst);
    match graph(lab)? {
        Ok(graph) => {
            let methods = rivals(&["region", "region-hints", HINTED[0], HINTED[1]]);
            let entries = vec![entry(lab, &graph, search, &methods)?];
            let run = race(lab, &graph, entries, 5, (0.5, 1.0), progress)?;
            let kernels: Vec<&str> = PLAIN.into_iter().chain(HINTED).collect();
            enter(result, &run, search, "region-hints", &kernels)?;
        }
        Err(why) => {
            let cases = [BEST, UMAPS].map(|of| format!("{} {of}", search.as_str()));
            skip(result, &cases, &why)?;
        }
    }
    Ok(None)
}

const BEST: &str = "÷ the kernel's best";
const UMAPS: &str = "÷ UMap";

fn enter(
    result: &mut FigureResult,
    run: &Run,
    work: Work,
    ours: &str,
    kernels: &[&str],
) -> Result<()> {
    let name = work.as_str();
    let best = format!("{name} {BEST}");
    against_best(result, &best, run, name, ours, kernels)?;
    add_peak(result, &best, run, name)?;
    let umap = format!("{name} {UMAPS}");
    match has_umap() {
        Ok(()) => against_best(result, &umap, run, name, ours, &UMAP),
        Err(why) => skip(result, &[umap], &why),
    }
}
