// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads for requests that may take long, so that those who answer the others are never all
//! waiting for a device.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Most that are carried out at a time. One user has half of them at most, two a third each, and so
/// on: some are free for whoever comes next.
const MOST: usize = 64;
/// How long a thread without anything to do stays.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads, made as they are needed.
#[derive(Clone, Default)]
pub(crate) struct Slow(Arc<Pool>);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    users: HashMap<u32, User>,
    /// Users with something to do, in the order of their turns.
    turns: VecDeque<u32>,
    /// Jobs that nobody has taken up.
    waiting: usize,
    running: usize,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct User {
    jobs: VecDeque<Job>,
    running: usize,
}

impl Slow {
    /// Carries something out for a user, soon, on another thread; where there can be none, here and
    /// now.
    pub fn run(&self, uid: u32, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state();
        // Those that are idle may have been woken for others already.
        if state.waiting >= state.idle && state.threads < MOST {
            let pool = self.0.clone();
            let made =
                thread::Builder::new().name("dwell-slow".to_owned()).spawn(move || pool.serve());
            state.threads += usize::from(made.is_ok());
        }
        if state.threads == 0 {
            drop(state);
            return job();
        }
        state.add(uid, Box::new(job));
        self.0.work.notify_one();
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.state();
        loop {
            if let Some((uid, job)) = state.take() {
                drop(state);
                job();
                state = self.state();
                state.over(uid);
                continue;
            }
            state.idle += 1;
            let (back, waited) =
                self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.turns.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl State {
    fn add(&mut self, uid: u32, job: Job) {
        let user = self.users.entry(uid).or_default();
        if user.jobs.is_empty() {
            self.turns.push_back(uid);
        }
        user.jobs.push_back(job);
        self.waiting += 1;
    }

    /// The next job and its user: that of the user waiting longest, among those who run fewer jobs
    /// than there are free places.
    fn take(&mut self) -> Option<(u32, Job)> {
        let free = MOST.saturating_sub(self.running);
        let may = |uid: &u32| self.users.get(uid).is_some_and(|user| user.running < free);
        let at = self.turns.iter().position(may)?;
        let uid = self.turns.remove(at)?;
        let user = self.users.get_mut(&uid)?;
        let job = user.jobs.pop_front()?;
        user.running += 1;
        self.running += 1;
        self.waiting -= 1;
        if !user.jobs.is_empty() {
            self.turns.push_back(uid);
        }
        Some((uid, job))
    }

    fn over(&mut self, uid: u32) {
        self.running -= 1;
        if let Some(user) = self.users.get_mut(&uid) {
            user.running -= 1;
            if user.running == 0 && user.jobs.is_empty() {
                self.users.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_user_whose_requests_never_end_leaves_threads_to_others() {
        let slow = Slow::default();
        let (say, said) = channel();
        let (free, freed) = channel::<()>();
        let freed = Arc::new(Mutex::new(freed));
        for uid in [1, 2] {
            for _ in 0..2 * MOST {
                let (say, freed) = (say.clone(), freed.clone());
                slow.run(uid, move || {
                    // Waits until the test lets go of the other end.
                    let _ = freed.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    say.send(uid).unwrap();
                });
            }
        }
        let last = say.clone();
        slow.run(3, move || last.send(3).unwrap());
        let patience = Duration::from_secs(20);
        assert_eq!(said.recv_timeout(patience), Ok(3), "two stuck users have all threads");
        drop(free);
        for _ in 0..4 * MOST {
            assert!(said.recv_timeout(patience).is_ok_and(|uid| uid < 3));
        }
    }
}
