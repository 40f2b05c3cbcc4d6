// SPDX-License-Identifier: MIT OR Apache-2.0
//! The example does what it says.

mod common;
#[path = "../examples/tokio.rs"]
mod tokio_example;

use common::{data, disk};

#[tokio::test(flavor = "multi_thread")]
async fn tokio_counts_the_lines_of_a_file() {
    let dir = disk();
    let path = dir.path().join("data");
    for bytes in [0, 100, 3_000_001] {
        let data = data(bytes, 0, 9);
        std::fs::write(&path, &data).unwrap();
        let lines = data.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(tokio_example::lines(&path).await.unwrap(), lines);
    }
}
