// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a stats page file: where each stands, and how any words at all are read.

use dwell_policy::Load;

use super::snapshot::{Control, Device, Header, MOST_DEVICES, Passed, ProcessIo, Snapshot};
use dwell::Stats;
use dwell::learner::LearnerState;

/// "DWSTATPG".
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"DWSTATPG");
/// What readers must agree on: the layout's number, and the sizes of what repeats.
pub(super) const VERSION: u64 = 4 | (Stats::WORDS as u64) << 16;

// The first page: who, what it is told, and what concerns the whole process.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
pub(super) const AT_GENERATION: usize = 2;
pub(super) const AT_OFF: usize = 3;
pub(super) const AT_POLICY: usize = 4;
pub(super) const POLICY_WORDS: usize = 4;
/// Two equal numbers, except while a publication goes on.
pub(super) const AT_BEGUN: usize = 8;
pub(super) const AT_DONE: usize = 9;
const AT_HEADER: usize = 16;
/// The run that the process belongs to.
pub(super) const AT_RUN: usize = AT_HEADER + 3;
const COMMAND_WORDS: usize = 8;
pub(super) const AT_PROCESS: usize = 64;
pub(super) const PROCESS_WORDS: usize = 16;
/// Where the device rows begin.
pub(super) const FIRST_ROW: usize = 512;

// One row.
const NAME_WORDS: usize = 8;
const CLASS_WORDS: usize = 2;
const AT_CLASS: usize = NAME_WORDS;
const AT_ROW_POLICY: usize = AT_CLASS + CLASS_WORDS;
const AT_LEARNER: usize = AT_ROW_POLICY + POLICY_WORDS;
const AT_REGRESSED: usize = AT_LEARNER + 3;
const AT_STATS: usize = AT_REGRESSED + 1;
pub(super) const ROW_WORDS: usize = AT_STATS + Stats::WORDS;

/// Words of a file with so many rows.
pub(super) const fn words_for(rows: usize) -> usize {
    FIRST_ROW + rows * ROW_WORDS
}

/// Words of the longest file.
pub(super) const MOST_WORDS: usize = words_for(MOST_DEVICES);

/// Puts as much of a text into words as fits, cut between characters.
pub(super) fn put_text(text: &str, into: &mut [u64]) {
    let room = into.len() * 8;
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = text.as_bytes()[..end].chunks(8);
    for word in into {
        let mut eight = [0u8; 8];
        if let Some(chunk) = bytes.next() {
            eight[..chunk.len()].copy_from_slice(chunk);
        }
        *word = u64::from_le_bytes(eight);
    }
}

/// A text from words that anybody may have written: whatever is no text becomes `�`.
pub(super) fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The first page of a new file.
pub(super) fn first_page(header: &Header, control: &Control) -> Vec<u64> {
    let mut page = vec![0u64; FIRST_ROW];
    page[AT_MAGIC] = MAGIC;
    page[AT_VERSION] = VERSION;
    page[AT_GENERATION] = control.generation.into();
    page[AT_OFF] = control.off.into();
    put_text(control.policy.as_deref().unwrap_or(""), &mut page[AT_POLICY..][..POLICY_WORDS]);
    let numbers = [
        header.pid.into(),
        header.start_ticks,
        header.namespace,
        header.run,
        header.root_pid.into(),
        header.root_start_ticks,
        header.shadow.into(),
        header.since_unix_ms,
    ];
    page[AT_HEADER..][..numbers.len()].copy_from_slice(&numbers);
    put_text(&header.command, &mut page[AT_HEADER + numbers.len()..][..COMMAND_WORDS]);
    page
}

/// The words of the whole process, and those of the device rows.
pub(super) fn published(snapshot: &Snapshot, rows: usize) -> ([u64; PROCESS_WORDS], Vec<u64>) {
    let devices = folded(&snapshot.devices, rows);
    let load = snapshot.load.map(|load| Load::from(load).pack());
    let ProcessIo { rchar, wchar, read_bytes, write_bytes } = snapshot.io;
    let Passed { calls, bytes } = snapshot.passed;
    let mut process = [0u64; PROCESS_WORDS];
    let figures = [
        snapshot.published_ns,
        snapshot.processes,
        devices.len() as u64,
        calls,
        bytes,
        rchar,
        wchar,
        read_bytes,
        write_bytes,
        load.is_some().into(),
        load.unwrap_or(0),
    ];
    process[..figures.len()].copy_from_slice(&figures);
    let mut words = vec![0u64; devices.len() * ROW_WORDS];
    for (device, row) in devices.iter().zip(words.chunks_exact_mut(ROW_WORDS)) {
        put_device(device, row);
    }
    (process, words)
}

