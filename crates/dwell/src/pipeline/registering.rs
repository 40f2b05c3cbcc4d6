// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel looks up once for all requests of a pipeline.

use super::Pipeline;
use crate::buffer::Pool;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::source::Source;

impl<B: Send + 'static, S: Source> Pipeline<'_, B, S>
where
    S::Queue: Send,
{
    /// Has the kernel pin the memory of `pool` and look up the file once, instead of for each
    /// request: io_uring's registered buffers and files. Requests with other buffers go on as
    /// before. On a device or address that no ring serves, this changes nothing. A device with poll
    /// queues has a ring more, which pins the memory once more.
    ///
    /// # Errors
    /// What the system refuses: more memory than the user may lock (`ulimit -l`), more than 1 GiB,
    /// a seventeenth pool beside sixteen that are in use, a kernel before Linux 5.19. Requests are
    /// served as before then.
    pub fn register(&mut self, pool: &Pool) -> Result<()> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        let target = self.file.source.target();
        let registered = queue.register_target(target).and_then(|()| queue.register_pool(pool));
        registered.map_err(|error| Error::registering(self.file.path(), error))
    }
}
