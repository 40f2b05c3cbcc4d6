// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that are longer than a transfer or a datagram: they are sent in parts, or refused at
//! once.

#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::connection::Payload;
use dwell_nfs::file::{RemoteFile, Writer};
use dwell_nfs::nfs3::Handle;
use fake::Fake;
use model::Model;

const TRANSFER: u32 = 8192;

/// Does something with a client of a model, over UDP or TCP.
fn with_client(model: &Model, udp: bool, work: impl AsyncFnOnce(&Rc<Client>)) {
    let served = model.clone();
    let server = match udp {
        true => Fake::start_datagrams(move |call| served.tell(call)),
        false => model.serve(),
    };
    let protocol = if udp { "udp" } else { "tcp" };
    let options = format!("&proto={protocol}&size={TRANSFER}&timeout=20");
    let url = server.url("/e", &options).parse().unwrap();
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    executor.block_on(async {
        let client = Client::mount(&tasks, &url).await.unwrap();
        work(&client).await;
        assert_eq!(client.health().counters.reconnects, 0);
    });
}

#[test]
fn data_longer_than_a_transfer_is_written_and_read_in_parts() {
    let data: Vec<u8> = (0..93_567u32).map(|at| (at * 7 % 251) as u8).collect();
    for udp in [true, false] {
        let model = Model::default();
        let id = model.put("x", b"");
        let longest = Arc::new(Mutex::new([0; 2]));
        let seen = longest.clone();
        model.fail(move |call, _| {
            for (place, procedure) in [6, 7].into_iter().enumerate() {
                if call.is_nfs(procedure) {
                    // Behind the handle and the offset.
                    let count = call.arguments[20..].first_chunk().unwrap();
                    let longest = &mut seen.lock().unwrap()[place];
                    *longest = u32::from_be_bytes(*count).max(*longest);
                }
            }
            None
        });
        with_client(&model, udp, async |client| {
            let handle = Handle::new(&id.to_be_bytes()).unwrap();
            let file = RemoteFile::new(client, handle, "x");
            let writer = Writer::new(file.clone());
            writer.write(0, &Payload::new(data.clone())).await.unwrap();
            writer.commit().await.unwrap();
            assert!(model.at("x").unwrap().durable == data);
            assert!(file.read(0, data.len() as u32).await.unwrap().as_ref() == data);
            assert!(file.read(0, 200_000).await.unwrap().as_ref() == data);
        });
        assert_eq!(*longest.lock().unwrap(), [TRANSFER; 2], "of READ and WRITE, udp {udp}");
    }
}

#[test]
fn a_request_longer_than_a_datagram_fails_at_once_and_others_go_on() {
    let model = Model::default();
    with_client(&model, true, async |client| {
        let target = vec![b'a'; 70_000];
        let made = client.make_link(client.root(), b"link", &target, &"link");
        let (made, null) = (made.await, client.call_null().await);
        null.unwrap();
        let error = made.unwrap_err();
        assert_eq!(error.errno(), libc::EMSGSIZE, "{error}");
        assert!(error.to_string().contains("65507"), "{error}");
    });
    assert!(model.at("link").is_none());
}
