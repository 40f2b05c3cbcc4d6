// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that is decided for: from when on, and by what files.

use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use dwell::device::Device;
use dwell::dwell_policy::{Load, Wait};
use dwell::external::External;
use dwell::monitor::is_overloaded;
use dwell::parameters::DeviceParameters;
use dwell::{DeviceClass, File, Kind};
use dwell_channel::client::{self, Mount, SCHEME};
use dwell_host::places;
use dwell_host::profile::DeviceProfile;
use dwell_host::settings::{DeviceNames, RunOrder};

use super::Services;
use crate::stack::{self, STACK_BYTES};
use crate::{process, served};

/// A device that is decided for. Its files are opened when requests wait for it: what they need, a
/// thread among it, would slow down a program that only opens and closes, or finds all in the page
/// cache.
pub(super) struct Decided {
    files: OnceLock<Files>,
    /// None where they are open from the beginning.
    later: Option<Arc<Later>>,
    /// How much requests waited for it lately, until the files are open.
    waits: AtomicU32,
    /// How much of that makes files worth opening.
    worth: AtomicU32,
}

/// How files are opened later.
struct Later {
    parameters: DeviceParameters,
    /// Whether its policy leaves all to the kernel where others want the CPUs.
    gives_way: bool,
    open: Box<Open>,
}

type Open = dyn Fn(&mut Option<Services>) -> Files + Send + Sync;

/// As many requests must have waited for a device before its files are opened, each of which makes
/// up for as many that did not. A second thread slows down a program that has one: its C library
/// begins to lock what it uses, and the kernel to count.
const WORTH_WAITS: u32 = 16;
const HITS_PER_WAIT: u32 = 16;

/// On a crowded machine twice as many each time, until so many: to look at the machine takes as
/// long as a request of a fast device.
const CROWDED_WAITS: u32 = 1024;

impl Decided {
    fn later(later: Arc<Later>) -> Self {
        Decided::with(OnceLock::new(), Some(later))
    }

    fn now(files: Files) -> Self {
        Decided::with(OnceLock::from(files), None)
    }

    fn with(files: OnceLock<Files>, later: Option<Arc<Later>>) -> Self {
        let worth = AtomicU32::new(WORTH_WAITS * HITS_PER_WAIT);
        Decided { files, later, waits: AtomicU32::new(0), worth }
    }

    /// The same device for a forked child, which opens files of its own. Files that are open from
    /// the beginning are the parent's.
    pub(super) fn in_child(&self) -> Option<Self> {
        self.later.clone().map(Decided::later)
    }

    pub(super) fn files(&self) -> Option<&Files> {
        self.files.get()
    }

    /// Opens them, unless they are.
    pub(super) fn open(&self, services: &mut Option<Services>) -> Option<()> {
        if let (None, Some(later)) = (self.files(), &self.later) {
            let files = stack::on_its_own(STACK_BYTES, || (later.open)(services))?;
            let _ = self.files.set(files);
        }
        Some(())
    }

    /// Notes how long a request of so many bytes took before that. What threads note at once may be
    /// lost.
    pub(super) fn took(&self, direct: bool, bytes: u64, ns: u64) {
        let hit_ns = self.later.as_ref().map_or(0, |later| later.parameters.hit_ns(bytes));
        let before = self.waits.load(Ordering::Relaxed);
        let after = match direct || ns > hit_ns {
            true => before.saturating_add(HITS_PER_WAIT),
            false => before.saturating_sub(1),
        };
        self.waits.store(after, Ordering::Relaxed);
    }

    /// Whether so many requests had to wait that files are worth opening.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waits.load(Ordering::Relaxed) >= self.worth.load(Ordering::Relaxed)
    }

    /// Whether files are not worth opening now, after all: Dwell is off, or so many want the CPUs
    /// that all would be left to the kernel. Then more requests have to wait anew.
    pub(super) fn gives_way(&self) -> bool {
        let is_overloaded =
            || self.later.as_ref().is_some_and(|later| later.gives_way) && is_overloaded();
        let gives_way = self.files().is_none() && (is_off() || is_overloaded());
        if gives_way {
            let worth = 2 * self.worth.load(Ordering::Relaxed);
            self.worth.store(worth.min(CROWDED_WAITS * HITS_PER_WAIT), Ordering::Relaxed);
            self.waits.store(0, Ordering::Relaxed);
        }
        gives_way
    }
}

