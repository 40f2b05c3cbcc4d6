// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmartCon's analytic model (§6): what blocking at each request costs, from cycles per
//! instruction.
//!
//! Two systems serve the same requests, one that spins and one that switches. Equations 1 to 5 give
//! the cycles per instruction of each, equation 6 the ratio of their speeds. All numbers are data:
//! [`SMARTCON`] has the paper's, and a file of the same form has anybody's.

use serde::{Deserialize, Serialize};

use crate::assign::{AssignError, in_line, put};

/// The paper's calibration.
pub const SMARTCON: &str = include_str!("../model/smartcon.toml");

/// Everything that the model takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Its name.
    pub name: String,
    /// Clock of the CPU.
    pub clock_ghz: f64,
    /// Bytes that memory is read by.
    pub line_bytes: f64,
    /// Bytes that the device is read by.
    pub block_bytes: f64,
    /// Name of the memory under which other devices are projected.
    pub main_memory: String,
    /// The system that spins.
    pub smartcon: System,
    /// The system that blocks.
    pub mainstream: System,
    /// Memories that serve as device, too: a ramdisk.
    #[serde(default)]
    pub memory: Vec<Memory>,
    /// Other devices.
    #[serde(default)]
    pub device: Vec<Device>,
}

/// One column of Table III.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Part of the CPU in use, 0–1.
    pub utilisation: f64,
    /// Instructions per request, in any unit that both systems share.
    pub path_length: f64,
    /// Cycles of an instruction that never waits.
    pub cpi0_cycles: f64,
    /// Latency of the first level.
    pub l1_cycles: f64,
    /// Misses of the first level per instruction.
    pub l1_miss: f64,
    /// Latency of the second level.
    pub l2_cycles: f64,
    /// Misses of the second level per instruction.
    pub l2_miss: f64,
    /// Latency of a translation.
    pub tlb_cycles: f64,
    /// Translations per instruction that go to memory.
    pub tlb_miss: f64,
    /// Cost of one context switch.
    pub switch_cycles: f64,
    /// Context switches per access of the device.
    pub switch_probability: f64,
    /// Accesses of the device per access of memory.
    pub memory_miss: f64,
}

/// A memory by the latency of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Its name.
    pub name: String,
    /// Latency of a line, in cycles.
    pub line_cycles: f64,
    /// What the paper printed as its model's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<f64>,
    /// What the paper measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
}

/// A device by the latency of a line, or of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Latency of a line: a block takes as many times this as it has lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_ns: Option<f64>,
    /// Latency of a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_ns: Option<f64>,
}

/// Table III's row of memory misses can be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// As it is printed: 1.56 accesses of the device per access of memory.
    Printed,
    /// As a percentage, which the text speaks of: 0.0156.
    Percent,
}

impl Reading {
    /// Both.
    pub const ALL: [Reading; 2] = [Reading::Printed, Reading::Percent];

    fn of(self, value: f64) -> f64 {
        match self {
            Reading::Printed => value,
            Reading::Percent => value / 100.0,
        }
    }
}

/// The parts of the cycles per instruction of one system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cpi {
    /// Equation 2: an instruction that needs no memory, its caches included.
    pub base: f64,
    /// The second term of equation 1: lines that come from memory or through it from the device.
    pub memory: f64,
    /// Equation 5: translations.
    pub tlb: f64,
    /// Equation 4, for itself: cycles of one access of the device.
    pub io_cycles: f64,
}

impl Cpi {
    /// Equation 1.
    pub fn total(&self) -> f64 {
        self.base + self.memory + self.tlb
    }
}

/// What the model says of one memory and one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Latency of a line of memory, in cycles.
    pub line_cycles: f64,
    /// Latency of a block of the device, in cycles.
    pub device_cycles: f64,
    /// The system that spins.
    pub smartcon: Cpi,
    /// The system that blocks.
    pub mainstream: Cpi,
    /// Equation 6: how much faster the first is.
    pub ratio: f64,
}

/// Why a calibration is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// It is no calibration.
    #[error("not a calibration: {0}")]
    Text(String),
    /// A change cannot be made.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// A value cannot be.
    #[error("{name}={value}: must be {must}")]
    Value {
        /// Which.
        name: String,
        /// What was given.
        value: String,
        /// What would be right.
        must: &'static str,
    },
}

impl System {
    /// Equations 1 to 5.
    pub fn cpi(&self, reading: Reading, line_cycles: f64, device_cycles: f64) -> Cpi {
        let io_cycles = device_cycles + self.switch_probability * self.switch_cycles;
        let memory_cycles = line_cycles + reading.of(self.memory_miss) * io_cycles;
        Cpi {
            base: self.cpi0_cycles + self.l1_cycles + self.l1_miss * self.l2_cycles,
            memory: self.l2_miss * memory_cycles,
            tlb: self.tlb_cycles + self.tlb_miss * line_cycles,
            io_cycles,
        }
    }
}

impl Calibration {
    /// The paper's.
    pub fn smartcon() -> Self {
        Self::parse(SMARTCON, &[]).expect("the shipped calibration is tested")
    }

