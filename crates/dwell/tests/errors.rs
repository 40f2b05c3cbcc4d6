// SPDX-License-Identifier: MIT OR Apache-2.0
//! What queues, devices and callers can get wrong is handled or said, with path and offset.

mod common;

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::fake::{Answer, Fake, Waking};
use common::machine::{Loop, MIB, Mount, disk, pattern_file, run};
use common::{BLOCK, Fixed, check, fast, fill, skip};
use dwell::buffer::Aligned;
use dwell::buffer::{IoBuf, IoBufMut};
use dwell::dwell_policy::Routes;
use dwell::open::{Opened, register};
use dwell::source::Source;
use dwell::{Error, File, Mode, Options, Reason, Route};

const BYTES: u64 = 64 * 1024;

/// A source whose queues answer so, in order.
fn answering(answers: &[Answer]) -> Fake {
    Fake::new(BYTES, 1).with(|state| state.queued.extend(answers))
}

#[test]
fn an_interrupted_or_postponed_request_is_served_inline() {
    for errno in [libc::EINTR, libc::EAGAIN] {
        for fixed in [Fixed::spin(), Fixed::block()] {
            let fake = answering(&[Answer::Refused(errno)]);
            let file = fake.open(fast(), fixed);
            let mut buffer = vec![0; 100];
            assert_eq!(file.read_at(&mut buffer, 50).unwrap(), 100);
            check(&buffer, 50, 1);
            assert_eq!((fake.log().calls, file.stats().errors), (1, 0));

            fake.lock().queued.push_back(Answer::Refused(errno));
            let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
            pipeline.read_at(vec![0; 100], 60).unwrap();
            let done = pipeline.next().unwrap();
            assert_eq!(done.result.unwrap(), 100);
            check(&done.buffer.unwrap(), 60, 1);
        }
    }
}

#[test]
fn where_nothing_else_can_serve_it_a_postponed_request_is_an_error() {
    let fake = answering(&[Answer::Refused(libc::EAGAIN)]).with(|state| {
        state.routes = Routes::INTERRUPT;
    });
    let error = fake.open(fast(), Fixed::spin()).read_at(&mut [0; 10], 7).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EAGAIN));
    assert_eq!(fake.log().calls, 0);
}

#[test]
fn a_failure_names_action_path_and_offset_and_is_counted() {
    for errno in [libc::EIO, libc::ENOSPC, libc::ENODEV] {
        let fake = answering(&[Answer::Refused(errno), Answer::Refused(errno)]);
        let file = fake.open(fast(), Fixed::spin());
        let read = file.read_at(&mut [0; 10], 4711).unwrap_err();
        let write = file.write_all_at(&[0; 10], 815).unwrap_err();
        assert_eq!((read.errno(), write.errno()), (Some(errno), Some(errno)));
        assert!(read.to_string().starts_with("fake: read at byte 4711: "), "{read}");
        assert!(write.to_string().starts_with("fake: write at byte 815: "), "{write}");
        let stats = file.stats();
        assert_eq!((stats.errors, stats.bytes_read, stats.bytes_written), (2, 0, 0));

        fake.lock().queued.push_back(Answer::Refused(errno));
        let sync = file.sync_data().unwrap_err().to_string();
        assert!(sync.starts_with("fake: fdatasync: "), "{sync}");

        fake.lock().queued.push_back(Answer::Refused(errno));
        let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
        pipeline.read_at(vec![0; 10], 99).unwrap();
        let done = pipeline.next().unwrap();
        assert!(done.result.unwrap_err().to_string().contains("byte 99"));
        assert_eq!(done.buffer.unwrap().len(), 10, "a failed request gives its buffer back");
        assert_eq!(file.stats().errors, 4);
    }
}

#[test]
fn short_transfers_are_continued_where_they_stopped() {
    let fake = answering(&[Answer::Short(3), Answer::Short(1), Answer::Done]);
    let file = fake.open(fast(), Fixed::spin());
    let mut buffer = vec![0; 500];
    file.read_exact_at(&mut buffer, 1000).unwrap();
    check(&buffer, 1000, 1);

    fake.lock().queued.extend([Answer::Short(499), Answer::Short(1)]);
    fill(&mut buffer, 2000, 2);
    file.write_all_at(&buffer, 2000).unwrap();
    check(&fake.lock().data[2000..2500], 2000, 2);
    check(&fake.lock().data[2500..], 2500, 1);
    assert_eq!(file.stats().bytes_written, 500);

    fake.lock().queued.extend([Answer::Short(10), Answer::Short(0)]);
    let error = file.write_all_at(&buffer, 0).unwrap_err();
    assert!(error.to_string().contains("write at byte 10"), "{error}");
}

