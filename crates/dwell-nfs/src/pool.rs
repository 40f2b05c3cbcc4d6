// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's connections: the first one, and those that the server lets it have beside it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dwell::executor::Handle as Tasks;

use crate::connection::{Connection, Health};
use crate::nfs3::Null;

/// After a server refused a further connection, it is asked again so much later.
const AGAIN: Duration = Duration::from_secs(60);

/// Connections of one client to one server.
pub(crate) struct Pool {
    there: RefCell<Vec<Rc<Connection>>>,
    /// How many more are asked for, or were refused a moment ago.
    asked: Cell<usize>,
}

impl Pool {
    /// The connection that a client must have.
    pub fn new(first: Connection) -> Rc<Pool> {
        Rc::new(Pool { there: RefCell::new(vec![Rc::new(first)]), asked: Cell::new(0) })
    }

    /// Asks for connections, until there are `count`. One has its first request once the server
    /// has answered on it, so that no request waits for a connection that is refused.
    pub fn ask_for(
        self: &Rc<Self>,
        count: usize,
        tasks: &Tasks,
        open: impl Fn() -> io::Result<Connection>,
    ) {
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
        let mut all = Health::default();
        for connection in &*self.there.borrow() {
            let one = connection.health();
            all.window += one.window;
            all.round_trip_ns = all.round_trip_ns.max(one.round_trip_ns);
            all.counters += one.counters;
        }
        all
    }
}
