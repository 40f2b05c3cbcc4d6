// SPDX-License-Identifier: MIT OR Apache-2.0
//! Served files as memory: paged in through their channel, by the faulting thread and by one of its
//! own.

use dwell_pager::{Access, Faults, Options, PAGE_BYTES, Region};

use crate::fixture::Served;

#[test]
fn a_served_file_is_memory_larger_than_its_budget() {
    let Some(served) = Served::start() else { return };
    dwell_channel::client::register();
    let pages = 200usize;
    let byte = |at: usize| (at / PAGE_BYTES * 7 + at % 251) as u8;
    let data: Vec<u8> = (0..pages * PAGE_BYTES).map(byte).collect();
    std::fs::write(served.mount.join("data"), &data).unwrap();
    for faults in [Faults::Inline, Faults::Thread] {
        let file = dwell::Options::new().write(true).open(served.mount.join("data")).unwrap();
        let options = Options::new(32 * PAGE_BYTES).faults(faults).access(Access::Shared);
        let region = match Region::open(file, &options) {
            Ok(region) => region,
            Err(error) if error.to_string().contains("userfaultfd") => {
                return println!("SKIP: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let _lane = region.register_thread().unwrap();
        for at in (0..data.len()).step_by(1009).chain((0..data.len()).step_by(3 * PAGE_BYTES)) {
            // SAFETY: within the region, which lives.
            assert_eq!(unsafe { region.as_ptr().add(at).read_volatile() }, byte(at), "{faults:?}");
        }
        // SAFETY: as above, and it may be written to.
        unsafe { region.as_ptr().add(50 * PAGE_BYTES).write_volatile(200 + faults as u8) };
        region.close().unwrap();
        let now = std::fs::read(served.plain.join("../backing/data")).unwrap();
        assert_eq!(now[50 * PAGE_BYTES], 200 + faults as u8);
        assert_eq!(now.len(), data.len());
    }
}
