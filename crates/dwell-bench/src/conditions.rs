// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run met on the machine, beside what it started itself.
//!
//! A run takes the machine as it is. It looks how much of the CPUs others used, in windows of whole
//! rounds and at least a second. Rounds of a window that was not quiet are measured again, as many
//! as were asked for; what is still missing then is made up from them. Nothing on the machine is
//! set or changed for that.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::quiet::{Noise, SHORTEST, Window};

/// What was met. What could not be learned is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Whether all rounds that count were quiet.
    pub quiet: Option<bool>,
    /// What others used of all CPUs during the rounds that count, 0–1.
    pub others_share: Option<f64>,
    /// What the hypervisor took of them, 0–1.
    pub stolen_share: Option<f64>,
    /// Rounds that were measured again because something else ran.
    pub repeated_rounds: usize,
    /// Rounds that count although something else ran.
    pub noisy_rounds: usize,
    /// Whether a battery was being discharged in the end.
    pub on_battery: Option<bool>,
    /// Whether a CPU was slowed down because it was too hot.
    pub throttled: Option<bool>,
}

impl Conditions {
    /// One line for the head of a table.
    pub fn line(&self, machine: &Machine) -> String {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let mut parts = Vec::new();
        parts.push(match (self.quiet, self.others_share) {
            (None, None) => "whether it was quiet cannot be seen from here".into(),
            (None, Some(_)) => "too short a run to tell whether it was quiet".into(),
            (Some(quiet), others) => {
                let word = if quiet { "quiet" } else { "not quiet" };
                let mut text =
                    format!("{word}, others used {} of the CPUs", percent(others.unwrap_or(0.0)));
                if let Some(stolen) = self.stolen_share.filter(|_| machine.virtualised.is_some()) {
                    text += &format!(" and the hypervisor took {}", percent(stolen));
                }
                text
            }
        });
        let rounds = |count: usize| format!("{count} round{}", if count == 1 { "" } else { "s" });
        if self.repeated_rounds > 0 {
            parts.push(format!("{} measured again because of that", rounds(self.repeated_rounds)));
        }
        if self.noisy_rounds > 0 {
            parts.push(format!("{} not quiet but kept", rounds(self.noisy_rounds)));
        }
        parts.extend(machine.governor.as_ref().map(|governor| format!("governor {governor}")));
        if self.on_battery == Some(true) {
            parts.push("on battery".into());
        }
        if self.throttled == Some(true) {
            parts.push("a CPU was slowed down because of heat".into());
        }
        format!("The machine as it was met: {}.", parts.join("; "))
    }
}

/// Watches over a run.
#[derive(Debug)]
pub(crate) struct Watch {
    again: bool,
    heat: Option<u64>,
    tally: Tally,
}

/// Sums over the rounds that count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    races: usize,
    seconds: f64,
    others: f64,
    stolen: f64,
    again: usize,
    noisy: usize,
    /// Some rounds could not be looked at.
    blind: bool,
}

impl Watch {
    /// Begins; rounds that were not quiet are measured `again`.
    pub fn begin(again: bool) -> Self {
        Watch { again, heat: heat(Path::new("/")), tally: Tally::default() }
    }

    /// Takes note of a race that has ended.
    pub fn add(&mut self, rounds: &Rounds) {
        let tally = &mut self.tally;
        tally.races += 1;
        let counts = rounds.counting();
        tally.again += counts.iter().filter(|counts| !**counts).count();
        for (round, _) in rounds.judged.iter().zip(&counts).filter(|(_, counts)| **counts) {
            tally.noisy += usize::from(round.noisy);
            match round.noise {
                Some(noise) => {
                    tally.seconds += round.seconds;
                    tally.others += noise.others * round.seconds;
                    tally.stolen += noise.stolen * round.seconds;
                }
                None => tally.blind = true,
            }
        }
    }

    /// What was met; `None` where no race took place.
    pub fn conditions(&self) -> Option<Conditions> {
        let tally = &self.tally;
        if tally.races == 0 {
            return None;
        }
        let seen = !tally.blind && tally.seconds > 0.0;
        let noise =
            Noise { others: tally.others / tally.seconds, stolen: tally.stolen / tally.seconds };
        let long = tally.seconds >= SHORTEST.as_secs_f64();
        let root = Path::new("/");
        Some(Conditions {
            quiet: (seen && long).then(|| tally.noisy == 0 && noise.is_quiet()),
            others_share: seen.then_some(noise.others),
            stolen_share: seen.then_some(noise.stolen),
            repeated_rounds: tally.again,
            noisy_rounds: tally.noisy,
            on_battery: on_battery(root),
            throttled: self.heat.and_then(|before| Some(heat(root)? > before)),
        })
    }
}

