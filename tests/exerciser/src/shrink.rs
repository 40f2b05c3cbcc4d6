// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delta debugging: drops what is not needed for a difference.

/// The fewest of `items`, in their order, for which `fails` still holds, within so many tries.
pub fn minimal<T: Clone>(items: &[T], tries: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut best = items.to_vec();
    let mut left = tries;
    let mut chunk = best.len().div_ceil(2).max(1);
    loop {
        let mut place = 0;
        let mut dropped = false;
        // From the end: what follows the difference goes first.
        while place < best.len() {
            let end = best.len() - place;
            let begin = end.saturating_sub(chunk);
            let mut candidate = best[..begin].to_vec();
            candidate.extend_from_slice(&best[end..]);
            if left == 0 {
                return best;
            }
            left -= 1;
            if fails(&candidate) {
                best = candidate;
                dropped = true;
            } else {
                place += chunk;
            }
        }
        match chunk {
            1 if !dropped => return best,
            1 => {}
            _ => chunk = chunk.div_ceil(2).min(best.len().max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_leaves_the_needed_steps_and_nothing_else() {
        let items: Vec<u32> = (0..500).collect();
        let needed = [3, 77, 78, 400];
        let fails = |some: &[u32]| needed.iter().all(|one| some.contains(one));
        assert_eq!(minimal(&items, 10_000, fails), needed);
    }

    #[test]
    fn tries_are_bounded() {
        let items: Vec<u32> = (0..100).collect();
        let mut tries = 0;
        minimal(&items, 5, |_| {
            tries += 1;
            false
        });
        assert_eq!(tries, 5);
    }
}
