// SPDX-License-Identifier: MIT OR Apache-2.0
//! `include/dwell.h` is what these sources generate. `DWELL_WRITE_HEADER=1` writes it anew.

use std::path::Path;

const FILES: [&str; 7] = ["failure", "options", "file", "queue", "report", "map/options", "map"];

const HEADER: &str = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dwell.h: storage I/O that decides per request whether to busy-wait or to block.
 *
 * Link with `pkg-config --libs dwell`, or statically with `pkg-config --static --libs dwell`.
 *
 * Errors: a call that fails returns -1 and sets errno; dwell_last_error then says in words what
 * is wrong with which file or argument and what to do. Sizes and offsets are bytes, times are
 * nanoseconds. Nothing is printed, and no signal handler is installed but by dwell_map.
 *
 * Threads may use one dwell_file at once; a dwell_queue belongs to the thread that made it.
 * No call is a cancellation point: a thread that is cancelled meanwhile ends at its next one.
 * After fork(2) the child may use files, and close queues; see dwell_queue_wait.
 *
 * Generated from crates/dwell-capi/src; change it there.
 */";

const STARTS: &str = "
/** To start options from: dwell_options options = DWELL_OPTIONS_INIT; */
#define DWELL_OPTIONS_INIT { .size = sizeof(dwell_options) }

/** To start from before dwell_file_info. */
#define DWELL_INFO_INIT { .size = sizeof(dwell_info) }

/** To start from before dwell_file_stats. */
#define DWELL_STATS_INIT { .size = sizeof(dwell_stats) }

/** To start map options from; a budget has to be added. */
#define DWELL_MAP_OPTIONS_INIT { .size = sizeof(dwell_map_options) }

/** To start from before dwell_region_stats_of. */
#define DWELL_REGION_STATS_INIT { .size = sizeof(dwell_region_stats) }";

fn generated() -> String {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut config = cbindgen::Config {
        header: Some(HEADER.into()),
        after_includes: Some(STARTS.into()),
        include_guard: Some("DWELL_H".into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "sys/types.h", "sys/uio.h"].map(String::from).into(),
        language: cbindgen::Language::C,
        cpp_compat: true,
        style: cbindgen::Style::Both,
        usize_is_size_t: true,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        line_length: 100,
        ..cbindgen::Config::default()
    };
    for (rust, c) in [
        ("File", "dwell_file"),
        ("Options", "dwell_options"),
        ("Queue", "dwell_queue"),
        ("Completion", "dwell_completion"),
        ("Info", "dwell_info"),
        ("Stats", "dwell_stats"),
        ("Latency", "dwell_latency"),
        ("MapOptions", "dwell_map_options"),
        ("Region", "dwell_region"),
        ("RegionStats", "dwell_region_stats"),
        ("Pin", "dwell_pin"),
        ("iovec", "struct iovec"),
    ] {
        config.export.rename.insert(rust.into(), c.into());
    }
    let files = FILES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, file| {
        builder.with_src(src.join(format!("{file}.rs")))
    });
    let mut text = Vec::new();
    files.generate().expect("the sources are Rust").write(&mut text);
    let text = String::from_utf8(text).expect("sources are UTF-8");
    // What Rust wants said of unsafe functions, the text above it has said to C.
    let mut kept: Vec<&str> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == " * # Safety" {
            while kept.last() == Some(&" *") {
                kept.pop();
            }
            kept.push(lines.by_ref().find(|line| *line == " */").expect("a comment ends"));
        } else {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/dwell.h");
    let generated = generated();
    if std::env::var_os("DWELL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let different = kept.lines().zip(generated.lines()).find(|(kept, new)| kept != new);
    assert!(
        kept == generated,
        "{}: not what src/ says, first here: {different:?}; DWELL_WRITE_HEADER=1 cargo test -p \
         dwell-capi --test header writes it",
        path.display()
    );
}
