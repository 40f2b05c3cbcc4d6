// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files under a served mount as sources: one open file, or all descriptors of a mount.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use dwell::any::Boxed;
use dwell::open::{self, Opened};
use dwell::parameters::DeviceParameters;
use dwell::queue::{InHandler, Io};
use dwell::source::Source;
use dwell::{DeviceClass, Error, Options, Route};
use dwell_policy::{Profile, Routes};

use super::ask::{self, Asker, DaemonRoute};
use super::inner::Inner;
use super::link::{Guest, Shape};
use super::queue::{ChannelQueue, by_kernel};

/// The scheme of files under a served mount: `chan:/mnt/served/data`.
pub const SCHEME: &str = "chan";

/// A channel is worth spinning for whatever the size, unless others need the CPU: then the daemon
/// does too.
pub fn parameters() -> DeviceParameters {
    let (class, size_threshold_bytes) = (DeviceClass::Fast, u64::MAX);
    let profile = Profile { class, size_threshold_bytes, ..Profile::default() };
    DeviceParameters { profile: Some(profile), ..DeviceParameters::default() }
}

/// Makes `File::open` reach files under a served mount through a channel: by `chan:PATH`, and by
/// their path alone. Once per process.
pub fn register() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        open::register(
            SCHEME,
            Box::new(|address, options| {
                let path = address.split_once(':').map_or(address, |(_, path)| path);
                Served::open(Path::new(path), options).map(Served::opened)
            }),
        );
        open::register_paths(Box::new(|path, options| {
            // The directory of a file that is still to be made decides.
            let facts = rustix::fs::statfs(path);
            let facts =
                facts.or_else(|_| rustix::fs::statfs(path.parent().unwrap_or(path))).ok()?;
            if facts.f_type as i64 != ask::FUSE {
                return None;
            }
            match Served::find(path, options) {
                // Another file system of the kind, whatever it says to a question of ours.
                Ok(Err(asked)) if asked.raw_os_error() != Some(libc::ENOTCONN) => None,
                found => Some(found.and_then(|served| known(path, served)).map(Served::opened)),
            }
        }));
    });
}

/// A file of which is known who serves it.
fn known(path: &Path, asked: io::Result<Served>) -> Result<Served, Error> {
    asked.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTTY) => {
            let what = "no daemon serves this file: open it without chan:, or serve its directory \
                        with dwell serve start";
            Error::invalid(path, what)
        }
        _ => Error::io("ask the daemon of", path, None, error),
    })
}

/// One open file under a served mount.
#[derive(Clone, Debug)]
pub struct Served {
    inner: Arc<Inner>,
}

impl Served {
    /// Opens a file.
    ///
    /// # Errors
    /// What the system refuses, with the path; a file that no daemon serves.
    pub fn open(path: &Path, options: &Options) -> Result<Served, Error> {
        known(path, Served::find(path, options)?)
    }

    /// Opens a file, and asks who serves it.
    fn find(path: &Path, options: &Options) -> Result<io::Result<Served>, Error> {
        let mut flags = 0;
        flags |= if options.direct { libc::O_DIRECT } else { 0 };
        flags |= if options.sync { libc::O_DSYNC } else { 0 };
        let file = File::options()
            .read(true)
            .write(options.write)
            .create(options.create && options.write)
            .truncate(false)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| Error::io("open", path, None, error))?;
        let place = match ask::place(file.as_raw_fd()) {
            Ok(place) => place,
            Err(error) => return Ok(Err(error)),
        };
        let asked = |error| Error::io("ask the daemon of", path, None, error);
        let identity = ask::identity(file.as_raw_fd()).map_err(asked)?;
        let path = std::path::absolute(path).map_err(asked)?;
        let write = options.write;
        Ok(Ok(Served { inner: Arc::new(Inner { file, path, identity, place, flags, write }) }))
    }

    fn opened(self) -> Opened {
        let device = format!("{SCHEME}:{}", String::from_utf8_lossy(&self.inner.place));
        Opened { source: Box::new(Boxed(self)), device, parameters: parameters() }
    }

    /// A queue of a shape of one's own, with buffers that live in the channel: the asynchronous
    /// interface. Requests are submitted together by [`Queue::flush`](dwell::queue::Queue::flush),
    /// in one store, and reaped together by [`Queue::poll`](dwell::queue::Queue::poll).
    ///
    /// # Errors
    /// What the system or the daemon refuses.
    pub fn asynchronous(&self, shape: Shape) -> io::Result<ChannelQueue> {
        let mut queue = ChannelQueue::new(shape, DaemonRoute::Kernel, Some(self.inner.clone()));
        queue.connect(self.target())?;
        Ok(queue)
    }
}

