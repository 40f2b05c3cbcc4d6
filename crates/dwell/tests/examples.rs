// SPDX-License-Identifier: MIT OR Apache-2.0
//! The examples do what they say.

#[path = "../examples/pipeline.rs"]
mod pipeline;
#[path = "../examples/policy.rs"]
mod policy;
#[path = "../examples/read.rs"]
mod read;

fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn read_gives_a_block_and_what_was_decided() {
    let file = file_of(&[[1; 4096], [2; 4096]].concat()[..5000]);
    let (block, decided) = read::block(file.path(), 4096).unwrap();
    assert_eq!(block, [2; 904]);
    assert!(decided.starts_with("route inline, mode block, reason "), "{decided}");
}

#[test]
fn pipeline_sums_a_file_of_any_length() {
    for bytes in [0, 1, 65536, 3_000_001] {
        let data: Vec<u8> = (0..bytes).map(|at: u64| (at % 251) as u8).collect();
        let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(pipeline::sum(file_of(&data).path()).unwrap(), sum);
    }
}

#[test]
fn policy_spins_for_small_reads_and_blocks_for_others() {
    let device = "emu:latency=20us,size=1MiB";
    assert_eq!(policy::reads(device.as_ref()).unwrap(), (1, 1));
}
