// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spans, sizes and shares as people write them, read exactly and printed back.

use dwell_policy::Ns;

/// Units of time and their length in nanoseconds, longest first.
const TIMES: [(&str, u64); 5] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("µs", 1_000), ("ns", 1)];

/// Units of size and their bytes, largest first.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

/// One million: the denominator of shares.
pub(super) const MILLION: u32 = 1_000_000;

/// Digits with an optional fraction, times `unit`, if the product is a whole number.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || number.ends_with('.') {
        return None;
    }
    if fraction.len() > 18 {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10u128.pow(fraction.len() as u32);
    let product = digits.checked_mul(u128::from(unit))?;
    (product % scale == 0).then(|| u64::try_from(product / scale).ok())?
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(split);
    let (_, unit) = units.iter().find(|(name, _)| *name == unit)?;
    scaled(number, *unit)
}

/// A span such as `35ns`, `1.5us`, `50ms`, `2s`.
pub(super) fn span(text: &str) -> Result<Ns, String> {
    with_unit(text, &TIMES)
        .ok_or_else(|| format!("{text:?} is not a time; write it as 35ns, 1.5us, 50ms or 2s"))
}

/// A size such as `4096`, `64KiB`, `256MiB`, `2GB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let bytes = if text.bytes().all(|b| b.is_ascii_digit()) {
        scaled(text, 1)
    } else {
        with_unit(text, &SIZES)
    };
    bytes.ok_or_else(|| format!("{text:?} is not a size; write it as 4096, 64KiB, 256MiB or 2GB"))
}

/// A rate such as `2GB/s` or `500MiB/s`, in bytes per second; `unlimited` is 0.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    if text == "unlimited" {
        return Ok(0);
    }
    text.strip_suffix("/s")
        .and_then(|size| with_unit(size, &SIZES))
        .filter(|&rate| rate > 0)
        .ok_or_else(|| format!("{text:?} is not a rate; write it as 2GB/s, 500MiB/s or unlimited"))
}

/// A percentage such as `10%`, in parts per million.
pub(super) fn share(text: &str) -> Result<u32, String> {
    text.strip_suffix('%')
        .and_then(|number| scaled(number, u64::from(MILLION) / 100))
        .filter(|&ppm| ppm <= u64::from(MILLION))
        .map(|ppm| ppm as u32)
        .ok_or_else(|| format!("{text:?} is not a share from 0% to 100%; write it as 10%"))
}

/// A whole number.
pub(super) fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number"))
}

fn in_largest(value: u64, units: &[(&str, u64)]) -> String {
    let (name, unit) = units
        .iter()
        .find(|(_, unit)| value > 0 && value.is_multiple_of(*unit))
        .or(units.last())
        .expect("there are units");
    format!("{}{name}", value / unit)
}

/// The inverse of [`span`].
pub(super) fn show_span(span_ns: Ns) -> String {
    in_largest(span_ns, &TIMES)
}

/// The inverse of [`size`].
pub(super) fn show_size(bytes: u64) -> String {
    in_largest(bytes, &SIZES)
}

/// The inverse of [`rate`].
pub(super) fn show_rate(bytes_per_s: u64) -> String {
    if bytes_per_s == 0 { "unlimited".into() } else { in_largest(bytes_per_s, &SIZES) + "/s" }
}

/// The inverse of [`share`].
pub(super) fn show_share(ppm: u32) -> String {
    let (percent, rest) = (ppm / 10_000, ppm % 10_000);
    if rest == 0 {
        return format!("{percent}%");
    }
    let fraction = format!("{rest:04}");
    format!("{percent}.{}%", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_exactly() {
        assert_eq!(span("35ns"), Ok(35));
        assert_eq!(span("1.5us"), Ok(1_500));
        assert_eq!(span("1.5µs"), Ok(1_500));
        assert_eq!(span("2.000000001s"), Ok(2_000_000_001));
        assert_eq!(size("1.5KiB"), Ok(1536));
        assert_eq!(size("0.25KiB"), Ok(256));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(rate("2GB/s"), Ok(2_000_000_000));
        assert_eq!(rate("unlimited"), Ok(0));
        assert_eq!(share("12.5%"), Ok(125_000));
    }

    #[test]
    fn a_text_that_is_no_quantity_is_refused() {
        for bad in [
            "",
            "5",
            "ns",
            "1.us",
            ".5us",
            "1.5ns",
            "-1us",
            "1e3us",
            "99999999999999999999s",
            "20000000000s",
        ] {
            assert!(span(bad).is_err(), "{bad}");
        }
        for bad in ["", "GiB", "1XB", "1.3B", "-1"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        for bad in ["2GB", "0B/s", "/s", "fast"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        for bad in ["10", "101%", "%", "-1%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
