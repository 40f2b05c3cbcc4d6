// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves that the kernel refuses, in part or whole, and the stack that a fault takes.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::*;
use crate::options::{Access, Ahead, Faults, Options};
use crate::region::{Mode, Region};

/// A region without a handler, and the directory of its file.
fn shared(access: Access, pages: usize, budget: usize) -> Option<(tempfile::TempDir, Shared)> {
    opened("", pages, &Options::new(budget * PAGE_BYTES).access(access))
}

/// The same with all options, over a device that is named by `source` and the file.
fn opened(source: &str, pages: usize, options: &Options) -> Option<(tempfile::TempDir, Shared)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![1; pages * PAGE_BYTES]).unwrap();
    let address = format!("{source}{}", path.display());
    let write = options.access == Access::Shared;
    let file = Arc::new(dwell::Options::new().write(write).open(&address).unwrap());
    match crate::open::paged(&file, options) {
        Ok(shared) => Some((dir, shared)),
        Err(error) => {
            println!("SKIP: {error}");
            None
        }
    }
}

fn byte(sh: &Shared, page: u32) -> *mut u8 {
    sh.area.at(page as usize) as *mut u8
}

/// Takes a present page out to be moved, as the choice of victims does.
fn claim(sh: &Shared, page: u32) {
    let mut books = sh.lock();
    assert_eq!(sh.pages.state(page), State::Present);
    books.frames.unlink(sh.pages.frame(page));
    sh.pages.set(page, State::Moving, 0);
}

#[test]
fn a_fault_uses_less_than_half_of_its_stack() {
    for access in [Access::ReadOnly, Access::Shared] {
        let Some((_dir, sh)) = shared(access.clone(), 256, 16) else { return };
        for registered in [false, true] {
            let mut thread_queue = sh.guests[0].lock().unwrap();
            if registered {
                let queue = sh.file.source().handler_queue(sh.depth).unwrap().unwrap();
                let (depth, queue) = (sh.depth, Some(queue.into_inner()));
                *thread_queue = ThreadQueue::new(0, queue, depth, 0, sh.writes);
                thread_queue.stack = Some(crate::stack::Stack::new().unwrap());
            }
            for round in 0..2_000u32 {
                let page = if round % 3 == 0 { round * 7 % 256 } else { round % 256 };
                sh.hints.publish(u64::from(round * 11 % 256) * PAGE_BYTES as u64);
                thread_queue
                    .on_stack(|thread_queue| thread_queue.fault(&sh, page, clock::now()))
                    .unwrap();
                if sh.writes && sh.pages.state(page) == State::Present {
                    // SAFETY: a present page: nothing moves pages but this thread queue.
                    unsafe { byte(&sh, page).write_volatile(round as u8) };
                }
            }
            let used = thread_queue.stack.as_ref().unwrap().used();
            println!("{access:?}, registered: {registered}: {used} bytes");
            assert!(used > 0 && used < crate::stack::STACK_BYTES / 2, "{used} bytes");
            assert!(thread_queue.drain(&sh, clock::now() + 60_000_000_000));
        }
    }
}

#[test]
fn pages_that_a_partial_move_left_behind_are_present_and_keep_what_was_written() {
    for (access, errno) in [(Access::Shared, libc::EBUSY), (Access::Shared, libc::EAGAIN)] {
        let Some((_dir, sh)) = shared(access, 16, 16) else { return };
        let mut thread_queue = sh.guests[0].lock().unwrap();
        for page in 0..12 {
            thread_queue.fault(&sh, page, clock::now()).unwrap();
        }
        let first = (0..4).find(|page| sh.pages.frame(page + 7) == sh.pages.frame(*page) + 7);
        let Some(first) = first else { panic!("no run of frames") };
        (first..first + 8).for_each(|page| claim(&sh, page));
        // SAFETY: present pages of the region.
        (first..first + 8).for_each(|page| unsafe { byte(&sh, page).write_volatile(9) });
        let stops = sh.pool.at(sh.pages.frame(first + 3) as usize);
        sh.uffd.refusals.set(Some((stops..stops + PAGE_BYTES, errno)));
        assert_eq!(thread_queue.evict_run(&sh, first, 8), 0);
        sh.uffd.refusals.set(None);
        for page in first..first + 8 {
            let word = sh.pages.get(page);
            let expected = if page < first + 3 { State::Standby } else { State::Present };
            assert_eq!((State::of(word), word & DIRTY != 0), (expected, page < first + 3));
            thread_queue.fault(&sh, page, clock::now()).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { byte(&sh, page).read_volatile() }, 9);
            assert_eq!(thread_queue.written(&sh, page, 1), 1);
        }
    }
}