    /// Reads a calibration and changes what `sets` say, each `name=value` with a dot between parts
    /// of the name.
    pub fn parse(text: &str, sets: &[String]) -> Result<Self, ModelError> {
        let wrong = |e: toml::de::Error| ModelError::Text(e.message().to_owned());
        let mut table: toml::Table = toml::from_str(text)
            .map_err(|e| ModelError::Text(in_line(text, e.span(), e.message())))?;
        for set in sets {
            put(&mut table, set)?;
        }
        let calibration: Calibration = table.try_into().map_err(wrong)?;
        calibration.check()?;
        Ok(calibration)
    }

    fn check(&self) -> Result<(), ModelError> {
        let bad = |name: &str, value: f64, must| {
            Err(ModelError::Value { name: name.into(), value: value.to_string(), must })
        };
        let sizes = [
            ("clock_ghz", self.clock_ghz),
            ("line_bytes", self.line_bytes),
            ("block_bytes", self.block_bytes),
        ];
        for (name, value) in sizes {
            if !(value > 0.0 && value.is_finite()) {
                return bad(name, value, "above 0");
            }
        }
        for (side, system) in [("smartcon", &self.smartcon), ("mainstream", &self.mainstream)] {
            let shares = [("utilisation", system.utilisation), ("path_length", system.path_length)];
            for (name, value) in shares {
                if !(value > 0.0 && value.is_finite()) {
                    return bad(&format!("{side}.{name}"), value, "above 0");
                }
            }
            let others = [
                ("cpi0_cycles", system.cpi0_cycles),
                ("l1_cycles", system.l1_cycles),
                ("l1_miss", system.l1_miss),
                ("l2_cycles", system.l2_cycles),
                ("l2_miss", system.l2_miss),
                ("tlb_cycles", system.tlb_cycles),
                ("tlb_miss", system.tlb_miss),
                ("switch_cycles", system.switch_cycles),
                ("switch_probability", system.switch_probability),
                ("memory_miss", system.memory_miss),
            ];
            for (name, value) in others {
                if !(value >= 0.0 && value.is_finite()) {
                    return bad(&format!("{side}.{name}"), value, "at least 0");
                }
            }
            if system.cpi0_cycles + system.l1_cycles <= 0.0 {
                return bad(&format!("{side}.cpi0_cycles"), system.cpi0_cycles, "above 0");
            }
        }
        for memory in &self.memory {
            if !(memory.line_cycles > 0.0 && memory.line_cycles.is_finite()) {
                return bad(&memory.name, memory.line_cycles, "a latency above 0 cycles");
            }
        }
        for device in &self.device {
            match (device.line_ns, device.block_ns) {
                (Some(ns), None) | (None, Some(ns)) if ns >= 0.0 && ns.is_finite() => {}
                (line_ns, block_ns) => {
                    let value = line_ns.or(block_ns).unwrap_or(f64::NAN);
                    return bad(&device.name, value, "either line_ns or block_ns, at least 0");
                }
            }
        }
        if !self.memory.iter().any(|memory| memory.name == self.main_memory) {
            return Err(ModelError::Value {
                name: "main_memory".into(),
                value: self.main_memory.clone(),
                must: "the name of one [[memory]]",
            });
        }
        Ok(())
    }

    fn lines_per_block(&self) -> f64 {
        self.block_bytes / self.line_bytes
    }

    /// Latency of a block of a device, in nanoseconds.
    pub fn block_ns(&self, device: &Device) -> f64 {
        let from_lines = device.line_ns.unwrap_or(0.0) * self.lines_per_block();
        device.block_ns.unwrap_or(from_lines)
    }

    /// Any memory and any device.
    pub fn answer(&self, reading: Reading, line_cycles: f64, device_cycles: f64) -> Answer {
        let smartcon = self.smartcon.cpi(reading, line_cycles, device_cycles);
        let mainstream = self.mainstream.cpi(reading, line_cycles, device_cycles);
        let ratio = mainstream.total() / smartcon.total()
            * (self.mainstream.path_length / self.smartcon.path_length)
            * (self.smartcon.utilisation / self.mainstream.utilisation);
        Answer { line_cycles, device_cycles, smartcon, mainstream, ratio }
    }

    /// A ramdisk in a memory (Table IV): the device reads a block line by line.
    pub fn ramdisk(&self, reading: Reading, memory: &Memory) -> Answer {
        let line_cycles = memory.line_cycles;
        self.answer(reading, line_cycles, line_cycles * self.lines_per_block())
    }

    /// A device under the main memory (Figure 18, where DRAM stays what it is).
    pub fn under_memory(&self, reading: Reading, device: &Device) -> Answer {
        let main = self.memory.iter().find(|memory| memory.name == self.main_memory);
        let line_cycles = main.map_or(0.0, |memory| memory.line_cycles);
        self.answer(reading, line_cycles, self.block_ns(device) * self.clock_ghz)
    }