/// The rounds of one race, and which of them count.
#[derive(Debug)]
pub(crate) struct Rounds {
    wanted: usize,
    most: usize,
    looks: bool,
    judged: Vec<Round>,
    /// The window that has begun, when, and its first round.
    open: Option<(Option<Window>, Instant, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    noise: Option<Noise>,
    seconds: f64,
    noisy: bool,
}

impl Rounds {
    /// So many are `wanted`; `watch` says whether anybody looks what else runs.
    pub fn new(wanted: usize, watch: Option<&Watch>) -> Self {
        let most = if watch.is_some_and(|watch| watch.again) { 2 * wanted } else { wanted };
        Rounds { wanted, most, looks: watch.is_some(), judged: vec![], open: None }
    }

    /// How many were completed.
    pub fn complete(&self) -> usize {
        self.judged.len()
    }

    /// Whether another one is wanted.
    pub fn wants_more(&self) -> bool {
        let quiet = self.judged.iter().filter(|round| !round.noisy).count();
        quiet < self.wanted && self.complete() < self.most
    }

    /// A round begins.
    pub fn begin(&mut self) {
        if self.open.is_none() && self.looks {
            self.open = Some((Window::begin(), Instant::now(), self.complete()));
        }
    }

    /// A round was completed.
    pub fn end(&mut self) {
        self.judged.push(Round { noise: None, seconds: 0.0, noisy: false });
        if self.open.as_ref().is_some_and(|(_, began, _)| began.elapsed() >= SHORTEST) {
            self.look();
        }
    }

    /// The race has ended. What was left of a window that is too short to be judged counts.
    pub fn close(&mut self) {
        self.look();
    }

    fn look(&mut self) {
        let Some((window, began, first)) = self.open.take() else { return };
        self.judge(first, began.elapsed(), window.map(|window| window.noise()));
    }

    /// What a window over the rounds from `first` on has shown.
    fn judge(&mut self, first: usize, length: Duration, noise: Option<Noise>) {
        let rounds = &mut self.judged[first..];
        let seconds = length.as_secs_f64() / rounds.len().max(1) as f64;
        let noisy = length >= SHORTEST && noise.is_some_and(|noise| !noise.is_quiet());
        rounds.fill(Round { noise, seconds, noisy });
    }

