// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small synthetic program that does what ordinary programs do: records, strings, integer
//! arithmetic, branches and calls over some KiB of data. How fast it gets on tells what a
//! measurement costs those beside it.

use std::hint::black_box;

const RECORDS: usize = 64;
const NAME_BYTES: usize = 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Parcel,
    Letter,
    Crate,
}

/// 48 bytes: all of them are 3 KiB.
#[derive(Clone, Copy, Debug)]
struct Record {
    name: [u8; NAME_BYTES],
    kind: Kind,
    weight: i32,
    next: u16,
    value: i64,
}

/// The program's data.
#[derive(Debug)]
pub(super) struct Bystander {
    records: [Record; RECORDS],
    shelves: [i32; 256],
    at: usize,
}

impl Bystander {
    pub(super) fn new() -> Self {
        let record = |i: usize| {
            let mut name = *b"item in a store, number 000 ";
            for (place, digit) in name[24..27].iter_mut().zip([i / 100, i / 10 % 10, i % 10]) {
                *place += digit as u8;
            }
            let kind = [Kind::Parcel, Kind::Letter, Kind::Crate][i % 3];
            // A step without a common factor with the number of records visits all of them.
            let next = ((i + 27) % RECORDS) as u16;
            Record { name, kind, weight: i as i32 * 7 % 50, next, value: 0 }
        };
        Bystander { records: std::array::from_fn(record), shelves: [0; 256], at: 0 }
    }

    /// One turn: some hundred nanoseconds of work.
    pub(super) fn turn(&mut self) {
        let mut item = self.records[self.at];
        let next = usize::from(item.next);
        rename(&mut item.name, self.at);
        let same = shared_letters(&item.name, &self.records[next].name);
        let price = price(item.kind, item.weight, same as i32);
        let shelf = shelf(price, item.weight);
        self.shelves[shelf] += price - self.shelves[shelf] / 4;
        if same > NAME_BYTES - 3 && item.kind != Kind::Letter {
            item.weight = (item.weight * 3 + price) % 53;
            self.records[next].value += i64::from(price);
        } else {
            item.weight = (item.weight + self.shelves[(shelf * 5 + 1) % 256]).rem_euclid(47);
            item.kind = kind_after(item.kind, price);
        }
        item.value += i64::from(self.shelves[shelf]) * i64::from(item.weight);
        self.records[self.at] = item;
        self.at = next;
        black_box(&self.shelves[shelf]);
    }
}

#[inline(never)]
fn rename(name: &mut [u8; NAME_BYTES], seed: usize) {
    let place = seed % 20;
    let letter = name[place];
    name.copy_within(place + 1..24, place);
    name[23] = letter;
}

/// Length of the beginning that two names share, and then the letters they share further on.
#[inline(never)]
fn shared_letters(one: &[u8], other: &[u8]) -> usize {
    let beginning = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let rest = one[beginning..].iter().zip(&other[beginning..]);
    beginning + rest.filter(|(a, b)| a == b).count()
}

#[inline(never)]
fn price(kind: Kind, weight: i32, same: i32) -> i32 {
    let base = match kind {
        Kind::Parcel => weight * 3 + 20,
        Kind::Letter => weight / 5 + 8,
        Kind::Crate => weight * weight / 9 + 60,
    };
    if same > 10 { base - base / same } else { base + same }
}

#[inline(never)]
fn shelf(price: i32, weight: i32) -> usize {
    (price.wrapping_mul(31).wrapping_add(weight * 17) as u32 % 256) as usize
}

#[inline(never)]
fn kind_after(kind: Kind, price: i32) -> Kind {
    match (kind, price % 3) {
        (Kind::Parcel, 0) | (Kind::Crate, 1) => Kind::Letter,
        (Kind::Letter, _) => Kind::Crate,
        _ => Kind::Parcel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_visit_every_record_and_come_out_the_same_every_time() {
        let after = |turns: usize| {
            let mut program = Bystander::new();
            let mut visited = [false; RECORDS];
            for _ in 0..turns {
                visited[program.at] = true;
                program.turn();
            }
            let sum = program.records.iter().fold(0i64, |sum, r| sum.wrapping_add(r.value));
            (sum, visited.iter().filter(|visited| **visited).count())
        };
        assert_eq!(after(RECORDS).1, RECORDS);
        assert_eq!(after(10_000), after(10_000));
        assert_ne!(after(10_000).0, after(10_001).0);
    }

    #[test]
    fn it_never_overflows() {
        let mut program = Bystander::new();
        for _ in 0..300_000 {
            program.turn();
        }
        assert!(program.shelves.iter().all(|value| value.abs() < 1 << 20));
    }
}
