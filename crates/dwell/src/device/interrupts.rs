// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counting a device's completions in `/proc/interrupts`.

use std::fmt;

/// A name, or a family of numbered names, that a driver gives its interrupts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct IrqName {
    /// The name, up to the number.
    pub stem: String,
    /// The lowest number that counts; `None` when the name ends with its stem.
    pub numbered_from: Option<u32>,
}

impl IrqName {
    /// A name without a number.
    pub(super) fn plain(stem: String) -> Self {
        IrqName { stem, numbered_from: None }
    }

    /// Names that end in a number, `lowest` or above.
    pub(super) fn numbered(stem: String, lowest: u32) -> Self {
        IrqName { stem, numbered_from: Some(lowest) }
    }

    /// Whether `name` is meant.
    pub fn matches(&self, name: &str) -> bool {
        let Some(number) = name.strip_prefix(self.stem.as_str()) else { return false };
        match self.numbered_from {
            None => number.is_empty(),
            Some(lowest) => {
                number.bytes().all(|b| b.is_ascii_digit())
                    && number.parse::<u32>().is_ok_and(|n| n >= lowest)
            }
        }
    }
}

impl fmt::Display for IrqName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.numbered_from {
            None => write!(f, "{}", self.stem),
            Some(0) => write!(f, "{}*", self.stem),
            Some(lowest) => write!(f, "{}{lowest}…", self.stem),
        }
    }
}

/// Sum over the lines that carry one of `names`; `None` when no line does.
pub(super) fn count(interrupts: &str, names: &[IrqName]) -> Option<u64> {
    let cpus = interrupts.lines().next()?.split_whitespace().count();
    let mut sum = None;
    for line in interrupts.lines().skip(1) {
        let Some((_, rest)) = line.split_once(':') else { continue };
        // Handlers that share a line are separated by commas.
        let mut described = rest.split([' ', '\t', ',']).filter(|word| !word.is_empty()).skip(cpus);
        if described.any(|word| names.iter().any(|name| name.matches(word))) {
            let counts = rest.split_whitespace().take(cpus).map_while(|n| n.parse::<u64>().ok());
            *sum.get_or_insert(0) += counts.sum::<u64>();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CPUS: &str = "           CPU0       CPU1
 34:         30          0 PCI-MSIX-0000:00:05.0   1-edge      virtio4-input
 35:          0          1 PCI-MSIX-0000:00:02.0   0-edge      virtio1-config
 36:          5     126803 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 37:          0          7 PCI-MSIX-0000:00:02.0   2-edge      virtio11-req.0
 40:         11         12 PCI-MSIX-0000:00:07.0   0-edge      nvme0q0
 41:          2          3 PCI-MSIX-0000:00:07.0   1-edge      nvme0q1
 42:          4          0 PCI-MSIX-0000:00:07.0   2-edge      nvme0q12
 43:          9          1 IO-APIC   11-fasteoi   nvme1q0, nvme1q1
NMI:          0          0   Non-maskable interrupts
ERR:          0
";

    #[test]
    fn a_device_is_not_charged_with_anothers_interrupts() {
        let vda = [IrqName::numbered("virtio1-req.".into(), 0)];
        assert_eq!(count(TWO_CPUS, &vda), Some(126_808));
        assert_eq!(count(TWO_CPUS, &[IrqName::plain("virtio1".into())]), None);
    }

    #[test]
    fn admin_completions_do_not_count_as_io() {
        let nvme = [IrqName::numbered("nvme0q".into(), 1)];
        assert_eq!(count(TWO_CPUS, &nvme), Some(9));
    }

    #[test]
    fn handlers_that_share_a_line_are_found() {
        let nvme = [IrqName::numbered("nvme1q".into(), 1)];
        assert_eq!(count(TWO_CPUS, &nvme), Some(10));
    }

    #[test]
    fn no_line_is_not_the_same_as_zero_interrupts() {
        assert_eq!(count(TWO_CPUS, &[]), None);
        assert_eq!(count("", &[IrqName::plain("x".into())]), None);
        assert_eq!(count("CPU0\n1: 0 edge x\n", &[IrqName::plain("x".into())]), Some(0));
    }
}
