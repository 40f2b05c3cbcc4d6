// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe user-space access: a controller serves a directory, and programs reach the files in it
//! through channels of shared memory, every command of which it checks.
#![deny(unsafe_code)]

pub mod fs;
pub mod grants;
