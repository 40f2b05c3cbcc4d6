// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the integration tests share: patterns, policies, places on devices, a scripted source.
#![allow(dead_code, unsafe_code)]

pub mod child;
pub mod fake;
pub mod forbid;
pub mod machine;
pub mod refused;
pub mod sources;
pub mod vm;

use std::net::{TcpListener, TcpStream};

use dwell::buffer::Aligned;
use dwell::dwell_policy::Routes;
use dwell::dwell_policy::{Goal, Load, Ns, Profile, Wait};
use dwell::executor::Executor;
use dwell::kernel::Kernel;
use dwell::parameters::DeviceParameters;
use dwell::queue::Io;
use dwell::ring::SpinMethod;
use dwell::source::Source;
use dwell::{Decision, DeviceClass, File, Mode, Reason, Route, WaitPolicy, policy};

pub const BLOCK: usize = 4096;

/// What a process needs for rings.
pub const RING_CALLS: [libc::c_long; 2] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter];

/// Says why a test passes without testing.
pub fn skip(reason: impl std::fmt::Display) {
    println!("SKIP: {reason}");
}

/// An executor of this thread.
pub fn executor() -> Executor {
    Executor::new().unwrap()
}

/// Lets the tasks go on as far as they can.
pub fn turns(executor: &Executor) {
    executor.block_on(async {
        for _ in 0..4 {
            executor.yield_now().await;
        }
    });
}

/// A connection over loopback that holds nothing back; the near end does not block.
pub fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    (near, far)
}

/// The byte that belongs at `offset` in data of this `seed`.
pub fn byte_at(offset: u64, seed: u64) -> u8 {
    let mut x = (offset / 8).wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ (seed << 40);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)).to_le_bytes()[offset as usize % 8]
}

/// Fills `bytes` with what belongs at `offset`.
pub fn fill(bytes: &mut [u8], offset: u64, seed: u64) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = byte_at(offset + at as u64, seed);
    }
}

/// Panics at the first byte that does not belong at `offset`.
#[track_caller]
pub fn check(bytes: &[u8], offset: u64, seed: u64) {
    let wrong =
        bytes.iter().enumerate().find(|(at, byte)| **byte != byte_at(offset + *at as u64, seed));
    if let Some((at, byte)) = wrong {
        panic!("byte {} of seed {seed} is {byte:#x} ({} asked)", offset + at as u64, bytes.len());
    }
}

/// What a probe would say of a fast device.
pub fn fast() -> DeviceParameters {
    let profile = Profile { class: DeviceClass::Fast, ..Profile::default() };
    DeviceParameters { profile: Some(profile), ..DeviceParameters::default() }
}

/// Always this route and mode; blocks where the route is not offered.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    pub route: Route,
    pub mode: Mode,
    pub method: SpinMethod,
}

impl Fixed {
    /// Inline, polled (real or not), and each spin method with each mode.
    pub fn all() -> Vec<Fixed> {
        let modes = [Mode::Block, Mode::Spin, Mode::Hybrid { sleep_ns: 20_000 }];
        let method = SpinMethod::default();
        let mut fixed = vec![
            Fixed { route: Route::Inline, mode: Mode::Block, method },
            Fixed { route: Route::Polled, mode: Mode::Spin, method },
        ];
        for method in SpinMethod::ALL {
            fixed.extend(modes.map(|mode| Fixed { route: Route::Interrupt, mode, method }));
        }
        fixed
    }

    pub fn spin() -> Fixed {
        Fixed { route: Route::Interrupt, mode: Mode::Spin, method: SpinMethod::default() }
    }

    pub fn block() -> Fixed {
        Fixed { mode: Mode::Block, ..Fixed::spin() }
    }

    pub fn parameters(&self) -> DeviceParameters {
        DeviceParameters { method: self.method, polled: self.route == Route::Polled, ..fast() }
    }
}

impl WaitPolicy for Fixed {
    fn name(&self) -> &str {
        "way"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        match wait.routes.has(self.route) {
            true => Decision::new(self.route, self.mode, 0, Reason::Fixed),
            false => policy::block(wait, Reason::NoQueue),
        }
    }
}

/// A policy on a machine in a state of the test's choosing, whose spins do not expire before
/// `spin_limit_ns`.
pub struct Under<P> {
    pub policy: P,
    pub load: Load,
    pub spin_limit_ns: Option<Ns>,
}

impl<P> Under<P> {
    /// Spins that outlast every disturbance by other processes.
    pub fn patient(policy: P) -> Self {
        Under { policy, load: Load::default(), spin_limit_ns: Some(60_000_000_000) }
    }
}

impl<P: WaitPolicy> WaitPolicy for Under<P> {
    fn name(&self) -> &str {
        "under"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        let mut decision = self.policy.choose(&Wait { load: self.load, ..wait.clone() });
        decision.spin_limit_ns = self.spin_limit_ns.unwrap_or(decision.spin_limit_ns);
        decision
    }

    fn goal(&self) -> Option<Goal> {
        self.policy.goal()
    }
}

/// Voluntary context switches of the calling thread so far.
pub fn voluntary_switches() -> u64 {
    // SAFETY: a zeroed rusage is a valid buffer.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw as u64
}

/// A buffered file would be served by the page cache: a source that says it has none.
pub fn uncached(path: &std::path::Path, fixed: Fixed) -> File<Uncached> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    uncached_over(file.into(), fixed)
}

/// As [`uncached`], over an open descriptor.
pub fn uncached_over(descriptor: std::os::fd::OwnedFd, fixed: Fixed) -> File<Uncached> {
    let source = Uncached(Kernel::new(descriptor, 1, fixed.method, false));
    File::over(source, "uncached", "uncached", fixed.parameters(), std::sync::Arc::new(fixed), None)
}

/// See [`uncached`].
pub struct Uncached(Kernel);

impl Source for Uncached {
    type Queue = <Kernel as Source>::Queue;
    fn queue(&self, depth: u32) -> std::io::Result<Self::Queue> {
        self.0.queue(depth)
    }
    fn call_queue(&self) -> std::io::Result<Self::Queue> {
        self.0.call_queue()
    }
    fn shares(&self) -> Option<u64> {
        self.0.shares()
    }
    fn routes(&self) -> Routes {
        self.0.routes()
    }
    fn call(&self, io: &Io) -> i32 {
        self.0.call(io)
    }
    fn target(&self) -> i32 {
        self.0.target()
    }
    fn bytes(&self) -> std::io::Result<u64> {
        self.0.bytes()
    }
}

/// Reads all of a file of `bytes` bytes in pieces, with `tasks` of them in flight.
pub async fn read_all<S>(file: dwell::executor::AsyncFile<S>, bytes: u64, tasks: u64, seed: u64)
where
    S: Source + 'static,
    S::Queue: Send + 'static,
{
    let pieces = bytes / BLOCK as u64;
    let mut flights: Vec<_> = (0..tasks)
        .map(|first| {
            let file = file.clone();
            Box::pin(async move {
                let mut buffer = Aligned::new(BLOCK);
                for piece in (first..pieces).step_by(tasks as usize) {
                    let at = piece * BLOCK as u64;
                    let (result, back) = file.read_at(buffer, at).await;
                    assert_eq!(result.unwrap(), BLOCK);
                    check(&back, at, seed);
                    buffer = back;
                }
            })
        })
        .collect();
    std::future::poll_fn(|context| {
        flights.retain_mut(|flight| flight.as_mut().poll(context).is_pending());
        if flights.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
