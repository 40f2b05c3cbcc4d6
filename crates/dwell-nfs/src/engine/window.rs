// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests are outstanding at a time: fixed, or following the network.

use dwell_policy::Ns;

/// How the window is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Always so many requests.
    Fixed(u32),
    /// As many as keep the server busy, found from how long answers wait there; at most so many.
    Dynamic {
        /// The bound.
        most: u32,
    },
}

/// Requests that may wait at the server, besides those it needs to be busy. With fewer than the
/// first it could run dry while this thread sleeps until half a window is answered; with more than
/// the second they only wait.
const WAITING_LEAST: f64 = 4.0;
pub(super) const WAITING_MOST: f64 = 8.0;
const FIRST: f64 = 4.0;
/// With one request outstanding nothing overlaps.
const LEAST: f64 = 2.0;

/// The number of requests that may be outstanding.
///
/// The dynamic window is delay-based: by Little's law a window of w whose answers take t, where an
/// idle server's take b, has w·(1 − b/t) requests waiting. Once in a window's worth of answers it
/// grows or shrinks by one to keep that within bounds; it is halved when a request is lost or the
/// server asks for time, at most once in a round trip.
#[derive(Clone, Debug)]
pub struct Window {
    kind: WindowKind,
    size: f64,
    /// Doubles each round until requests wait for the first time; after a loss, until it is back.
    fast_until: f64,
    answers: u32,
    idle_share: f64,
    cut_at: Option<Ns>,
}

impl Window {
    /// A window that has seen nothing yet.
    pub fn new(kind: WindowKind) -> Self {
        let size = match kind {
            WindowKind::Fixed(size) => f64::from(size.max(1)),
            WindowKind::Dynamic { most } => FIRST.min(f64::from(most.max(1))),
        };
        let (answers, idle_share, cut_at) = (0, 0.0, None);
        Window { kind, size, fast_until: f64::MAX, answers, idle_share, cut_at }
    }

    /// So many requests may be outstanding now.
    pub fn size(&self) -> u32 {
        self.size as u32
    }

    /// The largest that it can become.
    pub fn most(&self) -> u32 {
        match self.kind {
            WindowKind::Fixed(size) => size.max(1),
            WindowKind::Dynamic { most } => most.max(1),
        }
    }

    /// A request was answered after `took_ns`, where `least_ns` is what an idle server takes;
    /// `full` tells whether the window was used up meanwhile.
    pub fn answered(&mut self, took_ns: Ns, least_ns: Ns, full: bool) {
        let WindowKind::Dynamic { most } = self.kind else { return };
        self.answers += 1;
        self.idle_share += (least_ns as f64 / took_ns.max(1) as f64).min(1.0);
        if self.answers < self.size() {
            return;
        }
        let waiting = self.size * (1.0 - self.idle_share / f64::from(self.answers));
        (self.answers, self.idle_share) = (0, 0.0);
        if waiting > WAITING_MOST {
            self.size -= 1.0;
            self.fast_until = 0.0;
        } else if waiting >= WAITING_LEAST {
            self.fast_until = 0.0;
        } else if full {
            self.size += if self.size < self.fast_until { self.size } else { 1.0 };
        }
        self.size = self.size.clamp(LEAST.min(f64::from(most)), f64::from(most));
    }

    /// A request was lost, or the server asked for time; a round trip takes `round_trip_ns`.
    pub fn congested(&mut self, now: Ns, round_trip_ns: Ns) {
        let WindowKind::Dynamic { most } = self.kind else { return };
        if self.cut_at.is_some_and(|at| now < at.saturating_add(round_trip_ns)) {
            return;
        }
        self.cut_at = Some(now);
        self.fast_until = self.size * 0.75;
        self.size = (self.size / 2.0).floor().max(LEAST.min(f64::from(most)));
        (self.answers, self.idle_share) = (0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes one request after the other, for so long each, behind a network.
    fn settle(window: &mut Window, service_ns: u64, network_ns: u64, answers: u32) -> u32 {
        for _ in 0..answers {
            let queue = u64::from(window.size()) * service_ns;
            let least = network_ns + service_ns;
            window.answered(queue.max(least), least, true);
        }
        window.size()
    }

    #[test]
    fn it_finds_what_the_network_holds_and_some_to_wait() {
        // Twenty requests are under way when the server is just busy.
        let mut window = Window::new(WindowKind::Dynamic { most: 64 });
        let size = settle(&mut window, 10_000, 190_000, 10_000);
        assert!((24..=28).contains(&size), "{size}");
        // A nearer server needs fewer; it follows.
        let size = settle(&mut window, 10_000, 20_000, 10_000);
        assert!((7..=11).contains(&size), "{size}");
        assert_eq!(settle(&mut Window::new(WindowKind::Fixed(3)), 10_000, 500_000, 1000), 3);
    }

    #[test]
    fn it_is_halved_once_in_a_round_trip() {
        let mut window = Window::new(WindowKind::Dynamic { most: 64 });
        let before = settle(&mut window, 10_000, 190_000, 10_000);
        window.congested(1_000_000, 200_000);
        window.congested(1_100_000, 200_000);
        assert_eq!(window.size(), before / 2);
        window.congested(1_200_001, 200_000);
        assert_eq!(window.size(), before / 4);
        for at in 10..40 {
            window.congested(at * 1_000_000, 200_000);
        }
        assert_eq!(window.size(), 2);
    }
}
