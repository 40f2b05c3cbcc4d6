// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets that tasks wait for: low-water marks, ends, errors, several waiters.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use common::{executor, tcp};
use dwell::executor::Elapsed;

#[test]
fn a_low_water_mark_makes_one_wake_up_of_many_arrivals() {
    let (near, mut far) = tcp();
    let executor = executor();
    let near = executor.watch(near).unwrap();
    let sender = thread::spawn(move || {
        for piece in 0..100u8 {
            far.write_all(&[piece; 10]).unwrap();
            thread::sleep(Duration::from_micros(200));
        }
    });
    let mut wakes = 0;
    executor.block_on(async {
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        while got.len() < 1000 {
            near.readable((1000 - got.len()).min(500)).await;
            wakes += 1;
            let now = near.try_read_with(|mut near| near.read(&mut buffer)).unwrap();
            got.extend_from_slice(&buffer[..now]);
            near.drained();
        }
        assert!(got.chunks(10).zip(0..).all(|(piece, at)| piece == [at; 10]));
    });
    // One, where this thread came back too late for the first.
    assert!(wakes <= 2, "{wakes}");
    assert!(executor.counts().parks <= 4, "{:?}", executor.counts());
    sender.join().unwrap();
}

#[test]
fn the_end_and_errors_of_a_connection_wake_in_spite_of_the_mark() {
    let executor = executor();
    // What came before the end, less than the mark, and then the end, in every order.
    for late in [false, true] {
        let (near, mut far) = tcp();
        let near = executor.watch(near).unwrap();
        let sender = thread::spawn(move || {
            far.write_all(b"abc").unwrap();
            if late {
                thread::sleep(Duration::from_millis(3));
            }
        });
        if !late {
            sender.join().unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        executor.block_on(async {
            near.readable(100).await;
            let mut buffer = [0; 100];
            assert_eq!(near.try_read_with(|mut near| near.read(&mut buffer)).unwrap(), 3);
            near.drained();
            near.readable(97).await;
            assert_eq!(near.try_read_with(|mut near| near.read(&mut buffer)).unwrap(), 0);
        });
    }
    let (near, far) = tcp();
    let near = executor.watch(near).unwrap();
    let waits = async { near.readable(1000).await };
    let reset = async {
        executor.sleep(Duration::from_nanos(1_000_000)).await;
        resets_when_closed(&far);
        drop(far);
    };
    executor.block_on(async {
        reset.await;
        waits.await;
        let error = near.try_read_with(|mut near| near.read(&mut [0; 10])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

/// Has the close of a socket reset its connection.
fn resets_when_closed(socket: &TcpStream) {
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: an open socket and a live structure of this size.
    let rc = unsafe {
        let size = size_of::<libc::linger>() as u32;
        let value = (&raw const now).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size)
    };
    assert_eq!(rc, 0);
}

#[test]
fn a_lowered_mark_that_is_reached_already_does_not_wait() {
    let (near, mut far) = tcp();
    let executor = executor();
    let near = executor.watch(near).unwrap();
    far.write_all(&[1; 50]).unwrap();
    executor.block_on(async {
        let high = executor.timeout(Duration::from_nanos(5_000_000), near.readable(60));
        assert_eq!(high.await, Err(Elapsed));
        near.readable(50).await;
        let mut buffer = [0; 100];
        assert_eq!(near.try_read_with(|mut near| near.read(&mut buffer)).unwrap(), 50);
        let again = executor.timeout_at(
            executor.now() + 5_000_000,
            near.read_with(|mut near| near.read(&mut buffer)),
        );
        assert!(again.await.is_err());
        far.write_all(&[2; 7]).unwrap();
        assert_eq!(near.read_with(|mut near| near.read(&mut buffer)).await.unwrap(), 7);
    });
}

#[test]
fn datagrams_come_one_by_one_whatever_the_mark() {
    let (near, far) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    near.set_nonblocking(true).unwrap();
    let to = near.local_addr().unwrap();
    let executor = executor();
    let near = executor.watch(near).unwrap();
    for byte in 0..5u8 {
        far.send_to(&[byte], to).unwrap();
    }
    executor.block_on(async {
        for expected in 0..5u8 {
            near.readable(1000).await;
            let mut buffer = [0; 10];
            let got = near.try_read_with(|near| near.recv(&mut buffer)).unwrap();
            assert_eq!(buffer[..got], [expected]);
        }
        let none = near.read_with(|near| near.recv(&mut [0; 10]));
        assert!(executor.timeout(Duration::from_nanos(1_000_000), none).await.is_err());
    });
}

#[test]
fn a_full_socket_is_waited_for_until_it_takes_more() {
    let (near, mut far) = tcp();
    let executor = executor();
    let near = executor.watch(near).unwrap();
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        all
    });
    let data: Vec<u8> = (0..20 << 20).map(|at: u32| (at % 251) as u8).collect();
    executor.block_on(async {
        let mut left = &data[..];
        while !left.is_empty() {
            let sent = near.write_with(|mut near| near.write(left)).await.unwrap();
            left = &left[sent..];
        }
    });
    drop(near.into_inner());
    assert!(reader.join().unwrap() == data);
}

#[test]
fn a_regular_file_or_the_same_socket_twice_cannot_be_watched() {
    let executor = executor();
    let file = tempfile::tempfile().unwrap();
    assert_eq!(executor.watch(file).unwrap_err().raw_os_error(), Some(libc::EPERM));
    let (near, _far) = tcp();
    let watched = executor.watch(&near).unwrap();
    assert_eq!(executor.watch(&near).unwrap_err().kind(), ErrorKind::AlreadyExists);
    drop(watched);
    executor.watch(&near).unwrap();
}

#[test]
fn several_tasks_may_wait_for_one_socket_and_one_of_them_leave() {
    let (near, mut far) = tcp();
    let executor = executor();
    let near = Rc::new(executor.watch(near).unwrap());
    let wait = || {
        let near = near.clone();
        executor.spawn(async move { near.readable(1).await })
    };
    let (one, two, three) = (wait(), wait(), wait());
    executor.block_on(executor.sleep(Duration::from_nanos(1_000_000)));
    drop(two);
    far.write_all(b"x").unwrap();
    executor.block_on(async {
        one.await;
        three.await;
    });
}