#[test]
fn a_bounced_direct_read_that_comes_up_short_gives_what_it_got() {
    let fake = answering(&[Answer::Short(512)]).with(|state| state.alignment = 512);
    let file = fake.open(fast(), Fixed::spin());
    let mut buffer = vec![0; 1000];
    assert_eq!(file.read_at(&mut buffer, 100).unwrap(), 412);
    check(&buffer[..412], 100, 1);
    fake.lock().queued.push_back(Answer::Short(0));
    assert_eq!(file.read_at(&mut buffer, 100).unwrap(), 0);
}

#[test]
fn blocks_larger_than_a_page_do_not_send_a_request_round_for_ever() {
    for alignment in [8192, 65536] {
        let fake = Fake::new(1 << 18, 1).with(|state| state.alignment = alignment);
        let file = fake.open(fast(), Fixed::spin());
        let mut buffer = vec![0; 100_000];
        assert_eq!(file.read_at(&mut buffer, 12_345).unwrap(), 100_000);
        check(&buffer, 12_345, 1);
        let (a, b) = buffer.split_at_mut(77);
        let mut pieces = [IoSliceMut::new(a), IoSliceMut::new(b)];
        assert_eq!(file.read_vectored_at(&mut pieces, 5).unwrap(), 100_000);
        check(&buffer, 5, 1);
        let mut page = Aligned::new(alignment as usize);
        fill(&mut page, 0, 2);
        assert_eq!(file.write_at(&page, 0).unwrap(), page.len());
        assert_eq!(file.write_vectored_at(&[IoSlice::new(&page)], 0).unwrap(), page.len());
        let fitting = Aligned::for_blocks_of(page.len(), alignment as usize);
        let mut pipeline = file.pipeline::<Aligned>(1).unwrap();
        pipeline.read_at(fitting, 0).map_err(|(error, _)| error).unwrap();
        check(&pipeline.next().unwrap().buffer.unwrap(), 0, 2);
    }
}

#[test]
fn completions_out_of_order_find_their_own_requests() {
    let late = |at: u32| Answer::Late(at * 7 % 5);
    let fake = answering(&(0..64).map(late).collect::<Vec<_>>()).with(|state| {
        (state.reversed, state.strays) = (true, true);
    });
    let file = fake.open(fast(), Fixed::spin());
    let mut pipeline = file.pipeline::<Vec<u8>>(16).unwrap();
    let mut expected = std::collections::HashMap::new();
    let (mut sent, mut done) = (0, 0);
    while done < 64 {
        while sent < 64 && pipeline.has_room() {
            let ticket = pipeline.read_at(vec![0; 200], sent * 200).unwrap();
            expected.insert(ticket.0, sent * 200);
            sent += 1;
        }
        let finished = pipeline.next().expect("requests are in flight");
        assert_eq!(finished.result.unwrap(), 200);
        check(&finished.buffer.unwrap(), expected.remove(&finished.ticket.0).unwrap(), 1);
        done += 1;
    }
    assert!(pipeline.next().is_none() && expected.is_empty());
    drop(pipeline);
    assert_eq!(file.stats().requests(), 64);
}

#[test]
fn completions_of_nothing_are_not_taken_for_ones_own() {
    for waking in [Waking::Word, Waking::Never] {
        for mode in [Mode::Spin, Mode::Block, Mode::Hybrid { sleep_ns: 1000 }] {
            let fake = answering(&[Answer::Late(3)]).with(|state| {
                (state.strays, state.waking) = (true, waking);
            });
            let file = fake.open(fast(), Fixed { mode, ..Fixed::spin() });
            let mut buffer = vec![0; 300];
            assert_eq!(file.read_at(&mut buffer, 9).unwrap(), 300);
            check(&buffer, 9, 1);
        }
    }
}

#[test]
fn a_full_queue_is_gone_round_or_gives_the_buffer_back() {
    let fake = Fake::new(BYTES, 1).with(|state| state.room = 0);
    let file = fake.open(fast(), Fixed::spin());
    let mut buffer = vec![0; 300];
    assert_eq!(file.read_at(&mut buffer, 9).unwrap(), 300);
    check(&buffer, 9, 1);
    assert_eq!(file.stats().because(Reason::NoQueue), 1);

    let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
    let (error, buffer) = pipeline.read_at(vec![7; 10], 0).unwrap_err();
    assert!(error.to_string().contains("finished ones first"), "{error}");
    assert_eq!(buffer, [7; 10]);
    assert!(pipeline.next().is_none());

    fake.lock().routes = Routes::INTERRUPT;
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap_err().errno(), Some(libc::EBUSY));
}

