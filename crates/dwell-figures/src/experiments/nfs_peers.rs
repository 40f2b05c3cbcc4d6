// SPDX-License-Identifier: MIT OR Apache-2.0
//! N2, N5: a file to and from an NFS server by Dwell and by other clients, in small and larger
//! requests, by window.

use anyhow::{Context, Result};

use super::lab::{both, put, skip, skip_all, subtitle};
use super::nfs::{SERVER, Scale, beside_server, best, cpu, depth, of, row};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{DotRow, Dots, Panel};
use dwell_bench::fixture::Ganesha;
use dwell_bench::nfs::{ASYNC, DYNAMIC, Job, Plan, SPREAD, measure as measure_plan};
use dwell_bench::program::{PREFIX, Peers};
use dwell_bench::result::{Direction, Metric, RoundResult, Row, Run, pair, pair_by};

const SIZES: [(u32, &str); 2] = [(8 << 10, "8 KiB"), (64 << 10, "64 KiB")];
const WINDOWS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const MOST: u32 = 32;
/// Those that are measured, and how many requests each can have outstanding.
const CLIENTS: [(&str, u32); 3] = [("libnfs", MOST), ("nfs3_client", 8), ("nfs-rs", MOST)];

/// The one that has a connection for each request, and how many at the most.
const CONNECTED: (&str, u32) = CLIENTS[1];

fn throughput(size: &str, client: &str) -> String {
    format!("{size}, {client}: throughput ÷ its best")
}
fn cpu_time(size: &str, client: &str) -> String {
    format!("{size}, {client}: CPU per MB ÷ its")
}
fn ahead(size: &str, client: &str) -> String {
    format!("{size}, {client}: windows with it ahead in both")
}
fn equally_connected(size: &str, client: &str) -> String {
    format!("{size}, {client}: throughput, as many connections")
}
fn cases(size: &str, client: &str) -> Vec<String> {
    let mut cases = vec![throughput(size, client), cpu_time(size, client), ahead(size, client)];
    if client == CONNECTED.0 {
        cases.push(equally_connected(size, client));
    }
    cases
}

/// Lets a port be used again as soon as its connection ends, in this thread's network. A peer
/// mounts anew for each run from ports below 1024, of which there are too few for a minute's wait
/// each.
fn free_ports_at_once() -> Result<()> {
    let file = "/proc/sys/net/ipv4/tcp_max_tw_buckets";
    std::fs::write(file, "0").with_context(|| format!("cannot write {file}"))
}

/// N2.
pub fn writes(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    measure(lab, result, Direction::Write, progress)
}

/// N5.
pub fn reads(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    measure(lab, result, Direction::Read, progress)
}

