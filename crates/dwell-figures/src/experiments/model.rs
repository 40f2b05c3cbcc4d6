// SPDX-License-Identifier: MIT OR Apache-2.0
//! S9 and S10: the analytic model with the paper's numbers, and projected to other devices.

use anyhow::Result;
use dwell_sim::model::{Calibration, Reading};

use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};

/// S9: Table IV in both readings of the miss row.
pub(super) fn table(
    _: &mut Lab,
    result: &mut FigureResult,
    _: &mut Progress<'_>,
) -> Result<Option<String>> {
    let calibration = Calibration::smartcon();
    for memory in &calibration.memory {
        for (reading, word) in
            [(Reading::Printed, "as printed"), (Reading::Percent, "as a percentage")]
        {
            let ratio = calibration.ramdisk(reading, memory).ratio;
            let case = format!("{}, miss row {word}", memory.name);
            result.measured(&case, Measured::exact(ratio))?;
            result.note(&case, &format!("{ratio:.3}"))?;
        }
    }
    Ok(None)
}

/// S10: Figure 18, with the assumptions that it leaves open.
pub(super) fn projection(
    _: &mut Lab,
    result: &mut FigureResult,
    _: &mut Progress<'_>,
) -> Result<Option<String>> {
    let calibration = Calibration::smartcon();
    for device in &calibration.device {
        for (reading, word) in [(Reading::Printed, "printed"), (Reading::Percent, "percentage")] {
            let under = calibration.under_memory(reading, device).ratio;
            let case = format!("{} under memory, {word}", device.name);
            result.measured(&case, Measured::exact(under))?;
            if let Some(instead) = calibration.as_memory(reading, device) {
                let case = format!("{} as memory, {word}", device.name);
                result.measured(&case, Measured::exact(instead.ratio))?;
            }
        }
    }
    Ok(None)
}
