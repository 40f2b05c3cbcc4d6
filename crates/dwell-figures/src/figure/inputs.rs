// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that a figure is measured with.

use super::Figure;

include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// What every figure is measured with.
const COMMON: [&str; 11] = [
    "bench/batch",
    "bench/contender",
    "bench/entrant",
    "bench/fixture",
    "bench/lane",
    "bench/loads",
    "bench/measure",
    "bench/run",
    "bench/stats",
    "bench/subject",
    "bench/usage",
];

/// The hash of one source: an experiment, or what the bench names.
fn source(name: &str) -> Option<u64> {
    let experiment = SOURCES.iter().find(|(known, _)| *known == name).map(|(_, hash)| *hash);
    experiment.or_else(|| dwell_bench::sources::source(name))
}

impl Figure {
    /// Hash of the sources that the figure is measured with, in hexadecimal.
    pub fn inputs(&self) -> String {
        let names = COMMON.into_iter().chain(self.uses.iter().map(String::as_str));
        let hashes = names.filter_map(source);
        let mix = |state: u64, hash: u64| {
            (state ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        format!("{:016x}", hashes.fold(0, mix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::catalogue;

    #[test]
    fn every_figure_names_code_that_exists() {
        for name in COMMON {
            assert!(source(name).is_some(), "{name}");
        }
        for (id, figure) in &catalogue().figures {
            assert!(figure.uses.iter().any(|name| name.starts_with("experiment/")), "{id}");
            for name in &figure.uses {
                assert!(source(name).is_some(), "{id}: {name}");
            }
        }
    }

    #[test]
    fn a_name_stands_for_one_source() {
        let mut names: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&"experiment/channel"));
        names.dedup();
        assert_eq!(names.len(), SOURCES.len());
    }

    #[test]
    fn figures_of_other_code_have_other_inputs() {
        let figures = &catalogue().figures;
        assert_eq!(figures["I1"].inputs(), figures["I2"].inputs());
        assert_ne!(figures["I1"].inputs(), figures["G1"].inputs());
        assert_eq!(figures["G1"].inputs().len(), 16);
    }
}
