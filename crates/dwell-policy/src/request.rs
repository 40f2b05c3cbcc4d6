// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a request asks of a device, and on which way.

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Make earlier writes durable (fsync, fdatasync, a COMMIT).
    Sync,
}

/// How the caller asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// One request; the thread has nothing else to do until it completes.
    Blocking,
    /// One of several in flight from this thread.
    Async,
}

/// How a request is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Route {
    /// A synchronous call in the caller's context; the kernel decides whether it blocks.
    Inline,
    /// A queue whose device is really polled: no interrupt is raised.
    Polled,
    /// A queue that is completed by the device's interrupt (or by another party's write).
    Interrupt,
}

impl Route {
    /// The word used in tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Route::Inline => "inline",
            Route::Polled => "polled",
            Route::Interrupt => "interrupt",
        }
    }
}

/// The set of routes that a queue offers at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Routes(u8);

impl Routes {
    /// No route.
    pub const NONE: Routes = Routes(0);
    /// Only [`Route::Inline`].
    pub const INLINE: Routes = Routes(1);
    /// Only [`Route::Polled`].
    pub const POLLED: Routes = Routes(2);
    /// Only [`Route::Interrupt`].
    pub const INTERRUPT: Routes = Routes(4);

    const fn bit(route: Route) -> u8 {
        match route {
            Route::Inline => 1,
            Route::Polled => 2,
            Route::Interrupt => 4,
        }
    }

    /// Whether `route` is offered.
    pub const fn has(self, route: Route) -> bool {
        self.0 & Self::bit(route) != 0
    }

    /// This set less `route`.
    #[must_use]
    pub const fn without(self, route: Route) -> Routes {
        Routes(self.0 & !Self::bit(route))
    }

    /// Where a spinning thread sends its request: polled before interrupt. `None` where only
    /// synchronous calls are possible, for then nobody can spin.
    pub const fn to_spin(self) -> Option<Route> {
        if self.has(Route::Polled) {
            Some(Route::Polled)
        } else if self.has(Route::Interrupt) {
            Some(Route::Interrupt)
        } else {
            None
        }
    }

    /// Where a thread that blocks sends its request. A polled queue wakes nobody, so it
    /// comes last. A lone request blocks best in a synchronous call; one of several must not.
    pub const fn to_block(self, call: Call) -> Route {
        match call {
            Call::Blocking if self.has(Route::Inline) => Route::Inline,
            _ if self.has(Route::Interrupt) => Route::Interrupt,
            _ if self.has(Route::Inline) => Route::Inline,
            _ => Route::Polled,
        }
    }
}

impl core::ops::BitOr for Routes {
    type Output = Routes;
    fn bitor(self, other: Routes) -> Routes {
        Routes(self.0 | other.0)
    }
}

/// Requests in flight ahead of a new one on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
    pub requests: u32,
}

impl Backlog {
    /// This backlog without a part of it.
    #[must_use]
    pub const fn less(self, part: Backlog) -> Backlog {
        Backlog {
            bytes: self.bytes.saturating_sub(part.bytes),
            requests: self.requests.saturating_sub(part.requests),
        }
    }
}
