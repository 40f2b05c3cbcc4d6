// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that has all commands; `dwell` becomes it.

fn main() -> std::process::ExitCode {
    dwell_cli::main()
}
