// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file whose requests a test looks at, holds up or refuses before they are served.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use dwell::any::{AnySource, Boxed};
use dwell::kernel::{Kernel, KernelQueue};
use dwell::queue::{InHandler, Io};
use dwell::source::Source;
use dwell_policy::policy::Block;
use dwell_policy::{Route, Routes};

type Look = dyn Fn(&Io) -> Option<i32> + Send + Sync;

/// All its requests are calls, which `look` sees first and may answer.
struct Gate {
    file: Kernel,
    look: Box<Look>,
}

impl Source for Gate {
    type Queue = KernelQueue;

    fn queue(&self, depth: u32) -> io::Result<KernelQueue> {
        self.file.queue(depth)
    }

    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<KernelQueue>>> {
        self.file.handler_queue(depth)
    }

    fn routes(&self) -> Routes {
        Routes::INLINE
    }

    fn call(&self, io: &Io) -> i32 {
        debug_assert!(self.routes().has(Route::Inline));
        (self.look)(io).unwrap_or_else(|| self.file.call(io))
    }

    fn target(&self) -> i32 {
        self.file.target()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}

/// A file whose requests `look` sees first; what it returns is the result.
pub fn gated(
    path: &Path,
    look: impl Fn(&Io) -> Option<i32> + Send + Sync + 'static,
) -> Arc<dwell::File> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let file = Kernel::new(file.into(), 1, dwell::ring::SpinMethod::default(), false);
    let gate = AnySource::Other(Box::new(Boxed(Gate { file, look: Box::new(look) })));
    let parameters = dwell::parameters::DeviceParameters::default();
    Arc::new(dwell::File::over(gate, path, "gate", parameters, Arc::new(Block), None))
}