/// At most `rows` devices: those beyond are added up in the last.
fn folded(devices: &[Device], rows: usize) -> Vec<Device> {
    let (first, beyond) = devices.split_at(devices.len().min(rows));
    let mut folded = first.to_vec();
    if let (Some(last), false) = (folded.last_mut(), beyond.is_empty()) {
        beyond.iter().for_each(|device| last.merge(device));
        last.name = "others".to_owned();
        last.class = String::new();
    }
    folded
}

fn put_device(device: &Device, row: &mut [u64]) {
    put_text(&device.name, &mut row[..NAME_WORDS]);
    put_text(&device.class, &mut row[AT_CLASS..][..CLASS_WORDS]);
    put_text(&device.policy, &mut row[AT_ROW_POLICY..][..POLICY_WORDS]);
    let LearnerState { learns, kinds, spins, switches, trials } = device.learner;
    row[AT_LEARNER] = u64::from(learns) << 63 | u64::from(kinds) << 32 | u64::from(spins);
    (row[AT_LEARNER + 1], row[AT_LEARNER + 2]) = (switches, trials);
    row[AT_REGRESSED] = device.regressed_percent;
    device.stats.put_words(&mut row[AT_STATS..][..Stats::WORDS]);
}

fn device(row: &[u64]) -> Device {
    Device {
        name: text(&row[..NAME_WORDS]),
        class: text(&row[AT_CLASS..][..CLASS_WORDS]),
        policy: text(&row[AT_ROW_POLICY..][..POLICY_WORDS]),
        learner: LearnerState {
            learns: row[AT_LEARNER] >> 63 == 1,
            kinds: (row[AT_LEARNER] >> 32) as u32 & 0x7fff_ffff,
            spins: row[AT_LEARNER] as u32,
            switches: row[AT_LEARNER + 1],
            trials: row[AT_LEARNER + 2],
        },
        regressed_percent: row[AT_REGRESSED],
        stats: Stats::from_words(&row[AT_STATS..][..Stats::WORDS]),
    }
}

/// What a first page says of control. `None` for the policy where it is empty.
pub(super) fn control(generation: u64, off: u64, policy: &[u64]) -> Control {
    let policy = text(policy);
    Control {
        generation: generation as u32,
        off: off & 1 == 1,
        policy: (!policy.is_empty()).then_some(policy),
    }
}

/// Reads the words of a file, whatever they are.
pub(super) fn read(words: &[u64]) -> Result<Snapshot, String> {
    let Some(page) = words.get(..FIRST_ROW) else {
        return Err(format!("has {} bytes, too few for a stats page", words.len() * 8));
    };
    if page[AT_MAGIC] != MAGIC {
        return Err("is no stats page of Dwell's".to_owned());
    }
    if page[AT_VERSION] != VERSION {
        return Err("was written by another version of Dwell".to_owned());
    }
    let header = &page[AT_HEADER..];
    let pid = |word: u64| u32::try_from(word).unwrap_or(0);
    let header = Header {
        pid: pid(header[0]),
        start_ticks: header[1],
        namespace: header[2],
        run: header[3],
        root_pid: pid(header[4]),
        root_start_ticks: header[5],
        shadow: header[6] & 1 == 1,
        since_unix_ms: header[7],
        command: text(&header[8..][..COMMAND_WORDS]),
    };
    let process = &page[AT_PROCESS..];
    let rows = words[FIRST_ROW..].chunks_exact(ROW_WORDS);
    let devices = usize::try_from(process[2]).unwrap_or(usize::MAX).min(MOST_DEVICES);
    Ok(Snapshot {
        header,
        control: control(page[AT_GENERATION], page[AT_OFF], &page[AT_POLICY..][..POLICY_WORDS]),
        published_ns: process[0],
        processes: process[1],
        devices: rows.take(devices).map(device).collect(),
        passed: Passed { calls: process[3], bytes: process[4] },
        io: ProcessIo {
            rchar: process[5],
            wchar: process[6],
            read_bytes: process[7],
            write_bytes: process[8],
        },
        load: (process[9] & 1 == 1).then(|| Load::unpack(process[10]).into()),
    })
}

#[cfg(test)]
mod tests {
    use dwell::stats::Row;
    use dwell_policy::{Mode, Reason, Route};
    use proptest::prelude::*;

    use super::*;

    fn written(snapshot: &Snapshot) -> Vec<u64> {
        let mut words = first_page(&snapshot.header, &snapshot.control);
        let (process, rows) = published(snapshot, MOST_DEVICES);
        words[AT_PROCESS..][..PROCESS_WORDS].copy_from_slice(&process);
        words.extend(rows);
        words
    }