    /// A device that is the main memory, too (Figure 18, where DRAM is replaced); `None` where only
    /// the latency of a block is known.
    pub fn as_memory(&self, reading: Reading, device: &Device) -> Option<Answer> {
        let line_cycles = device.line_ns? * self.clock_ghz;
        Some(self.answer(reading, line_cycles, line_cycles * self.lines_per_block()))
    }
}

/// Reads a device as a person writes it: `NAME=50ns/line`, or `NAME=3us` for a block.
pub fn device(text: &str) -> Result<Device, ModelError> {
    let (name, latency) =
        text.split_once('=').ok_or_else(|| AssignError::NoValue(text.to_owned()))?;
    let (name, latency) = (name.trim(), latency.trim());
    let bad = || ModelError::Value {
        name: name.into(),
        value: latency.into(),
        must: "a latency above 0 such as 3us (of a block) or 50ns/line",
    };
    let (time, per_line) = match latency.strip_suffix("/line") {
        Some(time) => (time.trim(), true),
        None => (latency, false),
    };
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6)];
    let (digits, unit) = units
        .iter()
        .find_map(|(end, unit)| Some((time.strip_suffix(end)?, *unit)))
        .ok_or_else(bad)?;
    let ns = digits.trim().parse::<f64>().map_err(|_| bad())? * unit;
    if name.is_empty() || !(ns.is_finite() && ns > 0.0) {
        return Err(bad());
    }
    let (line_ns, block_ns) = if per_line { (Some(ns), None) } else { (None, Some(ns)) };
    Ok(Device { name: name.into(), line_ns, block_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_digits(value: f64) -> f64 {
        (value * 1000.0).round() / 1000.0
    }

    #[test]
    fn both_readings_give_what_a_calculation_by_hand_gives() {
        let table = Calibration::smartcon();
        let ratios = |reading| -> Vec<f64> {
            table.memory.iter().map(|m| three_digits(table.ramdisk(reading, m).ratio)).collect()
        };
        assert_eq!(ratios(Reading::Printed), [1.206, 1.219, 1.228]);
        assert_eq!(ratios(Reading::Percent), [1.189, 1.205, 1.218]);
    }

    #[test]
    fn the_parts_are_those_of_the_equations() {
        let table = Calibration::smartcon();
        let answer = table.ramdisk(Reading::Printed, &table.memory[0]);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 5e-4, "{a} is not {b}");
        near(answer.smartcon.base, 5.61);
        near(answer.mainstream.base, 7.416);
        near(answer.smartcon.tlb, 15.8731);
        near(answer.smartcon.io_cycles, 7160.32 + 4.70208);
        near(answer.smartcon.memory, 0.000255 * (111.88 + 1.56 * 7165.02208));
        near(answer.smartcon.total(), answer.smartcon.base + answer.smartcon.memory + 15.8731);
    }

    #[test]
    fn without_any_difference_there_is_no_gain() {
        let mut table = Calibration::smartcon();
        table.mainstream = table.smartcon;
        assert_eq!(table.ramdisk(Reading::Printed, &table.memory[1]).ratio, 1.0);
    }

    #[test]
    fn a_device_is_projected_below_memory_or_in_its_place() {
        let table = Calibration::smartcon();
        let mram = &table.device[3];
        assert_eq!((mram.name.as_str(), table.block_ns(mram)), ("MRAM", 2240.0));
        let below = table.under_memory(Reading::Printed, mram);
        assert_eq!((below.line_cycles, below.device_cycles), (74.4, 2240.0 * 1.86));
        let instead = table.as_memory(Reading::Printed, mram).unwrap();
        assert!((instead.line_cycles - 65.1).abs() < 1e-9 && instead.ratio > below.ratio);
        let block = device("z-nand=3us").unwrap();
        assert_eq!(table.block_ns(&block), 3000.0);
        assert_eq!(table.as_memory(Reading::Printed, &block), None);
        assert_eq!(device("a = 50 ns/line").unwrap().line_ns, Some(50.0));
    }

    #[test]
    fn an_impossible_value_is_said_with_what_would_be_right() {
        let told =
            |set: &str| Calibration::parse(SMARTCON, &[set.to_owned()]).unwrap_err().to_string();
        assert!(told("smartcon.l1_mist=1").contains("`smartcon.l1_mist`"));
        assert!(told("smartcon.l1_mist=1").contains("l1_miss"));
        assert!(told("smartcon=1").contains("no parameter"));
        assert!(told("smartcon.l1_miss").contains("name=value"));
        assert!(told("smartcon.l1_miss=much").contains("a number"));
        assert!(told("smartcon.utilisation=0").contains("above 0"));
        assert!(told("main_memory=tape").contains("[[memory]]"));
        assert!(told("clock_ghz=inf").contains("a number"));
        assert!(Calibration::parse("name = 1", &[]).is_err());
        for wrong in ["fast", "a=fast", "a=3", "=3ns", "a=-3ns"] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
        let set = ["mainstream.switch_cycles=30000".to_owned()];
        let slow = Calibration::parse(SMARTCON, &set).unwrap();
        assert_eq!(slow.mainstream.switch_cycles, 30_000.0);
    }
}
