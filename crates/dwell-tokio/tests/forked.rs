// SPDX-License-Identifier: MIT OR Apache-2.0
//! A forked child is told that its parent's files are not its own, and can open its own.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dwell::ErrorKind;
use dwell::executor::Executor;
use dwell_tokio::File;

const ADDRESS: &str = "emu:latency=5us,size=64KiB";

fn in_the_child(of_parent: &File) -> Result<(), &'static str> {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(ended) = pin!(of_parent.read_at(vec![0; 512], 0)).poll(&mut context) else {
        return Err("it waits for a thread that is not there");
    };
    match ended {
        Err(failed) if failed.error.kind() == ErrorKind::Ended => {}
        _ => return Err("another thread carried it out"),
    }
    let executor = Executor::new().map_err(|_| "no executor")?;
    let read = executor.block_on(async {
        let file = File::open(ADDRESS).await?;
        Ok::<_, dwell::Error>(file.read_at(vec![1; 512], 0).await?)
    });
    match read {
        Ok((512, buffer)) if buffer == [0; 512] => Ok(()),
        _ => Err("a file of its own cannot be read"),
    }
}

#[test]
fn a_forked_child_opens_files_of_its_own() {
    let executor = Executor::new().unwrap();
    let file = executor.block_on(File::open(ADDRESS)).unwrap();
    executor.block_on(file.read_at(vec![0; 512], 0)).unwrap();
    // SAFETY: the child runs what follows and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = match in_the_child(&file) {
            Ok(()) => 0,
            Err(why) => {
                eprintln!("in the child: {why}");
                1
            }
        };
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: a live int.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    executor.block_on(file.read_at(vec![0; 512], 0)).unwrap();
}
