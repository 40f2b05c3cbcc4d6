// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmartCon's analytic model.

use dwell_sim::columns::{numbers, texts};
use dwell_sim::model::{Answer, Calibration, Reading, SMARTCON, device};
use pyo3::prelude::*;

use crate::error::refused;
use crate::table::Table;

struct Row {
    kind: &'static str,
    name: String,
    reading: Reading,
    answer: Answer,
}

/// What the model says; one row per memory or device and reading of its miss rates.
#[pyfunction]
#[pyo3(signature = (calibration, sets, devices))]
pub fn model(
    calibration: Option<&str>,
    sets: Vec<String>,
    devices: Vec<String>,
) -> PyResult<Table> {
    let text = calibration.unwrap_or(SMARTCON);
    let mut calibration = Calibration::parse(text, &sets).map_err(refused)?;
    for text in &devices {
        calibration.device.push(device(text).map_err(refused)?);
    }
    let mut rows = Vec::new();
    for reading in Reading::ALL {
        for memory in &calibration.memory {
            let answer = calibration.ramdisk(reading, memory);
            rows.push(Row { kind: "ramdisk", name: memory.name.clone(), reading, answer });
        }
        for device in &calibration.device {
            let name = || device.name.clone();
            let answer = calibration.under_memory(reading, device);
            rows.push(Row { kind: "under memory", name: name(), reading, answer });
            if let Some(answer) = calibration.as_memory(reading, device) {
                rows.push(Row { kind: "as memory", name: name(), reading, answer });
            }
        }
    }
    let reading = |reading| match reading {
        Reading::Printed => "as printed",
        Reading::Percent => "as a percentage",
    };
    let number = |of: fn(&Answer) -> f64| rows.iter().map(move |row| of(&row.answer));
    Table::of(vec![
        texts("kind", rows.iter().map(|row| row.kind.to_owned())),
        texts("name", rows.iter().map(|row| row.name.clone())),
        texts("miss_rates", rows.iter().map(|row| reading(row.reading).to_owned())),
        numbers("device_cycles", number(|answer| answer.device_cycles)),
        numbers("cpi_smartcon", number(|answer| answer.smartcon.total())),
        numbers("cpi_mainstream", number(|answer| answer.mainstream.total())),
        numbers("gain", number(|answer| answer.ratio)),
    ])
}