fn measure(
    lab: &Lab,
    result: &mut FigureResult,
    direction: Direction,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let peers = match Peers::find(None) {
        Ok(peers) => peers,
        Err(why) => return skip_all(result, &format!("{why:#}")).map(|()| None),
    };
    let scale = Scale::of(lab, 9);
    let measured = beside_server(progress, |server, progress| {
        free_ports_at_once()?;
        let missing: Vec<Option<String>> = CLIENTS
            .iter()
            .map(|(name, _)| {
                try_out(server, &peers, name, direction).err().map(|why| format!("{why:#}"))
            })
            .collect();
        let mut runs = Vec::new();
        for (at, (size, _)) in SIZES.into_iter().enumerate() {
            let mut entries = of(ASYNC, &WINDOWS);
            entries.extend(of(DYNAMIC, &[MOST]));
            if missing.iter().zip(CLIENTS).any(|(why, client)| why.is_none() && client == CONNECTED)
            {
                let windows = WINDOWS.into_iter().filter(|window| *window <= CONNECTED.1);
                entries.extend(of(SPREAD, &windows.collect::<Vec<_>>()));
            }
            for ((name, most), missing) in CLIENTS.into_iter().zip(&missing) {
                let windows = WINDOWS.into_iter().filter(|window| *window <= most);
                let windows: Vec<u32> = windows.filter(|_| missing.is_none()).collect();
                entries.extend(of(&format!("{PREFIX}{name}"), &windows));
            }
            let plan = plan(server, &peers, size, direction, entries, scale)?;
            let mut part = |what: &str, share: f64| progress(what, (at as f64 + share) / 2.0);
            runs.push(measure_plan(&plan, Vec::new(), &mut part)?);
        }
        Ok((missing, runs))
    })?;
    let (missing, runs) = match measured {
        Ok(measured) => measured,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    for ((_, size), run) in SIZES.into_iter().zip(&runs) {
        for ((client, most), missing) in CLIENTS.into_iter().zip(&missing) {
            match missing {
                Some(why) => skip(result, &cases(size, client), why)?,
                None => judge(result, run, size, client, most)?,
            }
        }
    }
    Ok(Some(chart(result, direction, &runs)))
}

fn plan(
    server: &Ganesha,
    peers: &Peers,
    size_bytes: u32,
    direction: Direction,
    entries: Vec<(String, u32)>,
    scale: Scale,
) -> Result<Plan> {
    let url = server.address("/mem/file", "&proto=tcp&nconnect=1").parse()?;
    let job = Job { url, size_bytes, bytes: scale.bytes, direction };
    let (rounds, peers, server) = (scale.rounds, Some(peers.clone()), SERVER.into());
    Ok(Plan { job, entries, rounds, server, peers, stop: Default::default() })
}

/// Moves little, to see whether a client can be had here.
fn try_out(server: &Ganesha, peers: &Peers, name: &str, direction: Direction) -> Result<()> {
    let size = SIZES[0].0;
    let scale = Scale { rounds: 1, bytes: u64::from(size) };
    let entries = of(&format!("{PREFIX}{name}"), &[1]);
    let plan = plan(server, peers, size, direction, entries, scale)?;
    measure_plan(&plan, Vec::new(), &mut |_, _| {}).map(|_| ())
}

/// All cases of one client at one size. Its best window is the one with the best median. At each
/// window it is held against our fixed window of that size: ahead is who is so in the whole
/// interval.
fn judge(result: &mut FigureResult, run: &Run, size: &str, client: &str, most: u32) -> Result<()> {
    let policy = format!("{PREFIX}{client}");
    let found = row(run, DYNAMIC, MOST)?;
    let fastest = best(run.rows.iter().filter(|row| row.policy == policy))?;
    let remark = format!("its best: {}", depth(fastest));
    put(result, &throughput(size, client), pair(found, fastest, Metric::Throughput), Some(remark))?;
    put(result, &cpu_time(size, client), pair_by(found, fastest, cpu), None)?;
    if (client, most) == CONNECTED {
        let ours = row(run, SPREAD, depth(fastest))?;
        let case = equally_connected(size, client);
        let remark = format!("{} connections each", depth(fastest));
        put(result, &case, pair(ours, fastest, Metric::Throughput), Some(remark))?;
    }
    let (mut faster, mut ahead_in_both) = (Vec::new(), Vec::new());
    for window in WINDOWS {
        let (ours, theirs) = (row(run, ASYNC, window)?, row(run, &policy, window.min(most))?);
        if pair(theirs, ours, Metric::Throughput).is_some_and(|ratio| ratio.low > 1.0) {
            let cheaper = pair_by(theirs, ours, cpu).is_some_and(|ratio| ratio.high < 1.0);
            if cheaper { &mut ahead_in_both } else { &mut faster }.push(window.to_string());
        }
    }
    let list = |what: &str, windows: &[String]| {
        (!windows.is_empty()).then(|| format!("{what}: {}", windows.join(", ")))
    };
    let count = Measured::exact(ahead_in_both.len() as f64);
    let remark = both(list("ahead in both", &ahead_in_both), list("faster only", &faster));
    put(result, &ahead(size, client), Some(count), remark)
}

/// A panel for each size, fastest first.
fn chart(result: &FigureResult, direction: Direction, runs: &[Run]) -> String {
    let panel = |(run, (_, size)): (&Run, (u32, &str))| {
        let speed = |row: &Row| row.summary(|round| round.throughput() / 1e6);
        let mut rows: Vec<_> =
            (run.rows.iter()).filter_map(|row| Some((row, speed(row)?))).collect();
        rows.sort_by(|(_, a), (_, b)| b.median.total_cmp(&a.median));
        let dot = |(row, speed): (&Row, dwell_bench::stats::Summary)| DotRow {
            label: name(row),
            measured: Some((speed.median, speed.min, speed.max)),
            target: None,
            paper: None,
            text: format!(
                "{:.0} MB/s, {:.2} ms of CPU per MB",
                speed.median,
                row.median(cpu_ms_per_mb)
            ),
        };
        Panel {
            axis_label: format!("Throughput in requests of {size} (MB/s, log)"),
            rows: rows.into_iter().map(dot).collect(),
            mark: None,
        }
    };
    let way = match direction {
        Direction::Write => "to an NFS server in unstable writes",
        Direction::Read => "from an NFS server",
    };
    Dots {
        title: format!("32 MB {way}: throughput and CPU time by client and window"),
        subtitle: subtitle(result, "TCP"),
        dots: "median; bar: slowest to fastest round".into(),
        panels: runs.iter().zip(SIZES).map(panel).collect(),
    }
    .svg()
}

fn cpu_ms_per_mb(round: &RoundResult) -> f64 {
    cpu(round) / round.bytes.max(1) as f64
}

fn name(row: &Row) -> String {
    match row.policy.as_str() {
        ASYNC => format!("ours, window {}", depth(row)),
        SPREAD => format!("ours, {} connections", depth(row)),
        DYNAMIC => "ours, window that is found".into(),
        other => format!("{}, window {}", other.trim_start_matches(PREFIX), depth(row)),
    }
}
