// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quantities as people read them: every figure with its unit.

/// A figure with about three significant digits and no exponent: `0.031`, `4.20`, `17.3`, `1830`.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        _ if !value.is_finite() => return "–".into(),
        0.0 => return "0".into(),
        a if a < 0.000_5 => return "0.000".into(),
        a if a < 1.0 => 3,
        a if a < 9.995 => 2,
        a if a < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// [`figure`] without zeros that say nothing: for axis ticks.
pub fn tick(value: f64) -> String {
    let text = figure(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

/// A count: `950`, `62.5 k`, `1.20 M`, `3.40 G`.
pub fn count(count: u64) -> String {
    match count {
        0..1000 => count.to_string(),
        1000..1_000_000 => format!("{} k", figure(count as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} M", figure(count as f64 / 1e6)),
        _ => format!("{} G", figure(count as f64 / 1e9)),
    }
}

/// A request or device size: `512 B`, `4 KiB`, `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    format!("{} {unit}", tick(size))
}

/// A span of time: `850 ns`, `17.3 µs`, `1.20 ms`, `3.00 s`.
pub fn time_ns(ns: f64) -> String {
    let (divisor, unit) = time_unit(ns);
    match divisor {
        1.0 => format!("{ns:.0} ns"),
        _ => format!("{} {unit}", figure(ns / divisor)),
    }
}

/// Divisor and name of the unit in which times up to `largest_ns` read well.
pub fn time_unit(largest_ns: f64) -> (f64, &'static str) {
    match largest_ns.abs() {
        ns if ns < 999.5 => (1.0, "ns"),
        ns if ns < 999.5e3 => (1e3, "µs"),
        ns if ns < 999.5e6 => (1e6, "ms"),
        _ => (1e9, "s"),
    }
}

/// A rate of transfer: `312 MiB/s`, `4.10 GiB/s`.
pub fn throughput(bytes_per_second: f64) -> String {
    let (divisor, unit) = throughput_unit(bytes_per_second);
    format!("{} {unit}", figure(bytes_per_second / divisor))
}

/// Divisor and name of the unit in which rates up to `largest` bytes per second read well.
pub fn throughput_unit(largest: f64) -> (f64, &'static str) {
    const MIB: f64 = 1048576.0;
    if largest < 1000.0 * MIB { (MIB, "MiB/s") } else { (1024.0 * MIB, "GiB/s") }
}

/// Requests per second: `950/s`, `62.5 k/s`, `1.20 M/s`.
pub fn per_second(rate: f64) -> String {
    match rate {
        r if r < 999.5 => format!("{}/s", figure(r)),
        r if r < 999.5e3 => format!("{} k/s", figure(r / 1e3)),
        r => format!("{} M/s", figure(r / 1e6)),
    }
}

/// A ratio: `2.07×`.
pub fn ratio(ratio: f64) -> String {
    if ratio.is_finite() && ratio < 99.95 { format!("{ratio:.2}×") } else { figure(ratio) + "×" }
}

/// A fraction as a person reads it: `37 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_carries_its_unit() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(time_ns(850.0), "850 ns");
        assert_eq!(time_ns(17_300.0), "17.3 µs");
        assert_eq!(time_ns(1_200_000.0), "1.20 ms");
        assert_eq!(time_ns(3e9), "3.00 s");
        assert_eq!(throughput(312.0 * 1048576.0), "312 MiB/s");
        assert_eq!(throughput(4.1 * 1073741824.0), "4.10 GiB/s");
        assert_eq!(per_second(62_500.0), "62.5 k/s");
        assert_eq!(per_second(1_200_000.0), "1.20 M/s");
        assert_eq!(ratio(2.066), "2.07×");
        assert_eq!(percent(0.374), "37 %");
    }

    #[test]
    fn figures_keep_three_digits() {
        for (value, text) in
            [(0.0, "0"), (0.0312, "0.031"), (9.999, "10.0"), (99.96, "100"), (1830.4, "1830")]
        {
            assert_eq!(figure(value), text);
        }
        assert_eq!(figure(f64::NAN), "–");
        assert_eq!((tick(0.25), tick(3.0), tick(100.0)), ("0.25".into(), "3".into(), "100".into()));
    }
}
