// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes under Dwell tell, as OpenMetrics text.

use std::fmt::Error;

use dwell::stats::{Family, Row};
use dwell_advise::Parts;
use dwell_host::stats_page::{Device, Seen, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text for what a look has found, up to `# EOF`.
///
/// `waits` are sums since the exporter began; there are none where nothing is traced.
pub fn text(processes: Vec<Seen>, waits: Vec<WaitSum>) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Processes(processes)));
    if !waits.is_empty() {
        registry.register_collector(Box::new(Waits(waits)));
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Waits of one program for one operation of one device, issued in one way.
#[derive(Clone, Debug)]
pub struct WaitSum {
    /// Program, device, operation, way of issuing.
    pub labels: [(&'static str, String); 4],
    /// How many.
    pub count: u64,
    /// Where their time went.
    pub parts: Parts,
}

#[derive(Debug)]
struct Waits(Vec<WaitSum>);

impl Collector for Waits {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Waits for storage, of all programs of the machine";
        let mut family =
            to.encode_descriptor("dwell_storage_waits", help, None, MetricType::Counter)?;
        for sum in &self.0 {
            let labels = sum.labels.each_ref().map(|(name, value)| (*name, value.as_str()));
            counter(&mut family.encode_family(&labels)?, sum.count)?;
        }
        let help = "Where the time of these waits went";
        let name = "dwell_storage_waited";
        let mut family =
            to.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        for sum in &self.0 {
            for (part, ns) in sum.parts.named() {
                let mut labels: Vec<(&str, &str)> =
                    sum.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
                labels.push(("part", part));
                counter(&mut family.encode_family(&labels)?, ns as f64 / 1e9)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Processes(Vec<Seen>);

/// What a family of metrics is called: its name, what it says, and its unit.
type Named<'a> = (&'a str, &'a str, Option<Unit>);

impl Processes {
    /// One sample per process.
    fn each(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, help, unit): Named<'_>,
        kind: MetricType,
        sample: impl Fn(&Snapshot, MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut family = to.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for Seen { pid, told, .. } in &self.0 {
            let pid = pid.to_string();
            let labels = [("pid", pid.as_str()), ("command", told.header.command.as_str())];
            sample(told, family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Samples of each device of each process; `more` adds labels.
    fn each_device<const N: usize>(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, help, unit): Named<'_>,
        kind: MetricType,
        samples: impl Fn(&Device) -> Vec<([(&'static str, &'static str); N], Sample)>,
    ) -> Result<(), Error> {
        let mut family = to.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for Seen { pid, told, .. } in &self.0 {
            let pid = pid.to_string();
            for device in &told.devices {
                for (more, sample) in samples(device) {
                    let mut labels = vec![
                        ("pid", pid.as_str()),
                        ("command", told.header.command.as_str()),
                        ("device", device.name.as_str()),
                        ("class", device.class.as_str()),
                        ("policy", device.policy.as_str()),
                    ];
                    labels.extend(more);
                    sample.put(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

/// A figure.
enum Sample {
    Count(u64),
    Seconds(u64),
    State(u64),
    Latency { sum_ns: u64, count: u64, buckets: Vec<(f64, u64)> },
}

impl Sample {
    fn put(self, mut to: MetricEncoder<'_>) -> Result<(), Error> {
        match self {
            Sample::Count(count) => counter(&mut to, count),
            Sample::Seconds(ns) => counter(&mut to, ns as f64 / 1e9),
            Sample::State(state) => to.encode_gauge(&(state as f64)),
            Sample::Latency { sum_ns, count, buckets } => {
                to.encode_histogram::<NoLabelSet>(sum_ns as f64 / 1e9, count, &buckets, None)
            }
        }
    }
}

fn counter(
    to: &mut MetricEncoder<'_>,
    value: impl prometheus_client::encoding::EncodeCounterValue,
) -> Result<(), Error> {
    to.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

fn gauge(mut to: MetricEncoder<'_>, value: f64) -> Result<(), Error> {
    to.encode_gauge(&value)
}

/// The figures of one row of the statistics.
fn requests(device: &Device) -> Vec<([(&'static str, &'static str); 3], Sample)> {
    let row = |row: &Row| {
        let labels = [
            ("route", row.route.as_str()),
            ("mode", row.mode.as_str()),
            ("reason", row.reason.as_str()),
        ];
        (labels, Sample::Count(row.requests))
    };
    device.stats.rows.iter().map(row).collect()
}

fn latency(device: &Device) -> Vec<([(&'static str, &'static str); 1], Sample)> {
    let timed = |family: Family| {
        let histogram = device.stats.latency.of(family);
        let mut before = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for (ns, no_longer) in histogram.cumulated() {
            buckets.push((ns as f64 / 1e9, no_longer - before));
            before = no_longer;
        }
        let count = histogram.count();
        buckets.push((f64::INFINITY, count - before));
        let sample = Sample::Latency { sum_ns: histogram.sum_ns(), count, buckets };
        (count > 0).then_some(([("family", family.as_str())], sample))
    };
    Family::ALL.into_iter().filter_map(timed).collect()
}

impl Collector for Processes {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), Error> {
        use MetricType::{Counter, Gauge, Histogram};
        let to = &mut to;
        let seconds = || Some(Unit::Seconds);
        let bytes = || Some(Unit::Bytes);
        let ratio = || Some(Unit::Other("ratio".to_owned()));

        self.each_device(
            to,
            ("dwell_requests", "Requests by route, mode and reason", None),
            Counter,
            requests,
        )?;
        self.each_device(
            to,
            ("dwell_switches_avoided", "Requests whose thread spun until the completion", None),
            Counter,
            |device| vec![([], Sample::Count(device.stats.switches_avoided()))],
        )?;
        self.each_device(to, ("dwell_errors", "Requests that failed", None), Counter, |device| {
            vec![([], Sample::Count(device.stats.errors))]
        })?;
        self.each_device(
            to,
            ("dwell_transferred", "Bytes read and written by requests", bytes()),
            Counter,
            |device| {
                let stats = &device.stats;
                vec![
                    ([("direction", "read")], Sample::Count(stats.bytes_read)),
                    ([("direction", "write")], Sample::Count(stats.bytes_written)),
                ]
            },
        )?;
        self.each_device(
            to,
            ("dwell_waited", "Where the time of waits went", seconds()),
            Counter,
            |device| {
                let stats = &device.stats;
                let modes = [
                    ("spun", stats.spun_ns),
                    ("offered", stats.offered_ns),
                    ("slept", stats.slept_ns),
                    ("parked", stats.parked_ns),
                ];
                modes.map(|(mode, ns)| ([("mode", mode)], Sample::Seconds(ns))).into()
            },
        )?;
        self.each_device(
            to,
            ("dwell_latency", "Latency of the requests that were timed", seconds()),
            Histogram,
            latency,
        )?;
        self.each_device(
            to,
            (
                "dwell_learned_spins",
                "Kinds and sizes of request that are spun for because that cost least",
                None,
            ),
            Gauge,
            |device| vec![([], Sample::State(device.learner.spins.into()))],
        )?;
        self.each_device(
            to,
            (
                "dwell_regressed_percent",
                "How much longer steered requests took, where that has turned the device off",
                None,
            ),
            Gauge,
            |device| vec![([], Sample::State(device.regressed_percent))],
        )?;
        self.each_device(
            to,
            (
                "dwell_learned_switches",
                "How often the arm for a kind and size of request changed",
                None,
            ),
            Counter,
            |device| vec![([], Sample::Count(device.learner.switches))],
        )?;
        self.each_device(
            to,
            ("dwell_trials", "How often another arm was tried", None),
            Counter,
            |device| vec![([], Sample::Count(device.learner.trials))],
        )?;

        self.each(
            to,
            ("dwell_passed_calls", "Calls left to the kernel without a decision", None),
            Counter,
            |told, mut sample| counter(&mut sample, told.passed.calls),
        )?;
        self.each(
            to,
            ("dwell_passed", "Bytes that these calls moved", bytes()),
            Counter,
            |told, mut sample| counter(&mut sample, told.passed.bytes),
        )?;
        self.each(
            to,
            ("dwell_process_read", "Bytes that all read calls of the process returned", bytes()),
            Counter,
            |told, mut sample| counter(&mut sample, told.io.rchar),
        )?;
        self.each(
            to,
            ("dwell_process_written", "Bytes that all write calls of the process took", bytes()),
            Counter,
            |told, mut sample| counter(&mut sample, told.io.wchar),
        )?;
        self.each(
            to,
            ("dwell_shadow", "Whether the process only records what it would do", None),
            Gauge,
            |told, sample| gauge(sample, f64::from(u8::from(told.header.shadow))),
        )?;
        self.each(
            to,
            ("dwell_off", "Whether the process leaves everything to the kernel", None),
            Gauge,
            |told, sample| gauge(sample, f64::from(u8::from(told.is_off()))),
        )?;
        self.each(
            to,
            ("dwell_cpu_others", "Utilisation of the CPUs by others", ratio()),
            Gauge,
            |told, sample| gauge(sample, told.load.map_or(0.0, |load| load.others.into())),
        )?;
        self.each(
            to,
            (
                "dwell_cpu_threshold",
                "Utilisation by others above which the CPUs count as busy",
                ratio(),
            ),
            Gauge,
            |told, sample| gauge(sample, told.load.map_or(0.0, |load| load.threshold.into())),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name without what its samples add to it.
    fn of_family(name: &str) -> &str {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
    }

    fn named_in(text: &str) -> Vec<&str> {
        let is_name = |c: char| c == '_' || c.is_ascii_lowercase();
        let words = text.split(|c: char| !is_name(c)).filter(|word| word.starts_with("dwell_"));
        words.map(of_family).collect()
    }

    #[test]
    fn the_book_names_every_metric_and_the_dashboard_no_other() {
        let wait = WaitSum { labels: Default::default(), count: 1, parts: Parts::default() };
        let text = text(vec![], vec![wait]).unwrap();
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let families: Vec<String> = families
            .map(|family| match family.split_once(' ').unwrap() {
                (name, "counter") => format!("{name}_total"),
                (name, _) => name.to_owned(),
            })
            .collect();
        assert!(families.len() > 15, "{families:?}");
        let page = include_str!("../../../docs/reference/metrics.md");
        let dashboard = include_str!("../../../docs/how-to/dwell-dashboard.json");
        for family in &families {
            assert!(page.contains(&format!("`{family}`")), "metrics.md lacks {family}");
        }
        for name in [named_in(page), named_in(dashboard)].concat() {
            assert!(families.iter().any(|family| family == name), "there is no metric {name}");
        }
    }
}
