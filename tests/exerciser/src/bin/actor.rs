// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program whose calls are looked at. It knows nothing of Dwell.
#![allow(missing_docs)]

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, script, records, directory] = arguments.as_slice() else {
        eprintln!("Usage: dwell-exerciser-actor SCRIPT RECORDS DIRECTORY");
        std::process::exit(2);
    };
    dwell_exerciser::actor::run(script.as_ref(), records.as_ref(), directory.as_ref());
}
