// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one owner has in flight on one queue: found by ticket, and by what is due first.

use std::collections::VecDeque;

use dwell_policy::Ns;

use crate::queue::Ticket;

/// A request in flight.
pub(crate) trait InFlight {
    /// Its name on the queue.
    fn ticket(&self) -> Ticket;
    /// When its completion is expected.
    fn due(&self) -> Ns;
}

/// A table of up to a fixed number of table.
///
/// A flight lies where its ticket's low bits say, or in the next place that is free. The kernel
/// queue's tickets number its places in their low bits, counted tickets run through all places, so
/// the first place looked at is nearly always the one.
pub(crate) struct InFlightTable<F> {
    places: Vec<Option<F>>,
    taken: usize,
    /// Due times and tickets, the earliest first. Finished requests stay until they come to the
    /// front.
    due: VecDeque<(Ns, Ticket)>,
}

impl<F: InFlight> InFlightTable<F> {
    pub fn new(depth: u32) -> Self {
        let places = depth.next_power_of_two();
        InFlightTable {
            places: (0..places).map(|_| None).collect(),
            taken: 0,
            due: VecDeque::with_capacity(2 * places as usize),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.taken
    }

    fn places_from(&self, ticket: Ticket) -> impl Iterator<Item = usize> + use<F> {
        let mask = self.places.len() - 1;
        (0..=mask).map(move |step| (ticket.0 as usize).wrapping_add(step) & mask)
    }

    pub fn insert(&mut self, flight: F) {
        let (due, ticket) = (flight.due(), flight.ticket());
        if self.due.len() == 2 * self.places.len() {
            self.forget_finished();
        }
        // Nearly always the last: most requests in flight are of one kind.
        let later = self.due.iter().rev().take_while(|(other, _)| *other > due).count();
        self.due.insert(self.due.len() - later, (due, ticket));
        let mut places = self.places_from(ticket);
        let free = places.find(|&at| self.places[at].is_none());
        self.places[free.expect("no more requests than places")] = Some(flight);
        self.taken += 1;
    }

    fn forget_finished(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        due.retain(|&(_, ticket)| self.place_of(ticket).is_some());
        self.due = due;
    }

    fn place_of(&self, ticket: Ticket) -> Option<usize> {
        let is_it = |at: &usize| self.places[*at].as_ref().is_some_and(|f| f.ticket() == ticket);
        self.places_from(ticket).find(is_it)
    }

    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut F> {
        let at = self.place_of(ticket)?;
        self.places[at].as_mut()
    }

    /// The flight due first.
    pub fn first_due(&mut self) -> Option<&F> {
        loop {
            let &(_, ticket) = self.due.front()?;
            if let Some(at) = self.place_of(ticket) {
                return self.places[at].as_ref();
            }
            self.due.pop_front();
        }
    }

    pub fn take(&mut self, ticket: Ticket) -> Option<F> {
        let flight = self.place_of(ticket).and_then(|at| self.places[at].take())?;
        self.taken -= 1;
        Some(flight)
    }

    pub fn iter(&self) -> impl Iterator<Item = &F> {
        self.places.iter().flatten()
    }

    /// Takes all of them, in no order.
    pub fn drain(&mut self) -> impl Iterator<Item = F> {
        self.taken = 0;
        self.places.iter_mut().filter_map(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticket and due.
    struct Flight(u64, Ns);

    impl InFlight for Flight {
        fn ticket(&self) -> Ticket {
            Ticket(self.0)
        }
        fn due(&self) -> Ns {
            self.1
        }
    }

    #[test]
    fn the_one_due_first_is_found_however_they_come_and_go() {
        let mut table = InFlightTable::new(4);
        table.insert(Flight(1, 90));
        table.insert(Flight(2, 15));
        table.insert(Flight(3, 16));
        assert_eq!(table.first_due().map(|flight| flight.0), Some(2));
        table.take(Ticket(2)).unwrap();
        assert_eq!(table.first_due().map(|flight| flight.0), Some(3));
        table.take(Ticket(3)).unwrap();
        assert_eq!(table.first_due().map(|flight| flight.0), Some(1));
        table.take(Ticket(1)).unwrap();
        assert!(table.first_due().is_none());
    }

    #[test]
    fn one_that_never_ends_does_not_make_the_order_grow() {
        let mut table = InFlightTable::new(4);
        table.insert(Flight(0, 1));
        for ticket in 1..1000 {
            table.insert(Flight(ticket, ticket + 1));
            table.take(Ticket(ticket)).unwrap();
        }
        assert!(table.due.len() <= 8 && table.due.capacity() < 64);
        assert_eq!(table.first_due().map(|flight| flight.0), Some(0));
    }
}
