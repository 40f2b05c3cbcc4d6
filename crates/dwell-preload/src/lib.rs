// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts Dwell beneath programs that do not know of it.