#[test]
fn a_pipeline_takes_as_many_as_asked_for_and_no_more() {
    let fake = answering(&[Answer::Held; 3]);
    let file = fake.open(fast(), Fixed::spin());
    let mut pipeline = file.pipeline::<Vec<u8>>(3).unwrap();
    for at in 0..3 {
        pipeline.read_at(vec![0; 10], at).unwrap();
    }
    assert!(!pipeline.has_room());
    let (error, _) = pipeline.read_at(vec![0; 10], 4).unwrap_err();
    assert!(error.to_string().contains("3 requests are in flight"), "{error}");
    assert!(pipeline.sync(false).is_err());
    assert!(pipeline.try_next().is_none());
    (0..3).for_each(|_| fake.release());
    assert_eq!((0..3).filter_map(|_| pipeline.next()).count(), 3);
}

#[test]
fn without_a_queue_requests_are_served_inline_and_pipelines_say_why_not() {
    let fake = Fake::new(BYTES, 1).with(|state| state.no_queue = true);
    let file = fake.open(fast(), Fixed::spin());
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
    assert_eq!(file.stats().because(Reason::NoQueue), 1);
    let error = file.pipeline::<Vec<u8>>(4).map(drop).unwrap_err();
    assert!(error.to_string().starts_with("fake: set up a queue"), "{error}");
}

#[test]
fn polling_that_the_device_refuses_is_served_otherwise_and_not_tried_again() {
    for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
        let fake = answering(&[Answer::Refused(errno)])
            .with(|state| state.routes = Routes::INLINE | Routes::POLLED | Routes::INTERRUPT);
        let file = fake.open(fast(), dwell::policy::Spin);
        for _ in 0..3 {
            assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
        }
        let log = fake.log();
        assert_eq!(log.submitted, [Route::Polled, Route::Interrupt, Route::Interrupt]);
        assert_eq!((log.refused, log.calls), (vec![Route::Polled], 1));
        assert_eq!(file.stats().errors, 0);
    }
}

#[test]
fn a_request_that_is_wrong_on_every_route_does_not_switch_polling_off() {
    let wrong = Answer::Refused(libc::EINVAL);
    let fake = answering(&[wrong]).with(|state| {
        state.routes = Routes::INLINE | Routes::POLLED;
        state.called.push_back(wrong);
    });
    let file = fake.open(fast(), dwell::policy::Spin);
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap_err().errno(), Some(libc::EINVAL));
    assert!(fake.routes().has(Route::Polled));
}

/// A buffer that counts how often it was dropped.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the heap memory of a Vec does not move with it.
unsafe impl IoBuf for Counted {
    fn data(&self) -> (*const u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Counted {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }
}

#[test]
fn a_dropped_pipeline_never_frees_memory_that_the_device_may_still_write() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let fake = answering(&[Answer::Never, Answer::Cancellable(libc::ECANCELED), Answer::Done]);
    let file = fake.open(fast(), Fixed::spin());
    let mut pipeline = file.pipeline::<Counted>(8).unwrap();
    for at in 0..3 {
        let buffer = Counted(vec![0; 10], dropped.clone());
        pipeline.read_at(buffer, at).map_err(|(error, _)| error).unwrap();
    }
    drop(pipeline);
    assert_eq!(
        dropped.load(Ordering::Relaxed),
        2,
        "the request that never completes keeps its own"
    );
    assert_eq!(fake.log().cancelled, 3);
    // Nothing of it is left as backlog.
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
}

#[test]
fn a_cancelled_request_is_not_carried_out_after_all() {
    let fake = answering(&[Answer::Cancellable(libc::EINTR)]);
    let file = fake.open(fast(), Fixed::spin());
    let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
    let ticket = pipeline.write_at(vec![0; 10], 0).unwrap();
    pipeline.cancel(ticket);
    let done = pipeline.next().unwrap();
    assert_eq!(done.result.unwrap_err().errno(), Some(libc::EINTR));
    assert_eq!(fake.log().calls, 0);
    check(&fake.lock().data, 0, 1);
    pipeline.cancel(ticket);
    assert_eq!(fake.log().cancelled, 1, "what is finished is not cancelled");
}