#[test]
fn a_changed_private_page_whose_move_back_is_answered_eagain_keeps_its_data() {
    let private = Access::Private { spill: None };
    let Some((_dir, sh)) = shared(private, 16, 16) else { return };
    let mut thread_queue = sh.guests[0].lock().unwrap();
    for page in 0..16 {
        thread_queue.fault(&sh, page, clock::now()).unwrap();
    }
    claim(&sh, 3);
    let written = thread_queue.written(&sh, 3, 1);
    assert_eq!(written, 0);
    // Written to between the look at the page and its move.
    // SAFETY: a present page of the region.
    unsafe { byte(&sh, 3).write_volatile(77) };
    sh.uffd.refusals.set(Some((sh.area.at(0)..sh.area.at(16), libc::EAGAIN)));
    thread_queue.evict_unwritten(&sh, 3, 1, written);
    // Frames are wanted for other pages: this one's is not to be had.
    for page in (0..16).filter(|page| *page != 3) {
        if sh.pages.state(page) == State::Present {
            claim(&sh, page);
            let written = thread_queue.written(&sh, page, 1);
            thread_queue.evict_unwritten(&sh, page, 1, written);
        }
    }
    let mut books = sh.lock();
    while sh.take(&mut books, 1).is_some() {}
    drop(books);
    sh.uffd.refusals.set(None);
    thread_queue.fault(&sh, 3, clock::now()).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { byte(&sh, 3).read_volatile() }, 77);
    // It still counts as written: nothing drops it afterwards either.
    assert_eq!(thread_queue.written(&sh, 3, 1), 1);
}

/// A region of which the first `pages` were written to and have left, and its file.
fn written_out(source: &str, pages: u32) -> Option<(tempfile::TempDir, Shared)> {
    let options = Options::new(64 * PAGE_BYTES).access(Access::Shared).ahead(Ahead::Nothing);
    let (dir, sh) = opened(source, 64, &options)?;
    let mut thread_queue = sh.guests[0].lock().unwrap();
    for page in 0..pages {
        while thread_queue.fault(&sh, page, clock::now()).is_err() {}
        // SAFETY: a present page of the region.
        unsafe { byte(&sh, page).write_volatile(2) };
    }
    // These may be at work.
    for page in pages..pages + 4 {
        while thread_queue.fault(&sh, page, clock::now()).is_err() {}
    }
    while (0..pages).any(|page| sh.pages.state(page) == State::Present) {
        thread_queue.evict(&sh, 1);
    }
    assert_eq!(sh.lock().frames.len(Kind::DIRTY), pages);
    drop(thread_queue);
    Some((dir, sh))
}

fn first_bytes(dir: &tempfile::TempDir) -> Vec<u8> {
    let bytes = std::fs::read(dir.path().join("data")).unwrap();
    bytes.iter().step_by(PAGE_BYTES).copied().collect()
}

#[test]
fn written_pages_next_to_each_other_go_back_together() {
    let Some((dir, sh)) = written_out("", 48) else { return };
    let mut thread_queue = sh.guests[0].lock().unwrap();
    // More than there are requests in one go.
    assert_eq!(thread_queue.write_back(&sh), 48);
    assert_eq!(first_bytes(&dir), [[2; 48].as_slice(), &[1; 16]].concat());
    assert_eq!(sh.lock().frames.len(Kind::DIRTY), 0);
}

#[test]
fn pages_that_are_refused_together_go_back_one_by_one() {
    // Nearly every run is refused in the end, and no page for ever.
    let Some((dir, sh)) = written_out("emu:latency=1us,error-every=2,file=", 48) else { return };
    let mut thread_queue = sh.guests[0].lock().unwrap();
    let (mut goes, mut alone) = (0, false);
    while sh.lock().frames.len(Kind::DIRTY) > 0 {
        thread_queue.write_back(&sh);
        alone |= thread_queue.writes_alone > 0;
        goes += 1;
        assert!(goes < 1_000);
    }
    assert_eq!(first_bytes(&dir), [[2; 48].as_slice(), &[1; 16]].concat());
    // One refusal of all together, then one of each that was refused by itself.
    assert!(alone && sh.counters.write_errors.load(std::sync::atomic::Ordering::Relaxed) > 0);
}

#[test]
fn a_page_for_which_the_kernel_has_no_memory_is_refused_by_the_handler_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![1; 256 * PAGE_BYTES]).unwrap();
    let options = Options::new(256 * PAGE_BYTES).faults(Faults::Thread).ahead(Ahead::Nothing);
    let file = dwell::Options::new().open(&path).unwrap();
    let region = match Region::open(file, &options) {
        Ok(region) => region,
        Err(error) => return println!("SKIP: {error}"),
    };
    let Mode::Paged { shared: sh, .. } = &region.mode else { unreachable!() };
    for (first, area) in [(1, &sh.pool), (200, &sh.area)] {
        sh.uffd.refusals.set(Some((area.at(0)..area.at(256), libc::ENOMEM)));
        let (tell, told) = std::sync::mpsc::channel();
        let address = sh.area.at(first);
        std::thread::spawn(move || {
            // A few frames were made ready before.
            let mut tries = (0..50).map(|page| given_to_a_call(address + page * PAGE_BYTES));
            tell.send(tries.position(|errno| errno == Some(libc::EFAULT)))
        });
        let refused = told.recv_timeout(std::time::Duration::from_secs(20));
        let page = first + refused.unwrap().expect("a page that is refused");
        sh.uffd.refusals.set(None);
        region.prefault(page * PAGE_BYTES..page * PAGE_BYTES + 1).unwrap();
        assert_eq!(given_to_a_call(sh.area.at(page)), None);
    }
}

/// The error number of a call that is given a byte of memory. An access would raise SIGBUS where
/// the call fails.
fn given_to_a_call(address: usize) -> Option<i32> {
    let (_reader, writer) = std::io::pipe().unwrap();
    let writer = std::os::fd::AsRawFd::as_raw_fd(&writer);
    // SAFETY: the kernel reads what is there, or says that it cannot.
    let rc = unsafe { libc::write(writer, address as *const libc::c_void, 1) };
    (rc != 1).then(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}
