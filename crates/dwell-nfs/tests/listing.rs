// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of directories that change meanwhile: each name once, or a clear error.

#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;

use std::sync::atomic::{AtomicU32, Ordering};

use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::nfs3::Handle;
use dwell_nfs::url::Url;
use fake::{Call, Fake, Told, file_attributes, opaque, ordinary, words};

const BAD_COOKIE: u32 = 10_003;

/// A part of a listing: names with their cookies, and whether it is the last.
fn part(entries: &[(&str, u32)], ends: bool) -> Vec<u8> {
    let mut out = words(&[0, 0, 9, 9]);
    for (name, cookie) in entries {
        out.extend(words(&[1, 0, 5]));
        out.extend(opaque(name.as_bytes()));
        out.extend(words(&[0, *cookie, 1]));
        out.extend([file_attributes(1, 1), words(&[1]), opaque(b"file")].concat());
    }
    out.extend(words(&[0, u32::from(ends)]));
    out
}

/// Lists a directory of a server that answers by `tell`, which is told the number of the listing
/// and its cookie, and how often the listing was begun.
fn listed(
    tell: impl Fn(u32, u32) -> Vec<u8> + Send + Sync + 'static,
) -> (dwell_nfs::Result<Vec<String>>, u32) {
    let begun = std::sync::Arc::new(AtomicU32::new(0));
    let counted = begun.clone();
    let server = Fake::start(move |call: &Call| {
        if !call.is_nfs(17) {
            return ordinary(call).map_or(Told::Close, Told::Results);
        }
        // Behind the handle, which is `root`, and the upper half of the cookie.
        let cookie = u32::from_be_bytes(call.arguments[12..16].try_into().unwrap());
        if cookie == 0 {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Told::Results(tell(counted.load(Ordering::Relaxed), cookie))
    });
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let url: Url = server.url("/e", "&timeout=20").parse().unwrap();
    let names = executor.block_on(async {
        let client = Client::mount(&tasks, &url).await?;
        let items = client.list(Handle::new(b"root").unwrap(), &"d").await?;
        let name = |item: dwell_nfs::directory::Item| String::from_utf8(item.name).unwrap();
        Ok(items.into_iter().map(name).collect())
    });
    (names, begun.load(Ordering::Relaxed))
}

#[test]
fn a_listing_that_the_server_calls_out_of_date_is_begun_anew() {
    let (names, begun) = listed(|listing, cookie| match (listing, cookie) {
        (1, 0) => part(&[("a", 4), ("gone", 5)], false),
        (1, _) => words(&[BAD_COOKIE, 0]),
        (_, 0) => part(&[("a", 4)], false),
        _ => part(&[("b", 6)], true),
    });
    assert_eq!(names.unwrap(), ["a", "b"]);
    assert_eq!(begun, 2);
}

#[test]
fn a_listing_that_is_always_out_of_date_is_left() {
    let (names, begun) = listed(|_, cookie| match cookie {
        0 => part(&[("a", 4)], false),
        _ => words(&[BAD_COOKIE, 0]),
    });
    let line = names.unwrap_err().to_string();
    assert!(line.contains("the directory changed while it was listed"), "{line}");
    assert!((2..20).contains(&begun), "{begun}");
}

#[test]
fn entries_that_a_server_repeats_are_listed_once() {
    // As nfs-ganesha does on a tmpfs, which begins again where the entry of a cookie is gone.
    for repeats_in_one_part in [true, false] {
        let (names, begun) = listed(move |listing, cookie| match (listing, cookie) {
            (1, 0) if repeats_in_one_part => {
                part(&[("f2", 4), ("f1", 3), ("f2", 4), ("f1", 3)], true)
            }
            (1, 0) => part(&[("f2", 4), ("f1", 3)], false),
            (1, _) => part(&[("f2", 4), ("f0", 2)], true),
            _ => part(&[("f2", 4), ("f1", 3)], true),
        });
        assert_eq!(names.unwrap(), ["f2", "f1"], "in one part: {repeats_in_one_part}");
        assert_eq!(begun, 2);
    }
}

#[test]
fn entries_that_a_server_always_repeats_are_refused() {
    let (names, begun) = listed(|_, _| part(&[("f2", 4), ("f1", 3), ("f2", 4)], true));
    let line = names.unwrap_err().to_string();
    assert!(line.starts_with("d: listing: the server lists the same entries again"), "{line}");
    assert!((2..20).contains(&begun), "{begun}");
}

#[test]
fn a_refusal_of_the_first_part_is_not_tried_again() {
    let (names, begun) = listed(|_, _| words(&[BAD_COOKIE, 0]));
    assert!(names.is_err());
    assert_eq!(begun, 1);
}
