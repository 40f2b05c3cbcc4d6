// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab sim model`: SmartCon's analytic model with its own or anybody's numbers.

use std::path::PathBuf;

use anyhow::{Context, Result};
use dwell_sim::model::{self, Answer, Calibration, Device, Reading, SMARTCON};
use serde_json::json;

use crate::answer::wrong;
use crate::given::as_text;
use crate::show::{self, Screen};

/// What spinning gains over switching, from cycles per instruction: SmartCon's equations 1 to 6
#[derive(clap::Args)]
pub struct Model {
    /// Another calibration than the paper's
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Change a value, as in --set mainstream.switch_cycles=3000; may be given again
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Project to a device by the latency of a block, or of a line as in mram=35ns/line; may be
    /// given again
    #[arg(long = "device", value_name = "NAME=LATENCY", value_parser = device)]
    devices: Vec<Device>,
    /// Print the paper's calibration, to copy and edit
    #[arg(long, exclusive = true)]
    print: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Model {
    pub(super) fn run(&self) -> Result<()> {
        if self.print {
            return Ok(show::out(SMARTCON)?);
        }
        let text = match &self.calibration {
            None => SMARTCON.to_owned(),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("reading {}", path.display()))?,
        };
        let of = || {
            self.calibration.as_ref().map_or("the model".into(), |path| path.display().to_string())
        };
        Calibration::parse(&text, &[]).with_context(of)?;
        let mut calibration = Calibration::parse(&text, &self.sets).map_err(wrong)?;
        calibration.device.extend(self.devices.iter().cloned());
        let text = match self.json {
            true => show::json(&as_json(&calibration))?,
            false => tables(&calibration),
        };
        Ok(show::out(&text)?)
    }
}

fn device(text: &str) -> Result<Device, String> {
    model::device(text).map_err(as_text)
}

fn reading(reading: Reading) -> &'static str {
    match reading {
        Reading::Printed => "as printed",
        Reading::Percent => "as a percentage",
    }
}

fn tables(calibration: &Calibration) -> String {
    let screen = Screen::stdout();
    let mut text = format!("{}\n\n", calibration.name);
    let heads = [
        "ramdisk in",
        "miss row",
        "CPI smartcon",
        "CPI mainstream",
        "gain",
        "its model said",
        "it measured",
    ];
    let mut table = screen.table(&heads, &[2, 3, 4, 5, 6]);
    let optional = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
    for memory in &calibration.memory {
        for how in Reading::ALL {
            let answer = calibration.ramdisk(how, memory);
            table.add_row([
                memory.name.clone(),
                reading(how).into(),
                format!("{:.3}", answer.smartcon.total()),
                format!("{:.3}", answer.mainstream.total()),
                format!("{:.3}", answer.ratio),
                optional(memory.model),
                optional(memory.measured),
            ]);
        }
    }
    text += &(show::finished(&table) + "\n");
    let heads = ["device", "block", "miss row", "under memory", "as memory"];
    let mut table = screen.table(&heads, &[1, 3, 4]);
    for device in &calibration.device {
        for how in Reading::ALL {
            let instead = calibration.as_memory(how, device);
            table.add_row([
                device.name.clone(),
                format!("{:.2} µs", calibration.block_ns(device) / 1e3),
                reading(how).into(),
                format!("{:.3}", calibration.under_memory(how, device).ratio),
                instead.map_or("–".into(), |answer| format!("{:.3}", answer.ratio)),
            ]);
        }
    }
    text += &show::finished(&table);
    text += &format!(
        "\ngain: requests served by the system that spins ÷ by the one that switches (equation 6)\n\
         under memory: {} stays; as memory: the device is memory, too\n",
        calibration.main_memory
    );
    text
}

fn as_json(calibration: &Calibration) -> serde_json::Value {
    let both = |of: &dyn Fn(Reading) -> Option<Answer>| json!({ "printed": of(Reading::Printed), "percent": of(Reading::Percent) });
    let ramdisks = calibration.memory.iter().map(|memory| {
        let answers = both(&|how| Some(calibration.ramdisk(how, memory)));
        json!({ "memory": memory, "answers": answers })
    });
    let devices = calibration.device.iter().map(|device| {
        json!({
            "device": device,
            "block_ns": calibration.block_ns(device),
            "under_memory": both(&|how| Some(calibration.under_memory(how, device))),
            "as_memory": both(&|how| calibration.as_memory(how, device)),
        })
    });
    json!({
        "calibration": calibration,
        "ramdisks": ramdisks.collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
    })
}
