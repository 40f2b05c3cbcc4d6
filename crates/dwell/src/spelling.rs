// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and fractions as people write them, on a command line and in a file alike.

/// Bytes from `4096`, `4k`, `4K`, `4KiB`, `1M`, `2 GiB`: every prefix is a power of 1024.
///
/// # Errors
/// What to write instead.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("{text:?} is no size; write bytes, or a size such as 4k, 64KiB or 1M"));
    }
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            return Err(format!("{unit:?} could be 1000 or 1024; write {}iB", &unit[..1]));
        }
        _ if unit.starts_with(['.', ',']) => {
            return Err("fractions of a unit are not understood; write a smaller unit".into());
        }
        _ => return Err(format!("{unit:?} is no unit of size; use k, M, G or T (or KiB …)")),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("{text} is larger than any size"))
}

/// A fraction 0–1 from `0.3` or `30%`.
///
/// # Errors
/// What to write instead.
pub fn fraction(text: &str) -> Result<f32, String> {
    let wrong = || format!("{text:?} is no fraction; write 0 to 1, or 0% to 100%");
    let text = text.trim();
    let (number, divisor) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let value = number.parse::<f32>().map_err(|_| wrong())? / divisor;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_ways_to_write_a_size_are_understood() {
        for (text, expected) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("4KiB", 4096),
            ("64K", 65536),
            ("64kib", 65536),
            ("1M", 1 << 20),
            (" 2 GiB ", 2 << 30),
            ("3t", 3 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_wrong_size_is_told_what_to_write_instead() {
        for (text, says) in [
            ("", "write bytes"),
            ("k", "write bytes"),
            ("-4k", "write bytes"),
            ("4kb", "write kiB"),
            ("1.5M", "smaller unit"),
            ("4x", "no unit of size"),
            ("4µ", "no unit of size"),
            ("18446744073709551616", "larger"),
            ("16777216T", "larger"),
        ] {
            let told = bytes(text).unwrap_err();
            assert!(told.contains(says), "{text}: {told}");
        }
    }

    #[test]
    fn fractions_and_percent_are_understood() {
        assert_eq!(fraction("0.3"), Ok(0.3));
        assert_eq!(fraction("30%"), Ok(0.3));
        assert_eq!(fraction("1"), Ok(1.0));
        for text in ["1.1", "-0.1", "nan", "150%", "x", ""] {
            assert!(fraction(text).is_err(), "{text}");
        }
    }
}
