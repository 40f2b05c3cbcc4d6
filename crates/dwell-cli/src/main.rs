// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `dwell` program.

fn main() -> std::process::ExitCode {
    dwell_cli::main()
}
