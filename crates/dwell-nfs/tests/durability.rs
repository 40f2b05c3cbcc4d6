// SPDX-License-Identifier: MIT OR Apache-2.0
//! A commit that returns Ok has made everything durable, whatever was refused, dropped or restarted
//! before it.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::connection::Payload;
use dwell_nfs::file::{RemoteFile, Writer};
use dwell_nfs::nfs3::{Handle, Status};
use fake::{Call, Fake, Told};
use model::{Fault, Model};

const CHUNK: usize = 512;

/// Runs a future for so many steps and then drops it.
async fn for_steps<F: Future>(steps: u32, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = steps;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Does something with a writer of a new file of a model.
fn with_writer(model: &Model, work: impl AsyncFnOnce(&Writer)) {
    with_writer_over(1, model, work);
}

fn with_writer_over(connections: u32, model: &Model, work: impl AsyncFnOnce(&Writer)) {
    let server = model.serve();
    let id = model.put("x", b"");
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let options = format!("&size={CHUNK}&timeout=20&connections={connections}");
    let url = server.url("/e/x", &options).parse().unwrap();
    executor.block_on(async {
        let client = Client::mount(&tasks, &url).await.unwrap();
        let handle = Handle::new(&id.to_be_bytes()).unwrap();
        work(&Writer::new(RemoteFile::new(&client, handle, "x"))).await;
    });
}

/// Writes all of `data` in pieces.
async fn write(writer: &Writer, data: &[u8]) {
    for (place, piece) in data.chunks(CHUNK).enumerate() {
        let payload = Payload::new(piece.to_vec());
        writer.write((place * CHUNK) as u64, &payload).await.unwrap();
    }
}

fn is_write(call: &Call) -> bool {
    call.is_nfs(7)
}

#[test]
fn a_refused_resend_leaves_its_data_to_the_next_commit() {
    let data = common::noise(5 * CHUNK);
    for refused in 1..=5 {
        let model = Model::default();
        with_writer(&model, async |writer| {
            write(writer, &data).await;
            model.state().restart();
            let mut writes = 0;
            model.fail(move |call, _| {
                writes += u64::from(is_write(call));
                (is_write(call) && writes == refused).then_some(Fault::Refuse(28))
            });
            let error = writer.commit().await.unwrap_err();
            assert_eq!(error.status(), Some(Status::NOSPC));
            assert!(writer.uncommitted_bytes() > 0, "write {refused}");
            writer.commit().await.unwrap();
            assert_eq!(writer.uncommitted_bytes(), 0);
            assert!(model.at("x").unwrap().durable == data, "write {refused}");
        });
    }
}

#[test]
fn a_commit_dropped_at_any_point_loses_nothing() {
    let data = common::noise(4 * CHUNK);
    let mut steps = 0;
    loop {
        let model = Model::default();
        let mut over = false;
        with_writer(&model, async |writer| {
            write(writer, &data).await;
            model.state().restart();
            over = for_steps(steps, writer.commit()).await.is_some();
            writer.commit().await.unwrap();
            assert!(model.at("x").unwrap().durable == data, "dropped after {steps} steps");
        });
        if over {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 3, "a commit that sends again waits at least for COMMIT, WRITE, COMMIT");
}

#[test]
fn the_second_of_two_commits_waits_for_the_data_too() {
    let data = common::noise(4 * CHUNK);
    let model = Model::default();
    with_writer(&model, async |writer| {
        write(writer, &data).await;
        model.state().restart();
        let (mut first, mut second) = (pin!(writer.commit()), pin!(writer.commit()));
        let (mut done, mut second_done) = (false, false);
        poll_fn(|context| {
            done = done || first.as_mut().poll(context).map(Result::unwrap).is_ready();
            if !second_done && second.as_mut().poll(context).map(Result::unwrap).is_ready() {
                second_done = true;
                assert!(model.at("x").unwrap().durable == data, "Ok before the data is durable");
            }
            if done && second_done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
}

#[test]
fn data_sent_again_never_overwrites_later_writes() {
    let (old, new) = (common::noise(4 * CHUNK), vec![7; 4 * CHUNK]);
    // The later data is written before the commit, or when the commit has come so far.
    for steps in 0..12 {
        let model = Model::default();
        with_writer(&model, async |writer| {
            write(writer, &old).await;
            model.state().restart();
            let mut commit = pin!(writer.commit());
            if let Some(done) = for_steps(steps, commit.as_mut()).await {
                done.unwrap();
                commit.set(writer.commit());
            }
            let part = Payload::new(new[..2 * CHUNK].to_vec());
            // Across pieces that were written before.
            let mut later = pin!(writer.write(CHUNK as u64 / 2, &part));
            let (mut one, mut other) = (false, false);
            poll_fn(|context| {
                other = other || later.as_mut().poll(context).map(Result::unwrap).is_ready();
                one = one || commit.as_mut().poll(context).map(Result::unwrap).is_ready();
                if one && other { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            writer.commit().await.unwrap();
            let mut expected = old.clone();
            expected[CHUNK / 2..CHUNK / 2 + 2 * CHUNK].copy_from_slice(&new[..2 * CHUNK]);
            assert!(model.at("x").unwrap().durable == expected, "after {steps} steps");
        });
    }
}

#[test]
fn later_data_over_data_that_was_lost_wins() {
    let model = Model::default();
    with_writer(&model, async |writer| {
        write(writer, &[1; 3 * CHUNK]).await;
        model.state().restart();
        // In the server's second life: the first is sent again at the commit, without this.
        let part = Payload::new(vec![2; CHUNK]);
        writer.write(CHUNK as u64 + 100, &part).await.unwrap();
        writer.commit().await.unwrap();
        let durable = model.at("x").unwrap().durable;
        let expected = [vec![1; CHUNK + 100], vec![2; CHUNK], vec![1; CHUNK - 100]].concat();
        assert!(durable == expected);
    });
}

#[test]
fn of_lost_data_that_overlaps_the_newest_wins_also_when_a_resend_is_refused() {
    // Offset and length of each write; the number of a write is its data.
    let writes =
        [(0, 512), (512, 512), (1024, 512), (100, 512), (400, 300), (350, 100), (600, 500)];
    let mut expected = vec![0; 3 * CHUNK];
    for (number, (at, bytes)) in (1..).zip(writes) {
        expected[at..at + bytes].fill(number);
    }
    // The server forgets all before this write, and refuses that resend.
    for restart in 0..=writes.len() {
        for refused in 0..8 {
            let model = Model::default();
            with_writer(&model, async |writer| {
                for (place, (at, bytes)) in writes.into_iter().enumerate() {
                    if place == restart {
                        model.state().restart();
                    }
                    let data = Payload::new(vec![place as u8 + 1; bytes]);
                    writer.write(at as u64, &data).await.unwrap();
                }
                model.state().restart();
                let mut resends = 0;
                model.fail(move |call, _| {
                    resends += u64::from(is_write(call));
                    (is_write(call) && resends == refused).then_some(Fault::Refuse(28))
                });
                if writer.commit().await.is_err() {
                    assert!(writer.uncommitted_bytes() > 0);
                    model.state().restart();
                    writer.commit().await.unwrap();
                }
                let durable = model.at("x").unwrap().durable;
                assert!(durable == expected, "restart {restart}, refused {refused}");
            });
        }
    }
}

#[test]
fn writes_over_each_other_land_in_the_order_in_which_they_began() {
    // The second waits for the first; the third overlaps the second alone.
    let writes = [(0, 512), (256, 512), (600, 500)];
    let model = Model::default();
    with_writer(&model, async |writer| {
        let mut expected = vec![0; 1100];
        let mut writing = Vec::new();
        for (number, (at, bytes)) in (1..).zip(writes) {
            expected[at..at + bytes].fill(number);
            writing.push(Some(Box::pin(async move {
                writer.write(at as u64, &Payload::new(vec![number; bytes])).await.unwrap();
            })));
        }
        poll_fn(|context| {
            for place in &mut writing {
                if place.as_mut().is_some_and(|write| write.as_mut().poll(context).is_ready()) {
                    *place = None;
                }
            }
            if writing.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        writer.commit().await.unwrap();
        assert!(model.at("x").unwrap().durable == expected);
    });
}

#[test]
fn a_write_that_was_dropped_never_overwrites_a_later_one() {
    let model = Model::default();
    with_writer_over(2, &model, async |writer| {
        let mut lost = false;
        // The first copy of the first write is lost with its connection.
        model.fail(move |call, _| {
            (is_write(call) && !std::mem::replace(&mut lost, true)).then_some(Fault::RestartBefore)
        });
        let writes = || model.state().seen.iter().filter(|procedure| **procedure == 7).count();
        let tasks = writer.file().client().tasks();
        {
            let old = Payload::new(vec![1; CHUNK]);
            let mut old = pin!(writer.write(0, &old));
            let pending = poll_fn(|context| Poll::Ready(old.as_mut().poll(context).is_pending()));
            assert!(pending.await);
            while writes() == 0 {
                tasks.sleep(Duration::from_millis(1)).await;
            }
        }
        writer.write(0, &Payload::new(vec![2; CHUNK])).await.unwrap();
        // Lost, sent again, and the later one.
        while writes() < 3 {
            tasks.sleep(Duration::from_millis(1)).await;
        }
        writer.commit().await.unwrap();
        assert!(model.at("x").unwrap().durable == vec![2; CHUNK]);
    });
}

/// A server remembers the XIDs of what it carried out. A copy that the network kept back for long
/// may still arrive.
#[test]
fn a_copy_of_a_write_that_arrives_late_never_overwrites_a_later_one() {
    /// Copies of the write that are lost: more than after which it was once sent as another call.
    const LOST: u32 = 9;
    let model = Model::default();
    let id = model.put("x", b"");
    let mut done = std::collections::HashMap::new();
    let (mut first, mut lost): (Option<Call>, u32) = (None, 0);
    let served = model.clone();
    let server = Fake::start_datagrams(move |call| {
        if !is_write(call) {
            return served.tell(call);
        }
        if let Some(results) = done.get(&call.xid) {
            return Told::Results(Vec::clone(results));
        }
        if call.arguments.ends_with(&[1; 8]) && lost < LOST {
            first.get_or_insert_with(|| call.clone());
            lost += 1;
            return Told::Close;
        }
        let told = served.tell(call);
        if let Told::Results(results) = &told {
            done.insert(call.xid, results.clone());
        }
        if let Some(late) = first.take_if(|_| call.arguments.ends_with(&[2; 8]))
            && !done.contains_key(&late.xid)
        {
            served.tell(&late);
        }
        told
    });
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let url = server.url("/e/x", "&proto=udp&timeout=60").parse().unwrap();
    executor.block_on(async {
        let client = Client::mount(&tasks, &url).await.unwrap();
        let handle = Handle::new(&id.to_be_bytes()).unwrap();
        let writer = Writer::new(RemoteFile::new(&client, handle, "x"));
        // So that it knows how soon answers come.
        for _ in 0..20 {
            writer.write(0, &Payload::new(vec![3; CHUNK])).await.unwrap();
        }
        writer.write(0, &Payload::new(vec![1; CHUNK])).await.unwrap();
        writer.write(0, &Payload::new(vec![2; CHUNK])).await.unwrap();
        writer.commit().await.unwrap();
        assert!(client.health().counters.resends >= u64::from(LOST));
    });
    assert!(model.at("x").unwrap().durable == vec![2; CHUNK]);
}

/// Polls a commit beside writes, of which four are always under way: how many ended before it did.
async fn commit_beside_writes(writer: &Writer, place: impl Fn(u64) -> u64) -> u64 {
    let begin = |number: u64| {
        let data = Payload::new(vec![9; CHUNK]);
        let at = place(number);
        Box::pin(async move { writer.write(at, &data).await.unwrap() })
    };
    let mut begun = 4;
    let mut under_way: Vec<_> = (0..begun).map(begin).collect();
    let mut commit = pin!(writer.commit());
    poll_fn(|context| {
        for write in &mut under_way {
            while write.as_mut().poll(context).is_ready() {
                *write = begin(begun);
                begun += 1;
            }
        }
        assert!(begun < 2000, "the commit waits for what others go on writing");
        commit.as_mut().poll(context).map(|done| done.map(|_| begun).unwrap())
    })
    .await
}

#[test]
fn a_commit_ends_while_others_go_on_writing() {
    for lost in [false, true] {
        for over_itself in [false, true] {
            let model = Model::default();
            with_writer(&model, async |writer| {
                write(writer, &common::noise(2 * CHUNK)).await;
                if lost {
                    model.state().restart();
                }
                let beyond = 2 * CHUNK as u64;
                let place = |number| match over_itself {
                    true => 0,
                    false => beyond + number % 16 * CHUNK as u64,
                };
                commit_beside_writes(writer, place).await;
                let durable = model.at("x").unwrap().durable;
                let first = if over_itself { CHUNK } else { 0 };
                assert!(durable[first..2 * CHUNK] == common::noise(2 * CHUNK)[first..]);
            });
        }
    }
}

#[test]
fn a_commit_makes_data_durable_that_was_lost_and_then_written_over() {
    // The later data is written when the commit has come so far.
    for steps in 0..12 {
        let model = Model::default();
        with_writer(&model, async |writer| {
            write(writer, &[1; CHUNK]).await;
            model.state().restart();
            let mut commit = pin!(writer.commit());
            if for_steps(steps, commit.as_mut()).await.is_some() {
                return;
            }
            let later = Payload::new(vec![2; CHUNK]);
            let mut later = pin!(writer.write(0, &later));
            let mut written = false;
            poll_fn(|context| {
                written = written || later.as_mut().poll(context).map(Result::unwrap).is_ready();
                commit.as_mut().poll(context).map(Result::unwrap).map(drop)
            })
            .await;
            let durable = model.at("x").unwrap().durable;
            assert!(durable.len() == CHUNK && durable[0] != 0, "after {steps} steps: {durable:?}");
        });
    }
}
