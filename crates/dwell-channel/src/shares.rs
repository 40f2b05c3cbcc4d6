// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much each user has of what all users share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Something of which each user may have so much, in whatever unit it is counted.
#[derive(Debug)]
pub(crate) struct Shares {
    most: u64,
    taken: Mutex<HashMap<u32, u64>>,
}

/// A user's part of it, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    uid: u32,
    amount: u64,
}

impl Shares {
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Shares { most, taken: Mutex::default() })
    }

    /// Takes some of it for a user; `None` where that would be more than a user may have.
    pub fn take(self: &Arc<Self>, uid: u32, amount: u64) -> Option<Share> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&uid).copied().unwrap_or(0);
        let own = own.checked_add(amount).filter(|own| *own <= self.most)?;
        taken.insert(uid, own);
        Some(Share { of: self.clone(), uid, amount })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(&self.uid).map_or(0, |own| own - self.amount);
        match left {
            0 => _ = taken.remove(&self.uid),
            left => _ = taken.insert(self.uid, left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_more_than_a_users_part_and_nobody_elses() {
        let shares = Shares::new(10);
        let first = shares.take(1, 6).unwrap();
        assert!(shares.take(1, 5).is_none() && shares.take(1, u64::MAX).is_none());
        let _second = shares.take(1, 4).unwrap();
        let _other = shares.take(2, 10).unwrap();
        assert!(shares.take(1, 1).is_none());
        drop(first);
        assert!(shares.take(1, 6).is_some());
        assert_eq!(shares.taken.lock().unwrap().len(), 2);
    }
}
