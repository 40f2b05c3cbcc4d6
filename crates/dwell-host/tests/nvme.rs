// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the probe says of a real NVMe driver, in the VM that `vm/test` boots; anywhere else it
//! skips.

#[path = "../../dwell/tests/common/vm.rs"]
mod vm;

use dwell_host::probe::{Probe, sweep::Effort};
use dwell_host::profile::{Polling as Probed, SwitchCosts};
use vm::Polling;

#[test]
fn the_probe_tells_real_polling_from_fake() {
    let polling = match Polling::of_this_boot(Polling::ANY) {
        Ok(polling) => polling,
        Err(reason) => return println!("SKIP: {reason}"),
    };
    let probe = Probe {
        effort: Effort { rounds: 1, settle_ns: 0, batch_ns: 200_000, limit_ns: 20_000_000_000 },
        sizes: vec![4096],
        switches: Some(SwitchCosts { self_ns: 1_000, direct: Vec::new(), indirect: Vec::new() }),
        ..Probe::new("/dev/nvme0n1")
    };
    let probed = probe.run(&mut |_, _| {}).unwrap().polling;
    match polling {
        Polling::Real => assert_eq!(probed, Probed::Real),
        Polling::Fake => assert!(
            matches!(probed, Probed::Fake { interrupts_per_request } if interrupts_per_request >= 1.0),
            "{probed:?}"
        ),
        Polling::Refused => assert!(
            matches!(&probed, Probed::Unsupported { why } if why.contains("poll_queues")),
            "{probed:?}"
        ),
    }
}
