// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which part of all requests is steered: the others go the kernel's own way, and are counted
//! apart.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dwell_policy::regression::{CLASSES, Regression};
use dwell_policy::{Kind, Ns, Reason};

use crate::monitor::procstat::start_ticks;
use crate::monitor::scatter;
use crate::spelling;

/// A part of the requests of each process, of the processes, or of the hosts, written as
/// `5% of processes`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub struct Share {
    /// How much, 0–1.
    pub part: f32,
    /// Of what.
    pub of: Whole,
}

/// The unit that steering divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The requests of each process: in some seconds all are steered, in the others none.
    Requests,
    /// Processes: one is steered for as long as it lives, or is not.
    Processes,
    /// Hosts: one is always among a part or is not, and among every larger one too.
    Hosts,
}

impl Whole {
    const ALL: [Whole; 3] = [Whole::Requests, Whole::Processes, Whole::Hosts];

    const fn as_str(self) -> &'static str {
        match self {
            Whole::Requests => "requests",
            Whole::Processes => "processes",
            Whole::Hosts => "hosts",
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let wrong = |what: &str| {
            let how = "\"5% of requests\", \"5% of processes\" or \"5% of hosts\"";
            Err(format!("{text:?} {what}; write {how}"))
        };
        let Some((part, of)) = text.split_once(" of ") else {
            return wrong("does not say of what");
        };
        let Ok(part) = spelling::fraction(part) else { return wrong("is no part, 0% to 100%,") };
        match Whole::ALL.into_iter().find(|whole| whole.as_str() == of.trim()) {
            Some(of) => Ok(Share { part, of }),
            None => wrong("is a part of what cannot be divided"),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As it was written, and not as 32 bits have it.
        let percent = (f64::from(self.part) * 1e6).round() / 1e4;
        write!(f, "{percent}% of {}", self.of.as_str())
    }
}

impl From<Share> for String {
    fn from(share: Share) -> String {
        share.to_string()
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Share, String> {
        text.parse()
    }
}

impl Share {
    /// Whether what has this number is among the part. Whatever is stays among every larger part.
    fn has(&self, number: u64) -> bool {
        ((scatter(number) >> 11) as f64) < f64::from(self.part) * (1u64 << 53) as f64
    }
}

/// A number that this process has for itself.
fn number_of_process() -> u64 {
    let pid = std::process::id();
    scatter(u64::from(pid)) ^ start_ticks(pid).unwrap_or(0)
}

/// A number that this host has at all times.
fn number_of_host() -> u64 {
    let names = ["/etc/machine-id", "/proc/sys/kernel/hostname"];
    let name = names
        .iter()
        .find_map(|path| fs::read_to_string(path).ok().filter(|name| !name.trim().is_empty()));
    let name = name.unwrap_or_default();
    name.trim().bytes().fold(0, |number, byte| scatter(number ^ u64::from(byte)))
}

/// What a share comes to in this process.
#[derive(Debug)]
pub(crate) enum Steering {
    All,
    Nothing,
    /// All in some spans of time and nothing in the others.
    Spans(Box<Spans>),
}

impl Steering {
    pub fn of(share: Option<Share>) -> Steering {
        let Some(share) = share else { return Steering::All };
        let is_in = |number| if share.has(number) { Steering::All } else { Steering::Nothing };
        match share.of {
            _ if share.part >= 1.0 => Steering::All,
            Whole::Requests => {
                let spans = Spans::new(share, number_of_process(), SPAN_NS);
                Steering::Spans(Box::new(spans))
            }
            Whole::Processes => is_in(number_of_process()),
            Whole::Hosts => is_in(number_of_host()),
        }
    }
}

/// Spans of a second in which requests are steered or held back, and what the ones took longer
/// than the others.
///
/// What a thread leaves behind on a machine lasts: single requests held back among steered ones
/// would meet the others' state.
#[derive(Debug)]
pub(crate) struct Spans {
    share: Share,
    seed: u64,
    /// Length of a span, in nanoseconds.
    span_ns: Ns,
    /// The span that is being heard.
    heard: AtomicU64,
    /// Requests and latency of each class in it.
    sums: [[AtomicU64; 2]; CLASSES],
    regression: Mutex<Regression>,
    /// Percent that steered requests took longer, 1 at least, once that is beyond doubt; else 0.
    excess_percent: AtomicU64,
}

const SPAN_NS: Ns = 1_000_000_000;
/// The first part of a span, one in so many, in which the state of the span before is waited out.
const SETTLE_ONE_IN: Ns = 4;

impl Spans {
    fn new(share: Share, seed: u64, span_ns: Ns) -> Spans {
        Spans {
            share,
            seed,
            span_ns,
            heard: AtomicU64::new(0),
            sums: [const { [const { AtomicU64::new(0) }; 2] }; CLASSES],
            regression: Mutex::new(Regression::new()),
            excess_percent: AtomicU64::new(0),
        }
    }