/// The files of a device that is decided for.
pub(super) enum Files {
    Device {
        buffered: Arc<File<External>>,
        direct: Arc<File<External>>,
    },
    /// A served mount: its requests take channels.
    Served(Arc<File<Mount>>),
}

/// Whether Dwell is switched off on this machine.
fn is_off() -> bool {
    let user = dwell_host::capability::effective_uid();
    places::off_switch(user, &|name| env::var_os(name)).is_off()
}

/// The device beneath `fd` if it is decided for, after the settings; `None` where its requests
/// pass.
pub(super) fn decided_of(fd: i32, number: u64, services: &mut Option<Services>) -> Option<Decided> {
    let order = process::order()?;
    if order.channels
        && let Ok(mount) = Mount::of(fd)
    {
        return files_of_mount(mount.for_guest(served::GUEST), number, order, services)
            .map(Decided::now);
    }
    let store = order.profiles();
    let device = Device::beneath(Path::new(&format!("/proc/self/fd/{fd}"))).ok()?;
    let effective = order.settings.for_device(&DeviceNames::of(&device));
    // A profile that cannot be used, which `dwell run` has said, is as good as none.
    let profile = store.of(&device).ok().flatten();
    let parameters =
        effective.parameters(profile.as_ref().map(DeviceProfile::parameters).unwrap_or_default());
    if effective.exclude.value {
        return None;
    }
    let policy = effective.wait_policy().ok()?;
    let fast = parameters.profile.is_some_and(|profile| {
        profile.class == DeviceClass::Fast || profile.ring_threshold_bytes > 0
    });
    // Another device only if its policy does not leave all to the kernel, and nothing that is none,
    // such as a mount that a process serves.
    let decides = device.is_block() && policy.always_inline(parameters.profile.as_ref()).is_none();
    if !fast && !decides {
        return None;
    }
    let busy = Load::new(1.0, 1.0, 0.5);
    let waits = Wait { load: busy, ..Wait::new(Kind::Read, 4096, parameters.profile.as_ref()) };
    // A shadow is to tell that too.
    let gives_way = !order.shadow && policy.leaves(&waits).is_some();
    let share = effective.steer.map(|set| set.value);
    let open = Box::new(move |services: &mut Option<Services>| {
        // A child's is its own.
        let key = key_of_number(number);
        let services = services.get_or_insert_with(|| Services::begin(order));
        let file = |direct: bool| {
            let source = External::new(&parameters, direct);
            let (policy, monitor) = (services.steered(policy.clone()), services.monitor.clone());
            let file = File::over(source, &device.kernel_name, &key, parameters, policy, monitor)
                .in_shadow(order.shadow)
                .in_part(share);
            let file = Arc::new(file);
            if let Some(publisher) = &services.publisher {
                publisher.add(&device.kernel_name, file.clone());
            }
            file
        };
        Files::Device { buffered: file(false), direct: file(true) }
    });
    Some(Decided::later(Arc::new(Later { parameters, gives_way, open })))
}

/// The file of a served mount. What its daemon takes back or cannot do is the kernel's.
fn files_of_mount(
    mount: Mount,
    number: u64,
    order: &RunOrder,
    services: &mut Option<Services>,
) -> Option<Files> {
    let name = mount.name();
    let effective = order.settings.for_device(&DeviceNames::new([name.as_str(), SCHEME]));
    let parameters = effective.parameters(client::parameters());
    let decided = parameters.profile.is_some_and(|profile| profile.class == DeviceClass::Fast);
    if effective.exclude.value || !decided {
        return None;
    }
    let policy = effective.wait_policy().ok()?;
    // A policy that measures begins with the kernel's own path: a channel has to win.
    let parameters = match policy.goal() {
        Some(_) => effective.parameters(DeviceParameters::default()),
        None => parameters,
    };
    let services = services.get_or_insert_with(|| Services::begin(order));
    let (policy, monitor) = (services.steered(policy), services.monitor.clone());
    let file = File::over(mount, &name, &key_of_number(number), parameters, policy, monitor);
    let share = effective.steer.map(|set| set.value);
    let file = Arc::new(file.in_shadow(order.shadow).in_part(share));
    if let Some(publisher) = &services.publisher {
        publisher.add(&name, file.clone());
    }
    Some(Files::Served(file))
}

/// Tells a device apart. A forked child shares nothing with its parent.
fn key_of_number(number: u64) -> String {
    format!("{}:{}@{}", libc::major(number), libc::minor(number), std::process::id())
}
