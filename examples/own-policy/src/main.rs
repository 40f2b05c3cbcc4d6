// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `dwell` command with one more policy: `budget`.
//!
//! ```text
//! cargo run --release -p own-policy -- bench io --policies block,smartcon,budget
//! cargo run --release -p own-policy -- explain --policy budget FILE --size 16k
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use own_policy::Budget;

fn main() -> ExitCode {
    if let Err(error) = dwell::policies::register(Arc::new(Budget { spin_ns: 20_000 })) {
        eprintln!("own-policy: {error}");
        return ExitCode::FAILURE;
    }
    dwell_cli::main()
}