    fn steers(&self, span: u64) -> bool {
        self.share.has(self.seed ^ scatter(span))
    }

    /// Why requests are not steered now, if they are not.
    pub fn withheld(&self, now: Ns) -> Option<Reason> {
        if self.excess_percent() > 0 {
            return Some(Reason::Regressed);
        }
        (!self.steers(now / self.span_ns)).then_some(Reason::HeldBack)
    }

    /// Percent that steered requests took longer than those held back; 0 unless they did beyond
    /// doubt.
    pub fn excess_percent(&self) -> u64 {
        self.excess_percent.load(Relaxed)
    }

    /// Hears how long a request took. Waits for nobody and allocates nothing.
    pub fn hear(&self, kind: Kind, size_bytes: u64, began: Ns, latency_ns: Ns) {
        let Some(class) = Regression::class(kind, size_bytes) else { return };
        let span = began.saturating_add(latency_ns) / self.span_ns;
        if span > self.heard.load(Relaxed) {
            self.turn_to(span);
        }
        let is_settled = began >= span * self.span_ns + self.span_ns / SETTLE_ONE_IN;
        // A request that comes late belongs to a span that is over.
        if is_settled && span == self.heard.load(Relaxed) {
            let [requests, sum_ns] = &self.sums[class];
            requests.fetch_add(1, Relaxed);
            sum_ns.fetch_add(latency_ns, Relaxed);
        }
    }

