// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much each gets of memory that regions share, and how much there is under pressure: without a
//! clock or a file.

/// Pages that a region gets in any case.
pub(crate) const LEAST_PAGES: u32 = 8;
/// Above this share of time in which some task waited for memory, in hundredths of a percent, there
/// is too little.
const PRESSED: u32 = 10_00;
/// Below this share there is enough.
const RELIEVED: u32 = 1_00;
/// A region without faults lately counts for so much less than one with faults.
const IDLE: u64 = 16;

/// What one region says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Pages that it gets in any case.
    pub least: u32,
    /// Pages that it can make use of.
    pub pages: u32,
    /// Nice value of whom it serves.
    pub nice: i8,
    /// Whether its faults waited for its source lately.
    pub active: bool,
}

impl Claim {
    /// A fifth more for each step of nice, as the kernel's scheduler has it.
    fn weight(&self) -> u64 {
        let steps = 20 - i32::from(self.nice.clamp(-20, 19));
        let weight = (0..steps).fold(1024, |weight, _| weight * 5 / 4);
        if self.active { weight } else { (weight / IDLE).max(1) }
    }
}

/// The pages of each region: the least that it gets in any case, and the rest by weight, none more
/// than it can use, all that there are as long as somebody can use them.
pub(crate) fn shares(total: u32, claims: &[Claim]) -> Vec<u32> {
    let mut shares: Vec<u32> = claims.iter().map(|claim| claim.least).collect();
    let mut left =
        u64::from(total).saturating_sub(shares.iter().map(|share| u64::from(*share)).sum());
    let mut open: Vec<usize> =
        (0..claims.len()).filter(|at| claims[*at].pages > shares[*at]).collect();
    while left > 0 && !open.is_empty() {
        let weights: u64 = open.iter().map(|at| claims[*at].weight()).sum();
        let mut given = 0;
        for at in &open {
            let part =
                (u128::from(left) * u128::from(claims[*at].weight()) / u128::from(weights)) as u64;
            let part = part.min(u64::from(claims[*at].pages - shares[*at]));
            shares[*at] += part as u32;
            given += part;
        }
        if given == 0 {
            // Less than a page for each: the first gets what is left.
            shares[open[0]] += 1;
            given = 1;
        }
        left -= given;
        open.retain(|at| claims[*at].pages > shares[*at]);
    }
    shares
}

/// What each region may have now on its way to its share: less at once, more only as others have
/// given memory up. `has` says of each what it was granted last and how many pages it holds.
pub(crate) fn grants(total: u32, shares: &[u32], has: &[(u32, u32)]) -> Vec<u32> {
    let mut grants: Vec<u32> =
        shares.iter().zip(has).map(|(share, (grant, _))| (*grant).min(*share)).collect();
    let taken = grants.iter().zip(has).map(|(grant, (_, held))| u64::from(*grant.max(held))).sum();
    let mut free = u64::from(total).saturating_sub(taken);
    for ((grant, share), (_, held)) in grants.iter_mut().zip(shares).zip(has) {
        // What it holds beyond its grant counts as taken already.
        let beyond = held.saturating_sub(*grant);
        let more = u64::from(share - *grant).min(free + u64::from(beyond.min(share - *grant)));
        *grant += more as u32;
        free = free.saturating_sub(more.saturating_sub(u64::from(beyond)));
    }
    // No region works with less.
    grants.iter_mut().for_each(|grant| *grant = (*grant).max(LEAST_PAGES));
    grants
}

/// How much there is for all when some task waited for memory in this share of time, in hundredths
/// of a percent: an eighth less under pressure, a sixteenth of what was asked for more without.
pub(crate) fn under_pressure(now: u32, asked: u32, pressure: u32) -> u32 {
    match pressure {
        PRESSED.. => (now - now / 8).max(LEAST_PAGES.min(asked)),
        RELIEVED.. => now,
        _ => now.saturating_add((asked / 16).max(1)).min(asked),
    }
}

/// Share of time in which some task waited for memory lately, in hundredths of a percent, from the
/// kernel's pressure stall information.
pub(crate) fn some_of(pressure: &str) -> Option<u32> {
    let line = pressure.lines().find(|line| line.starts_with("some "))?;
    let number = line.split_whitespace().find_map(|part| part.strip_prefix("avg10="))?;
    number.parse::<f64>().ok().map(|percent| (percent * 100.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(pages: u32, nice: i8, active: bool) -> Claim {
        Claim { least: LEAST_PAGES, pages, nice, active }
    }

    #[test]
    fn equals_share_equally_and_what_one_cannot_use_the_others_get() {
        assert_eq!(shares(1000, &[claim(5000, 0, true), claim(5000, 0, true)]), [500, 500]);
        assert_eq!(shares(1000, &[claim(100, 0, true), claim(5000, 0, true)]), [100, 900]);
        assert_eq!(shares(1000, &[claim(100, 0, true), claim(200, 0, true)]), [100, 200]);
        assert_eq!(shares(1001, &[claim(5000, 0, true); 2]).iter().sum::<u32>(), 1001);
        assert_eq!(shares(3, &[claim(5000, 0, true); 2]), [LEAST_PAGES; 2]);
        assert!(shares(1000, &[]).is_empty());
    }

    #[test]
    fn priority_and_use_decide_who_gets_more() {
        let found = shares(1000, &[claim(5000, -5, true), claim(5000, 5, true)]);
        assert!(found[0] > 8 * found[1] && found.iter().sum::<u32>() == 1000, "{found:?}");
        let found = shares(1000, &[claim(5000, 0, false), claim(5000, 0, true)]);
        assert!(found[1] > 10 * found[0], "{found:?}");
        // Nobody else wants it: one without faults keeps all.
        assert_eq!(shares(1000, &[claim(5000, 0, false)]), [1000]);
    }

    #[test]
    fn an_idle_region_has_the_least_that_it_asks_for_and_its_share_of_the_rest() {
        let pins = Claim { least: 600, ..claim(5000, 0, false) };
        let found = shares(1000, &[pins, claim(5000, 0, true)]);
        assert!(found[0] > 600 && found[0] < 650 && found[1] == 1000 - found[0], "{found:?}");
    }

    #[test]
    fn a_grant_grows_only_by_what_others_have_given_up() {
        // One had all; the other comes.
        let first = grants(1000, &[500, 500], &[(1000, 1000), (0, 0)]);
        assert_eq!(first, [500, LEAST_PAGES]);
        // It has given up some of it, and then all that it must.
        assert_eq!(grants(1000, &[500, 500], &[(500, 800), (8, 8)]), [500, 200]);
        assert_eq!(grants(1000, &[500, 500], &[(500, 500), (200, 200)]), [500, 500]);
        assert_eq!(grants(1000, &[1000], &[(500, 500)]), [1000]);
    }

    #[test]
    fn pressure_takes_an_eighth_and_relief_brings_it_back() {
        let text =
            "some avg10=12.50 avg60=0.61 avg300=0.64 total=3545770\nfull avg10=0.27 avg60=0.39\n";
        assert_eq!(some_of(text), Some(12_50));
        assert_eq!(some_of("full avg10=1.0"), None);
        assert_eq!(under_pressure(800, 1600, 12_50), 700);
        assert_eq!(under_pressure(800, 1600, 5_00), 800);
        assert_eq!(under_pressure(800, 1600, 0), 900);
        assert_eq!(under_pressure(1590, 1600, 0), 1600);
        assert_eq!((0..100).fold(1600, |now, _| under_pressure(now, 1600, 99_00)), LEAST_PAGES);
    }
}
