// SPDX-License-Identifier: MIT OR Apache-2.0
//! S17: requests above the size threshold.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, cpu_text, put, row, skip, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::result::{Metric, pair};
use dwell_bench::stand::Kind;

const SIZES: [u64; 3] = [128 << 10, 256 << 10, 512 << 10];

/// S17.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let kinds = [
        (Kind::Loop, "loop on tmpfs", DeviceClass::Fast),
        (Kind::Disk, "disk", DeviceClass::Mainstream),
    ];
    for (i, (kind, name, class)) in kinds.into_iter().enumerate() {
        let case = |size: u64| format!("{name}, {} KiB", size >> 10);
        let subject = match lab.subject(kind)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &SIZES.map(case), &why)?;
                continue;
            }
        };
        let odd = unless_class(&subject, class);
        let plan = lab.plan(&["block", "smartcon"], &SIZES, (25, 120));
        let part = (i as f64 / 2.0, (i as f64 + 1.0) / 2.0);
        let run = lab.run(&plan, &[subject], part, progress)?;
        for size in SIZES {
            let [ours, base] = ["smartcon", "block"].map(|policy| row(&run, kind, size, policy));
            let (ours, base) = (ours?, base?);
            let remark = both(odd.clone(), cpu_text(ours, base));
            put(result, &case(size), pair(ours, base, Metric::Throughput), remark)?;
        }
    }
    Ok(None)
}