    /// Ends the span that was heard.
    #[cold]
    fn turn_to(&self, span: u64) {
        // One thread does so for all.
        let Ok(mut regression) = self.regression.try_lock() else { return };
        let heard = self.heard.load(Relaxed);
        if heard >= span {
            return;
        }
        let steered = self.steers(heard);
        for (class, [requests, sum_ns]) in self.sums.iter().enumerate() {
            let (requests, sum_ns) = (requests.swap(0, Relaxed), sum_ns.swap(0, Relaxed));
            regression.add(steered, class, requests, sum_ns);
        }
        self.heard.store(span, Relaxed);
        if let Some(excess) = regression.excess() {
            self.excess_percent.store(((excess * 100.0) as u64).max(1), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dwell_policy::{Decision, Mode, Wait, WaitPolicy};

    use super::*;
    use crate::clock;

    #[test]
    fn a_share_is_read_as_it_is_written_and_a_wrong_one_is_told_what_to_write() {
        for (text, part, of) in [
            ("5% of requests", 0.05, Whole::Requests),
            ("0.25 of processes", 0.25, Whole::Processes),
            ("100% of hosts", 1.0, Whole::Hosts),
            ("7% of hosts", 0.07, Whole::Hosts),
            ("0.1% of requests", 0.001, Whole::Requests),
        ] {
            let share: Share = text.parse().unwrap();
            assert_eq!((share.part, share.of), (part, of));
            assert_eq!(share.to_string().parse(), Ok(share));
        }
        assert_eq!(Share { part: 0.07, of: Whole::Hosts }.to_string(), "7% of hosts");
        for (text, says) in [
            ("5%", "does not say of what"),
            ("", "does not say of what"),
            ("150% of requests", "0% to 100%"),
            ("x of hosts", "0% to 100%"),
            ("5% of disks", "cannot be divided"),
        ] {
            let told = text.parse::<Share>().unwrap_err();
            assert!(told.contains(says) && told.contains("5% of processes"), "{told}");
        }
    }

    #[test]
    fn a_part_is_as_large_as_was_said_and_only_grows_with_it() {
        let share = |part| Share { part, of: Whole::Hosts };
        let is_in = |part: f32, number: u64| share(part).has(scatter(number));
        for part in [0.0, 0.05, 0.5, 1.0] {
            let found = (0..100_000).filter(|number| is_in(part, *number)).count() as f32;
            assert!((found / 100_000.0 - part).abs() < 0.005, "{found} at {part}");
        }
        assert!((0..10_000).all(|number| !is_in(0.05, number) || is_in(0.1, number)));
    }

    #[test]
    fn spans_are_steered_or_held_back_as_a_whole_and_in_proportion() {
        let share = Share { part: 0.2, of: Whole::Requests };
        let spans = Spans::new(share, 77, SPAN_NS);
        let steered = |span: u64| {
            let at = |ns| spans.withheld(span * SPAN_NS + ns);
            assert_eq!(at(0), at(SPAN_NS - 1));
            assert!(matches!(at(0), None | Some(Reason::HeldBack)));
            at(0).is_none()
        };
        let found = (1..10_000).filter(|span| steered(*span)).count();
        assert!((1_800..2_200).contains(&found), "{found}");
        // Processes do not do so in unison.
        let other = Spans::new(share, 78, SPAN_NS);
        let both = (1..10_000).filter(|span| spans.steers(*span) && other.steers(*span)).count();
        assert!((300..500).contains(&both), "{both}");
    }

    #[test]
    fn a_device_whose_steered_requests_take_longer_is_left_to_the_kernel_from_then_on() {
        let share = Share { part: 0.5, of: Whole::Requests };
        for (steered_ns, off) in [(30_000, true), (10_000, false), (20_000, false)] {
            let spans = Spans::new(share, 7, SPAN_NS);
            let (mut now, mut withheld) = (SPAN_NS, None);
            while now < 200 * SPAN_NS && withheld != Some(Reason::Regressed) {
                withheld = spans.withheld(now);
                let wobble_ns = now / 20_000 % 7 * 100;
                let latency_ns = wobble_ns + if withheld.is_none() { steered_ns } else { 20_000 };
                spans.hear(Kind::Read, 4096, now, latency_ns);
                now += 10 * latency_ns;
            }
            assert_eq!(withheld == Some(Reason::Regressed), off, "{steered_ns}");
            assert_eq!((40..60).contains(&spans.excess_percent()), off, "{steered_ns}");
        }
    }

    #[test]
    fn a_request_that_is_told_late_does_not_count_for_the_span_that_came_after() {
        let spans = Spans::new(Share { part: 0.5, of: Whole::Requests }, 7, SPAN_NS);
        let class = Regression::class(Kind::Read, 4096).unwrap();
        let counted = || spans.sums[class][0].load(Relaxed);
        spans.hear(Kind::Read, 4096, 5 * SPAN_NS + SPAN_NS / 2, 1_000);
        assert_eq!(counted(), 1);
        spans.hear(Kind::Read, 4096, 4 * SPAN_NS + SPAN_NS / 2, 1_000);
        // The last span's state is waited out.
        spans.hear(Kind::Read, 4096, 5 * SPAN_NS + SPAN_NS / 5, 1_000);
        assert_eq!(counted(), 1);
        spans.hear(Kind::Read, 4096, 6 * SPAN_NS - 10, 1_000);
        assert_eq!(counted(), 0, "it ended in the next span");
    }

    /// Sleeps too long.
    struct Late;

    impl WaitPolicy for Late {
        fn name(&self) -> &str {
            "late"
        }

        fn choose(&self, wait: &Wait<'_>) -> Decision {
            let mode = Mode::Hybrid { sleep_ns: 300_000 };
            Decision::new(wait.routes.to_spin().unwrap(), mode, 0, Reason::Pays)
        }
    }

    #[test]
    fn requests_of_a_file_are_heard_and_one_that_a_policy_makes_slower_ends_with_it() {
        let share = Share { part: 0.5, of: Whole::Requests };
        let options = crate::Options::new().policy(Arc::new(Late));
        let mut file = options.open("emu:latency=20us,size=64KiB").unwrap();
        file.steering = Steering::Spans(Box::new(Spans::new(share, 7, 50_000_000)));
        let mut block = [0u8; 4096];
        let began = clock::now();
        while file.regressed_percent() == 0 {
            assert!(clock::now() - began < 120 * SPAN_NS, "{:?}", file.stats());
            file.read_exact_at(&mut block, 0).unwrap();
        }
        let before = file.stats();
        assert!(before.because(Reason::HeldBack) > 0 && before.because(Reason::Pays) > 0);
        (0..10).for_each(|_| file.read_exact_at(&mut block, 0).unwrap());
        assert_eq!(file.stats().since(&before).because(Reason::Regressed), 10);
    }
}
