// SPDX-License-Identifier: MIT OR Apache-2.0
//! What settings say of a file that a program is about to open.

use std::path::Path;
use std::sync::Arc;

use dwell_policy::WaitPolicy;
use dwell_policy::policy::Block;

use super::{DeviceNames, Set, Settings, Waiting};
use crate::profile::Beneath;
use dwell::error::Result;
use dwell::open::Options;
use dwell::parameters::DeviceParameters;
use dwell::share::Share;

/// How a file is to be opened.
pub struct Opening {
    /// Its policy.
    pub policy: Arc<dyn WaitPolicy>,
    /// Parameters of its device; empty where it is left alone.
    pub parameters: DeviceParameters,
    /// Why it is left alone: every request is one synchronous call.
    pub left_alone: Option<String>,
    /// Whether decisions are only recorded.
    pub shadow: bool,
    /// Which part of the requests is steered; `None` for all.
    pub steer: Option<Share>,
}

impl Opening {
    /// `options` as the settings want them.
    pub fn applied_to(&self, options: Options) -> Options {
        let mut options = options.policy(self.policy.clone()).shadow(self.shadow);
        options.steer = self.steer;
        // A scheme's opener may know what no profile says.
        match self.left_alone.is_some() || self.parameters.profile.is_some() {
            true => options.parameters(self.parameters),
            false => options,
        }
    }

    /// Whether anything about a request (its size, the backlog, the load) can change what is
    /// decided: only then is there something for a system monitor to tell.
    pub fn leaves_open(&self) -> bool {
        self.policy.always_inline(self.parameters.profile.as_ref()).is_none()
    }
}

impl Settings {
    /// These, with the policy that a program itself asked for, by the `option` so named.
    #[must_use]
    pub fn asked(self, option: &str, policy: Option<String>) -> Settings {
        let policy = policy.map(|policy| Set::option(option, policy));
        let waiting = Waiting { policy, ..Waiting::default() };
        self.under(Settings { waiting, ..Settings::default() })
    }

    /// What holds for the file at `address`, with `beneath` below it, in the program `executable`.
    ///
    /// # Errors
    /// A policy that this process does not know.
    pub fn opening(
        &self,
        address: &Path,
        beneath: &Beneath,
        executable: Option<&Path>,
    ) -> Result<Opening> {
        let names = match &beneath.device {
            Some(device) => DeviceNames::of(device),
            None => DeviceNames::new([address.display().to_string()]),
        };
        let effective = self.for_device(&names);
        let policy = effective.wait_policy()?;
        let path = std::fs::canonicalize(address);
        let excluded = path.ok().and_then(|path| self.excludes_path(&path));
        let program = executable.and_then(|executable| self.excludes_program(executable));
        let left_alone = if let Some(pattern) = excluded {
            Some(format!("settings leave this file alone ({})", pattern.origin))
        } else if let Some(pattern) = program {
            Some(format!("settings leave this program alone ({})", pattern.origin))
        } else if effective.exclude.value {
            Some(format!("settings leave this device alone ({})", effective.exclude.origin))
        } else {
            None
        };
        let shadow = self.general().shadow.value;
        let steer = effective.steer.as_ref().map(|set| set.value);
        Ok(match left_alone {
            Some(_) => {
                let (policy, parameters) = (Arc::new(Block), DeviceParameters::default());
                Opening { policy, parameters, left_alone, shadow, steer }
            }
            None => {
                let parameters = effective.parameters(beneath.parameters());
                Opening { policy, parameters, left_alone, shadow, steer }
            }
        })
    }
}