    fn snapshot(devices: usize) -> Snapshot {
        let mut stats = Stats::default();
        (stats.bytes_read, stats.spun_ns) = (8192, 77);
        let row = |reason, requests| Row::new(Route::Interrupt, Mode::Spin, reason, requests);
        stats.rows = vec![row(Reason::Pays, 2), row(Reason::Measured, 1)];
        stats.latency.spun.note(9_000);
        stats.latency.cached.note(u64::MAX);
        Snapshot {
            header: Header {
                pid: 12,
                start_ticks: 34,
                namespace: 56,
                run: u64::MAX - 1,
                root_pid: 11,
                root_start_ticks: 33,
                command: "a command, ein Befehl für alle Fälle".into(),
                shadow: true,
                since_unix_ms: 99,
            },
            control: Control { generation: 7, off: true, policy: Some("block".into()) },
            published_ns: 5,
            processes: 1,
            devices: (0..devices)
                .map(|number| Device {
                    name: format!("loop{number}"),
                    class: "fast".into(),
                    policy: "smartcon".into(),
                    learner: LearnerState {
                        learns: true,
                        kinds: 3,
                        spins: 2,
                        switches: 4,
                        trials: 5,
                    },
                    regressed_percent: 6,
                    stats: stats.clone(),
                })
                .collect(),
            passed: Passed { calls: 3, bytes: 4 },
            io: ProcessIo { rchar: 1, wchar: 2, read_bytes: 3, write_bytes: 4 },
            load: Some(Load::new(0.25, 0.5, 0.75).into()),
        }
    }

    #[test]
    fn a_written_page_is_read_again() {
        for devices in [0, 1, MOST_DEVICES] {
            assert_eq!(read(&written(&snapshot(devices))), Ok(snapshot(devices)));
        }
        const { assert!(AT_HEADER + 8 + COMMAND_WORDS <= AT_PROCESS) };
    }

    #[test]
    fn devices_beyond_the_last_row_are_added_up_in_it() {
        let told = read(&written(&snapshot(MOST_DEVICES + 3))).unwrap();
        assert_eq!(told.devices.len(), MOST_DEVICES);
        assert_eq!(told.devices.last().unwrap().name, "others");
        assert_eq!(told.stats(), snapshot(MOST_DEVICES + 3).stats());
    }

    #[test]
    fn a_text_is_cut_between_characters_and_holds_no_control_characters() {
        let mut words = [u64::MAX; 2];
        put_text("0123456789abcdé", &mut words);
        assert_eq!(text(&words), "0123456789abcdé");
        put_text("0123456789abcdeé", &mut words);
        assert_eq!(text(&words), "0123456789abcde");
        put_text("a\x1b[2J\nb", &mut words);
        assert_eq!(text(&words), "a�[2J�b");
        assert_eq!(text(&[u64::MAX]), "�".repeat(8));
    }

    #[test]
    fn another_version_and_another_file_are_told_apart() {
        let mut words = written(&snapshot(1));
        assert!(read(&words[..FIRST_ROW - 1]).unwrap_err().contains("too few"));
        // A file that is cut off loses the rows that are not there.
        assert_eq!(read(&words[..FIRST_ROW + 9]).unwrap().devices, []);
        words[AT_VERSION] += 1;
        assert!(read(&words).unwrap_err().contains("version"));
        words[AT_MAGIC] = 0;
        assert!(read(&words).unwrap_err().contains("no stats page"));
    }

    proptest! {
        #[test]
        fn any_words_are_refused_or_bounded(
            any in proptest::collection::vec(any::<u64>(), 0..2 * ROW_WORDS),
            admitted in any::<bool>(),
        ) {
            let mut words = any;
            if admitted {
                words.resize(words.len().max(FIRST_ROW), u64::MAX);
                (words[AT_MAGIC], words[AT_VERSION]) = (MAGIC, VERSION);
            }
            if let Ok(told) = read(&words) {
                prop_assert!(admitted && told.devices.len() <= MOST_DEVICES);
                let mut twice = told.clone();
                twice.merge(&told);
                let all = twice.stats();
                prop_assert!(all.latencies().percentile(0.99) <= all.latencies().max_ns());
                all.switches_avoided();
                prop_assert!(read(&written(&twice)).is_ok());
                let json = serde_json::to_string(&twice).unwrap();
                prop_assert!(serde_json::from_str::<Snapshot>(&json).is_ok());
            }
        }
    }
}