fn writable(path: &Path, fixed: Fixed) -> File {
    let options = Options::new().write(true).create(true).parameters(fixed.parameters());
    options.policy(Arc::new(fixed)).open(path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_full_file_system_is_an_error_with_path_and_offset() {
    let mount = match Mount::tiny(64 * 1024) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let path = mount.at.path().join("file");
    for fixed in Fixed::all() {
        let file = writable(&path, fixed);
        let error = file.write_all_at(&vec![1; 1 << 20], 0).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{fixed:?}: {error}");
        let told = error.to_string();
        assert!(told.contains(path.to_str().unwrap()) && told.contains("at byte "), "{told}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_larger_than_the_file_system_allows_is_an_error() {
    let place = disk();
    for fixed in Fixed::all() {
        let file = writable(&place.path().join("file"), fixed);
        let error = file.write_at(&[0; 100], (i64::MAX - 200) as u64).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EFBIG), "{fixed:?}: {error}");
        assert_eq!(file.bytes().unwrap(), 0);
    }
}

#[test]
fn an_object_that_is_no_file_is_refused_with_its_path() {
    let place = disk();
    let refused = |path: &Path, options: Options| match options.open(path) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => {
            let told = error.to_string();
            assert!(told.starts_with(&path.display().to_string()), "{told}");
            (error, told)
        }
    };
    let (_, told) = refused(place.path(), Options::new());
    assert!(told.contains("directory"), "{told}");
    let (_, told) = refused(place.path(), Options::new().write(true));
    assert!(told.contains("directory"), "{told}");
    let (error, told) = refused(Path::new("a\0b"), Options::new());
    assert!(matches!(error, Error::Invalid { .. }) && told.contains("zero byte"), "{told}");
    let (error, _) = refused(&place.path().join("missing"), Options::new());
    assert_eq!(error.errno(), Some(libc::ENOENT));
    let (_, told) = refused(Path::new("/dev/null"), Options::new());
    assert!(told.contains("neither a regular file nor a block device"), "{told}");
    let fifo = place.path().join("fifo");
    run("mkfifo", &[fifo.to_str().unwrap()]).unwrap();
    // Opening it would wait for a writer.
    let (_, told) = refused(&fifo, Options::new());
    assert!(told.contains("neither a regular file"), "{told}");
}

#[test]
fn a_read_only_file_refuses_writes() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, BLOCK as u64, 6);
    for fixed in Fixed::all() {
        let policy = Arc::new(fixed);
        let file =
            Options::new().parameters(fixed.parameters()).policy(policy).open(&path).unwrap();
        let error = file.write_at(&[0; 10], 0).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBADF), "{fixed:?}: {error}");
    }
    check(&fs::read(&path).unwrap(), 0, 6);
}

#[test]
fn a_device_smaller_than_asked_ends_where_it_ends() {
    let device = match Loop::new(MIB) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    for fixed in Fixed::all() {
        let options = Options::new().write(true).direct(true).parameters(fixed.parameters());
        let file = options.policy(Arc::new(fixed)).open(&device.device).unwrap();
        assert_eq!(file.bytes().unwrap(), MIB);
        let mut buffer = Aligned::new(2 * BLOCK);
        assert_eq!(file.read_at(&mut buffer, MIB - BLOCK as u64).unwrap(), BLOCK, "{fixed:?}");
        assert_eq!(file.read_at(&mut buffer, 2 * MIB).unwrap(), 0, "{fixed:?}");
        let error = file.write_at(&buffer, MIB).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{fixed:?}: {error}");
    }
}

#[test]
fn a_misaligned_direct_request_says_what_would_do() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 4 * BLOCK as u64, 6);
    let Ok(file) = Options::new().write(true).direct(true).open(&path) else {
        return skip("no direct I/O here");
    };
    let told = file.write_at(&[0; 100], 3).unwrap_err().to_string();
    for word in ["100 bytes", "byte 3", "multiples of", "without direct I/O"] {
        assert!(told.contains(word), "{told}");
    }
    let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
    let (error, buffer) = pipeline.read_at(vec![0; 100], 3).unwrap_err();
    assert!(error.to_string().contains("use memory aligned so"), "{error}");
    assert_eq!(buffer.len(), 100);
}

#[test]
fn too_many_pieces_are_refused_and_not_cut_off() {
    let fake = Fake::new(BYTES, 1);
    let file = fake.open(fast(), Fixed::spin());
    let byte = [0u8];
    let error = file.write_vectored_at(&vec![IoSlice::new(&byte); 1025], 0).unwrap_err();
    assert!(error.to_string().contains("at most 1024"), "{error}");
    assert_eq!(fake.log().submitted.len(), 0);
}

#[test]
fn an_opener_may_open_and_register_others() {
    register("inner", Box::new(|_, _| Err(Error::invalid("inner", "reached"))));
    register(
        "outer",
        Box::new(|_, options| -> dwell::Result<Opened> {
            register("another", Box::new(|address, _| Err(Error::invalid(address, "no"))));
            options.open("inner:x").map(|_| unreachable!("it refuses"))
        }),
    );
    let error = File::open("outer:x").map(drop).unwrap_err();
    assert_eq!(error.to_string(), "inner: reached");
}
