// SPDX-License-Identifier: MIT OR Apache-2.0
//! External data representation (RFC 4506): what a peer wrote is read where it lies, and every
//! length is held against a bound before it is used.

/// The fault in bytes that should have been a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message ends within a field.
    #[error("{field}: {needs} bytes are needed, {left} are left")]
    Short {
        /// Which field.
        field: &'static str,
        /// How many bytes it needs.
        needs: usize,
        /// How many are left.
        left: usize,
    },
    /// A length or a count is beyond what the field may have.
    #[error("{field}: {length} is more than {most}")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// What the message says.
        length: u32,
        /// The bound.
        most: u32,
    },
    /// A number that means nothing here.
    #[error("{field}: {value} means nothing here")]
    Value {
        /// Which field.
        field: &'static str,
        /// What the message says.
        value: u32,
    },
}

/// Result of reading.
pub type Result<T> = std::result::Result<T, Malformed>;

/// Bytes that fill up `length` to a multiple of four.
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// Reads a message from its beginning. Variable parts are borrowed from it.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// From the beginning of `message`.
    pub const fn new(message: &'a [u8]) -> Self {
        Reader { rest: message }
    }

    /// What was not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// So many bytes.
    pub fn bytes(&mut self, field: &'static str, needs: usize) -> Result<&'a [u8]> {
        let left = self.rest.len();
        let (taken, rest) =
            self.rest.split_at_checked(needs).ok_or(Malformed::Short { field, needs, left })?;
        self.rest = rest;
        Ok(taken)
    }

    /// A fixed number of bytes.
    pub fn fixed<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let left = self.rest.len();
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(Malformed::Short { field, needs: N, left })?;
        self.rest = rest;
        Ok(*taken)
    }

    /// An unsigned integer.
    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        self.fixed(field).map(u32::from_be_bytes)
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        self.fixed(field).map(u64::from_be_bytes)
    }

    /// A boolean: 0 or 1.
    pub fn bool(&mut self, field: &'static str) -> Result<bool> {
        match self.u32(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Malformed::Value { field, value }),
        }
    }

    /// A length or a count, at most `most`.
    pub fn count(&mut self, field: &'static str, most: u32) -> Result<usize> {
        let length = self.u32(field)?;
        match length <= most {
            true => Ok(length as usize),
            false => Err(Malformed::TooLong { field, length, most }),
        }
    }

    /// Bytes of a variable length, at most `most`, and their padding.
    pub fn opaque(&mut self, field: &'static str, most: u32) -> Result<&'a [u8]> {
        let length = self.count(field, most)?;
        let taken = self.bytes(field, length)?;
        self.bytes(field, padding(length))?;
        Ok(taken)
    }
}

/// Appends values to a message.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub const fn new(out: &'a mut Vec<u8>) -> Self {
        Writer { out }
    }

    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Bytes of a fixed length, with their padding.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(&[0; 3][..padding(bytes.len())]);
    }

    /// Bytes of a variable length.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// A value that may be there.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.u32(7);
        writer.u64(1 << 40);
        writer.bool(true);
        writer.opaque(b"hello");
        writer.optional(Some(3), Writer::u32);
        let mut reader = Reader::new(&out);
        assert_eq!(reader.u32("a"), Ok(7));
        assert_eq!(reader.u64("b"), Ok(1 << 40));
        assert_eq!(reader.bool("c"), Ok(true));
        assert_eq!(reader.opaque("d", 5), Ok(&b"hello"[..]));
        assert_eq!((reader.bool("e"), reader.u32("f")), (Ok(true), Ok(3)));
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn a_length_beyond_its_bound_or_its_message_is_refused() {
        let of = |length: u32, tail: &[u8]| [&length.to_be_bytes()[..], tail].concat();
        let huge = of(0x8000_0001, b"abcd");
        let error = Reader::new(&huge).opaque("name", 255).unwrap_err();
        assert_eq!(error.to_string(), "name: 2147483649 is more than 255");
        let short = of(9, b"abcd");
        let error = Reader::new(&short).opaque("name", 255).unwrap_err();
        assert_eq!(error.to_string(), "name: 9 bytes are needed, 4 are left");
        // The padding lies past the end.
        let bare = of(3, b"abc");
        assert!(matches!(Reader::new(&bare).opaque("name", 255), Err(Malformed::Short { .. })));
        assert!(Reader::new(&of(2, b"")).bool("flag").is_err());
    }
}
