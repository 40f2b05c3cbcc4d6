// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of the host page.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::sync::WORDS;
use super::table::*;

#[test]
fn identities_keep_their_parts() {
    let id = Identity::new(4_194_304 - 1, 0x1_2345_6789, 4_026_531_836);
    assert_eq!(id.pid(), 4_194_303);
    assert_ne!(id, Identity::new(4_194_303, 0x1_2345_6780, 4_026_531_836));
    assert_ne!(id.namespace(), Identity::new(1, 0, 4_026_531_837).namespace());
}

#[test]
fn only_a_page_of_this_version_is_admitted() {
    let page: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    assert!(Table::new(&page[1..]).is_none());
    let table = Table::new(&page).unwrap();
    assert!(table.admit() && table.admit());
    page[0].store(MAGIC ^ 1 << 56, Relaxed);
    assert!(!table.admit());
}

#[test]
fn any_words_can_be_read() {
    for fill in [u64::MAX, 0x8000_0000_0000_0000, 1, 0xaaaa_aaaa_aaaa_aaaa] {
        let page: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(fill)).collect();
        let table = Table::new(&page).unwrap();
        for i in 0..=255 {
            table.identity(i).map(Identity::pid);
            table.silent_periods(i, 12_345);
        }
    }
}