    /// Of each complete round whether it counts: the quiet ones, and the first of the others where
    /// too few were quiet.
    pub fn counting(&self) -> Vec<bool> {
        let quiet = self.judged.iter().filter(|round| !round.noisy).count();
        let mut missing = self.wanted.saturating_sub(quiet);
        let counts = |round: &Round| {
            let made_up = round.noisy && missing > 0;
            missing -= usize::from(made_up);
            !round.noisy || made_up
        };
        self.judged.iter().map(counts).collect()
    }
}

/// Whether a battery that feeds the machine is being discharged; `None` without one.
fn on_battery(root: &Path) -> Option<bool> {
    let supplies = fs::read_dir(root.join("sys/class/power_supply")).ok()?.flatten();
    let batteries = supplies.filter_map(|supply| {
        let read = |name: &str| fs::read_to_string(supply.path().join(name)).unwrap_or_default();
        // That of a mouse is none of the machine's.
        let feeds = read("type").trim() == "Battery" && read("scope").trim() != "Device";
        feeds.then(|| read("status").trim() == "Discharging")
    });
    batteries.reduce(|one, other| one || other)
}

/// How often CPUs were slowed down because of heat since the machine started; `None` where that is
/// not counted.
fn heat(root: &Path) -> Option<u64> {
    let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).ok()?.flatten();
    let counts = cpus.filter_map(|cpu| {
        let path = cpu.path().join("thermal_throttle/core_throttle_count");
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    });
    counts.reduce(|one, other| one + other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOUD: Noise = Noise { others: 0.2, stolen: 0.01 };
    const STILL: Noise = Noise { others: 0.01, stolen: 0.0 };

    fn watch() -> Watch {
        Watch { again: true, heat: None, tally: Tally::default() }
    }

    /// Rounds of a second each, as loud as they are said to be.
    fn rounds(wanted: usize, watch: &Watch, mut noises: impl Iterator<Item = Noise>) -> Rounds {
        let mut rounds = Rounds::new(wanted, Some(watch));
        while rounds.wants_more() {
            let Some(noise) = noises.next() else { break };
            rounds.judged.push(Round { noise: None, seconds: 0.0, noisy: false });
            rounds.judge(rounds.complete() - 1, SHORTEST, Some(noise));
        }
        rounds
    }

    #[test]
    fn rounds_beside_which_something_ran_are_measured_again_and_do_not_count() {
        let mut watch = watch();
        let noises = [STILL, LOUD, STILL, LOUD, STILL, STILL];
        let rounds = rounds(3, &watch, noises.into_iter());
        assert_eq!(rounds.counting(), [true, false, true, false, true]);
        watch.add(&rounds);
        let met = watch.conditions().unwrap();
        assert_eq!((met.quiet, met.repeated_rounds, met.noisy_rounds), (Some(true), 2, 0));
        assert!((met.others_share.unwrap() - 0.01).abs() < 1e-9, "{met:?}");
    }

    #[test]
    fn a_machine_that_is_never_quiet_is_measured_at_most_twice_as_long_and_told_of() {
        let mut watch = watch();
        let noises = [LOUD, LOUD, STILL].into_iter().chain(std::iter::repeat(LOUD));
        let rounds = rounds(3, &watch, noises);
        assert_eq!(rounds.counting(), [true, true, true, false, false, false]);
        watch.add(&rounds);
        let met = watch.conditions().unwrap();
        assert_eq!((met.quiet, met.repeated_rounds, met.noisy_rounds), (Some(false), 3, 2));
        let line = met.line(&Machine::default());
        for part in [
            "not quiet, others used 13.7 %",
            "3 rounds measured again",
            "2 rounds not quiet but kept",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("hypervisor") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_run_that_ended_early_keeps_rounds_that_were_not_replaced_yet() {
        let rounds = rounds(9, &watch(), [LOUD, STILL].into_iter());
        assert_eq!(rounds.counting(), [true, true]);
    }

    #[test]
    fn nothing_is_claimed_of_a_short_run_or_where_nothing_can_be_seen() {
        let mut short = watch();
        let mut rounds = Rounds::new(1, Some(&short));
        rounds.judged.push(Round { noise: None, seconds: 0.0, noisy: false });
        rounds.judge(0, SHORTEST / 10, Some(LOUD));
        short.add(&rounds);
        let met = short.conditions().unwrap();
        assert_eq!((met.quiet, met.noisy_rounds), (None, 0));
        assert!(met.line(&Machine::default()).contains("too short"));
        let mut blind = watch();
        rounds.judge(0, SHORTEST, None);
        blind.add(&rounds);
        let met = blind.conditions().unwrap();
        assert_eq!((met.quiet, met.others_share), (None, None));
        assert!(met.line(&Machine::default()).contains("cannot be seen"));
        assert_eq!(watch().conditions(), None);
    }

    #[test]
    fn without_a_watch_there_are_as_many_rounds_as_were_asked_for() {
        let mut rounds = Rounds::new(2, None);
        while rounds.wants_more() {
            rounds.begin();
            rounds.end();
        }
        rounds.close();
        assert_eq!(rounds.counting(), [true, true]);
    }

    #[test]
    fn power_is_read_where_there_is_any_to_read() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!((on_battery(root.path()), heat(root.path())), (None, None));
        put("sys/class/power_supply/mouse/type", "Battery\n");
        put("sys/class/power_supply/mouse/scope", "Device\n");
        put("sys/class/power_supply/mouse/status", "Discharging\n");
        put("sys/class/power_supply/AC/type", "Mains\n");
        assert_eq!(on_battery(root.path()), None);
        put("sys/class/power_supply/BAT0/type", "Battery\n");
        put("sys/class/power_supply/BAT0/status", "Charging\n");
        assert_eq!(on_battery(root.path()), Some(false));
        put("sys/class/power_supply/BAT1/type", "Battery\n");
        put("sys/class/power_supply/BAT1/status", "Discharging\n");
        assert_eq!(on_battery(root.path()), Some(true));
        for cpu in ["cpu0", "cpu1"] {
            let path = format!("sys/devices/system/cpu/{cpu}/thermal_throttle/core_throttle_count");
            put(&path, "4\n");
        }
        assert_eq!(heat(root.path()), Some(8));
        let met =
            Conditions { on_battery: Some(true), throttled: Some(true), ..Default::default() };
        let machine = Machine { governor: Some("powersave".into()), ..Machine::default() };
        let line = met.line(&machine);
        for part in ["governor powersave", "on battery", "heat"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
