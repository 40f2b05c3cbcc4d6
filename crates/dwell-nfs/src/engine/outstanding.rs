// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that were sent or are about to be, by XID.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::Request;

/// Requests in the order of their XIDs, which is the order in which most came and are answered:
/// adding one at the end and taking one near the front moves hardly any other. XIDs go round, so
/// the order is that of their distance.
#[derive(Debug)]
pub(super) struct Outstanding<P>(VecDeque<Request<P>>);

impl<P> Default for Outstanding<P> {
    fn default() -> Self {
        Outstanding(VecDeque::new())
    }
}

/// Whether `xid` comes before or after `other`, of which it is less than half the way round.
fn order(xid: u32, other: u32) -> Ordering {
    (xid.wrapping_sub(other) as i32).cmp(&0)
}

impl<P> Outstanding<P> {
    fn place(&self, xid: u32) -> Result<usize, usize> {
        self.0.binary_search_by(|request| order(request.xid, xid))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of their XIDs.
    pub fn iter(&self) -> impl Iterator<Item = &Request<P>> {
        self.0.iter()
    }

    /// As [`Outstanding::iter`]; their XIDs stay as they are.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request<P>> {
        self.0.iter_mut()
    }

    pub fn get(&self, xid: u32) -> Option<&Request<P>> {
        self.0.get(self.place(xid).ok()?)
    }

    pub fn get_mut(&mut self, xid: u32) -> Option<&mut Request<P>> {
        let place = self.place(xid).ok()?;
        self.0.get_mut(place)
    }

    /// Adds a request, whose XID no other has.
    pub fn insert(&mut self, request: Request<P>) {
        let (Ok(place) | Err(place)) = self.place(request.xid);
        self.0.insert(place, request);
    }

    pub fn remove(&mut self, xid: u32) -> Option<Request<P>> {
        let place = self.place(xid).ok()?;
        self.0.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procedure::Class;

    fn request(xid: u32) -> Request<Vec<u8>> {
        Request::new(xid, 0, Class::Write, vec![0; 8], None, 0, 0, 0, (0, |_, _| true))
    }

    #[test]
    fn requests_are_found_by_xid_in_whatever_order_they_came_and_past_the_last_xid() {
        let mut outstanding = Outstanding::default();
        let xids = [u32::MAX - 1, 1, u32::MAX, 0, 7, 3];
        for xid in xids {
            outstanding.insert(request(xid));
        }
        let order: Vec<u32> = outstanding.iter().map(|request| request.xid).collect();
        assert_eq!(order, [u32::MAX - 1, u32::MAX, 0, 1, 3, 7]);
        assert!(outstanding.get(2).is_none() && outstanding.remove(2).is_none());
        for (left, xid) in (0..xids.len()).rev().zip(xids) {
            assert_eq!(outstanding.get(xid).map(|request| request.xid), Some(xid));
            assert_eq!(outstanding.get_mut(xid).map(|request| request.xid), Some(xid));
            assert_eq!(outstanding.remove(xid).map(|request| request.xid), Some(xid));
            assert_eq!(outstanding.len(), left);
        }
        assert!(outstanding.is_empty());
    }
}
