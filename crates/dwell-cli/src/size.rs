// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and fractions as people write them on a command line.

pub use dwell::spelling::{bytes, fraction};

/// Bytes of a request: at least one, at most what one request can move.
pub fn request_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("a request has at least 1 byte".into()),
        bytes if bytes > dwell::file::MAX_TRANSFER_BYTES as u64 => {
            Err("one request moves less than 2 GiB".into())
        }
        bytes => Ok(bytes),
    }
}

/// Bytes of data to move: some.
pub fn data_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("there must be at least 1 byte to move".into()),
        bytes => Ok(bytes),
    }
}

/// Bytes of a device to make: enough for a file system.
pub fn device_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        small if small < 16 << 20 => Err("a file system wants 16 MiB at least".into()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_neither_empty_nor_endless() {
        assert_eq!(request_bytes("4k"), Ok(4096));
        assert!(request_bytes("0").is_err() && request_bytes("2G").is_err());
    }
}
