// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics as words, for memory that processes share.

use super::{CELLS, FIGURES, Family, Row, Stats};
use crate::latency::{BUCKETS, Histogram};

const AT_FIGURES: usize = CELLS;
const AT_LATENCY: usize = AT_FIGURES + FIGURES;
const HISTOGRAM_WORDS: usize = BUCKETS + 2;

impl Stats {
    /// How many words statistics take.
    pub const WORDS: usize = AT_LATENCY + Family::ALL.len() * HISTOGRAM_WORDS;

    /// Writes the statistics into words that are zero.
    ///
    /// # Panics
    /// Where there are fewer than [`Stats::WORDS`].
    pub fn put_words(&self, words: &mut [u64]) {
        for counted in &self.rows {
            let cell = &mut words[counted.cell()];
            *cell = cell.saturating_add(counted.requests);
        }
        words[AT_FIGURES..][..FIGURES].copy_from_slice(&self.figures());
        let histograms = words[AT_LATENCY..].chunks_exact_mut(HISTOGRAM_WORDS);
        for (family, words) in Family::ALL.into_iter().zip(histograms) {
            let histogram = self.latency.of(family);
            words[..histogram.words().len()].copy_from_slice(histogram.words());
            words[BUCKETS] = histogram.sum_ns();
            words[BUCKETS + 1] = histogram.max_ns();
        }
    }

    /// Reads statistics from words, whatever these contain.
    ///
    /// # Panics
    /// Where there are fewer than [`Stats::WORDS`].
    pub fn from_words(words: &[u64]) -> Stats {
        let mut cells = [0u64; CELLS];
        cells.copy_from_slice(&words[..CELLS]);
        let mut stats = Stats { rows: Row::filled(&cells), ..Stats::default() };
        for (figure, word) in stats.figures_mut().into_iter().zip(&words[AT_FIGURES..]) {
            *figure = *word;
        }
        let histograms = words[AT_LATENCY..].chunks_exact(HISTOGRAM_WORDS);
        for (family, words) in Family::ALL.into_iter().zip(histograms) {
            let buckets = words[..BUCKETS].iter().copied();
            let told = Histogram::from_words(buckets, words[BUCKETS], words[BUCKETS + 1]);
            *stats.latency.of_mut(family) = told;
        }
        stats
    }
}
