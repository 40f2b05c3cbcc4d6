// SPDX-License-Identifier: MIT OR Apache-2.0
//! Swap space on zram, for memory that the kernel pages by itself.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::fixture::{Fixture as _, Zram};

/// Beside what is swapped.
const ROOM_BYTES: u64 = 8 << 20;

/// Makes swap space, says so, and takes it away when nobody holds its input any more.
const KEEPER: &str = r#"
trap "" INT TERM HUP
PATH=$PATH:/usr/sbin:/sbin
mkswap "$0" >/dev/null && swapon "$0" || exit
echo ready
read -r _
swapoff "$0"
"#;

/// Swap space that is gone with this. A process takes it away where this program ends without that.
pub struct Swap {
    keeper: Child,
    input: Option<ChildStdin>,
    /// After the swap space on it.
    _device: Zram,
}

impl Swap {
    /// Makes it. Needs root.
    ///
    /// # Errors
    /// Why there is none here.
    pub fn new(bytes: u64) -> Result<Self> {
        let device = Zram::blank(bytes + ROOM_BYTES)?;
        // Its input ends with this program, whatever ends that.
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER])
            .arg(device.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start sh")?;
        let (input, output) = (keeper.stdin.take(), keeper.stdout.take());
        let mut swap = Swap { keeper, input, _device: device };
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).context("making swap space")?;
        }
        if line.trim() != "ready" {
            let mut said = String::new();
            if let Some(mut errors) = swap.keeper.stderr.take() {
                errors.read_to_string(&mut said).context("making swap space")?;
            }
            bail!("no swap space on zram: {}", said.lines().last().unwrap_or("no reason given"));
        }
        Ok(swap)
    }

    /// Lets the processes of a control group swap.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn allow(group: &Path) -> Result<()> {
        // Version 1, or else version 2.
        fs::write(group.join("memory.swappiness"), "100")
            .or_else(|_| fs::write(group.join("memory.swap.max"), "max"))
            .with_context(|| format!("letting {} swap", group.display()))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        drop(self.input.take());
        // Where it fails, the device is busy and says so.
        let _ = self.keeper.wait();
    }
}
