// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's connections: the first one, and those that the server lets it have beside it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dwell::executor::Handle as Tasks;

use crate::connection::{Connection, Health};
use crate::engine::Counters;
use crate::nfs3::Null;

/// After a server refused a further connection, it is asked again so much later.
const AGAIN: Duration = Duration::from_secs(60);

/// Connections of one client to one server.
pub(crate) struct Pool {
    there: RefCell<Vec<Rc<Connection>>>,
    /// How many more are asked for, or were refused a moment ago.
    asked: Cell<usize>,
    /// What happened on connections that are not there any more.
    gone: Cell<Counters>,
}

impl Pool {
    /// The connection that a client must have.
    pub fn new(first: Connection) -> Rc<Pool> {
        let there = RefCell::new(vec![Rc::new(first)]);
        Rc::new(Pool { there, asked: Cell::new(0), gone: Cell::default() })
    }

    /// Asks for connections, until there are `count`. One has its first request once the server
    /// has answered on it, so that no request waits for a connection that is refused. A further
    /// connection that was lost, and on which nothing waits, is asked for in the same way.
    pub fn ask_for(
        self: &Rc<Self>,
        count: usize,
        tasks: &Tasks,
        open: impl Fn() -> io::Result<Connection>,
    ) {
        self.drop_lost();
        while self.there.borrow().len() + self.asked.get() < count {
            self.asked.set(self.asked.get() + 1);
            let (opened, pool, timer) = (open(), Rc::downgrade(self), tasks.clone());
            let ask = async move {
                let is_there = match opened {
                    Ok(connection) => Self::try_one(&pool, connection).await,
                    Err(_) => false,
                };
                if !is_there {
                    timer.sleep(AGAIN).await;
                }
                if let Some(pool) = pool.upgrade() {
                    pool.asked.set(pool.asked.get() - 1);
                }
            };
            tasks.spawn(ask).detach();
        }
    }

    fn drop_lost(&self) {
        let is_lost = |connection: &Connection| connection.is_down() && connection.pending() == 0;
        let mut there = self.there.borrow_mut();
        if !there.iter().skip(1).any(|connection| is_lost(connection)) {
            return;
        }
        let (mut place, mut gone) = (0, self.gone.get());
        there.retain(|connection| {
            let is_kept = place == 0 || !is_lost(connection);
            place += 1;
            if !is_kept {
                gone += connection.health().counters;
            }
            is_kept
        });
        self.gone.set(gone);
    }

    async fn try_one(pool: &Weak<Pool>, connection: Connection) -> bool {
        let answered = connection.call(&Null, None, |()| ()).await.is_ok();
        if let Some(pool) = pool.upgrade().filter(|_| answered) {
            let mut there = pool.there.borrow_mut();
            connection.join(there.iter().map(AsRef::as_ref));
            there.push(Rc::new(connection));
        }
        answered
    }

    /// The connection with the fewest requests of the first `count`.
    pub fn least_busy(&self, count: usize) -> Rc<Connection> {
        let there = self.there.borrow();
        let least = there.iter().take(count).min_by_key(|connection| connection.pending());
        least.unwrap_or(&there[0]).clone()
    }

    /// How they are doing, together.
    pub fn health(&self) -> Health {
        let mut all = Health { counters: self.gone.get(), ..Health::default() };
        for connection in &*self.there.borrow() {
            let one = connection.health();
            all.window += one.window;
            all.round_trip_ns = all.round_trip_ns.max(one.round_trip_ns);
            all.counters += one.counters;
        }
        all
    }
}