impl Source for Served {
    type Queue = ChannelQueue;

    fn queue(&self, depth: u32) -> io::Result<ChannelQueue> {
        Ok(ChannelQueue::new(Shape::of_depth(depth), DaemonRoute::Kernel, Some(self.inner.clone())))
    }

    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<ChannelQueue>>> {
        Ok(Some(InHandler::new(self.queue(depth)?.sealed(self.target()))))
    }

    /// The channel, and the kernel's own path to the same file.
    fn routes(&self) -> Routes {
        Routes::INLINE | Routes::INTERRUPT
    }

    fn call(&self, io: &Io) -> i32 {
        let gone = |done: i32| [-libc::ENOTCONN, -libc::ECONNABORTED].contains(&done);
        match by_kernel(io) {
            // The daemon was killed; another may serve the file by now.
            done if gone(done) && self.inner.reopen().is_ok() => by_kernel(io),
            done => done,
        }
    }

    fn has_busy_server(&self) -> bool {
        true
    }

    fn refused(&self, _: Route) {}

    fn target(&self) -> i32 {
        self.inner.file.as_raw_fd()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.inner.file.metadata()?.len())
    }
}

/// All descriptors of one served mount. None belongs to it: each request names its own as its
/// target.
///
/// A grant is remembered by its descriptor's number. Callers keep a descriptor open as long as a
/// queue may get requests that name it, or say by [`Mount::for_guest`] when numbers are used again.
#[derive(Clone, Debug)]
pub struct Mount {
    place: Vec<u8>,
    route: DaemonRoute,
    guest: Option<Guest>,
}

impl Mount {
    /// The mount that a descriptor's file is on.
    ///
    /// # Errors
    /// ENOTTY where no daemon serves it; what else the system says.
    pub fn of(descriptor: RawFd) -> io::Result<Mount> {
        Ok(Mount { place: ask::place(descriptor)?, route: DaemonRoute::Kernel, guest: None })
    }

    /// The files of a daemon in this process, which need not be mounted anywhere: `ask` grants
    /// them. What no channel can do is asked of the descriptors themselves.
    pub fn direct(place: &[u8], ask: Asker) -> Mount {
        let route = DaemonRoute::Direct(place.to_vec(), ask);
        Mount { place: place.to_vec(), route, guest: None }
    }

    /// For requests that a program makes which knows nothing of channels. If their memory is not
    /// there, the kernel says so as it always does. `guest` says when a descriptor's number has
    /// come to name another file.
    #[must_use]
    pub fn for_guest(self, guest: Guest) -> Mount {
        Mount { guest: Some(guest), ..self }
    }

    fn channel(&self, shape: Shape) -> ChannelQueue {
        ChannelQueue::new(shape, self.route.clone(), None).for_guest(self.guest)
    }

    /// As [`Served::asynchronous`], for any descriptor of the mount; `descriptor` is one.
    ///
    /// # Errors
    /// What the system or the daemon refuses.
    pub fn asynchronous(&self, shape: Shape, descriptor: RawFd) -> io::Result<ChannelQueue> {
        let mut queue = self.channel(shape);
        queue.connect(descriptor)?;
        Ok(queue)
    }

    /// Tells it apart from others.
    pub fn name(&self) -> String {
        format!("{SCHEME}:{}", String::from_utf8_lossy(&self.place))
    }
}

impl Source for Mount {
    type Queue = ChannelQueue;

    fn queue(&self, depth: u32) -> io::Result<ChannelQueue> {
        Ok(self.channel(Shape::of_depth(depth)))
    }

    /// Channels, and the kernel's own path to the same files.
    fn routes(&self) -> Routes {
        Routes::INLINE | Routes::INTERRUPT
    }

    fn call(&self, io: &Io) -> i32 {
        by_kernel(io)
    }

    fn has_busy_server(&self) -> bool {
        true
    }

    fn target(&self) -> i32 {
        -1
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}
