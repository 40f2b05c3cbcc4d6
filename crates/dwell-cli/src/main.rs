// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `dwell` program.

// Its unwinder is linked in: a shared one would cost every `dwell run` as much as the C library
// does.
#[cfg(static_unwinder)]
#[link(name = "gcc_eh", kind = "static")]
unsafe extern "C" {}

fn main() -> std::process::ExitCode {
    dwell_cli::main()
}
