// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose look-ups the kernel knows how many files by, and which of them it is to forget first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a user with nearly all waits for files to be forgotten. The kernel keeps others off the
/// directory meanwhile, also the thread that has it forget. After a tick or two that one has the
/// next turn.
const PATIENCE: Duration = Duration::from_millis(12);

/// The files that the kernel may know. A user may have as many as are free after it: others come
/// to theirs whatever one user holds on to.
#[derive(Debug)]
pub(super) struct Charges<T> {
    most: usize,
    state: Mutex<State<T>>,
    given_back: Condvar,
}

#[derive(Debug)]
struct State<T> {
    all: usize,
    users: HashMap<u32, User<T>>,
}

#[derive(Debug)]
struct User<T> {
    own: usize,
    files: VecDeque<Weak<T>>,
    directories: VecDeque<Weak<T>>,
    /// Whether directories are asked for now, and how many are before the others' turn.
    at_directories: bool,
    left: usize,
}

/// One file, charged to a user until this is dropped.
#[derive(Debug)]
pub(super) struct Charge<T> {
    of: Arc<Charges<T>>,
    account: u32,
}

/// A user has as many files as there are free ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<T> Charges<T> {
    /// So many files for all users, or for one that is alone.
    pub fn new(files: usize, alone: bool) -> Arc<Self> {
        let most = if alone { files.saturating_mul(2) } else { files };
        let state = State { all: 0, users: HashMap::new() };
        Arc::new(Charges { most, state: Mutex::new(state), given_back: Condvar::new() })
    }

    /// Charges a user with one more; `None` where it is time that the kernel forgets some.
    pub fn take(self: &Arc<Self>, account: u32) -> Option<Charge<T>> {
        let mut state = self.state();
        (!self.is_crowded(&state, account)).then(|| self.charge(&mut state, account))
    }

    /// As [`Charges::take`], after a while also one of the last that the user may have.
    ///
    /// # Errors
    /// The user has all of them.
    pub fn wait(self: &Arc<Self>, account: u32) -> Result<Charge<T>, Full> {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state();
        while self.is_crowded(&state, account) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (own, free) = self.with_one_more(&state, account);
                return if own <= free { Ok(self.charge(&mut state, account)) } else { Err(Full) };
            }
            let waited = self.given_back.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(self.charge(&mut state, account))
    }

    /// The kernel was told of a file that is charged to that user.
    pub fn told(&self, account: u32, file: &Arc<T>, is_directory: bool) {
        let mut state = self.state();
        let Some(user) = state.users.get_mut(&account) else { return };
        let most = 2 * user.own + 64;
        let queue = if is_directory { &mut user.directories } else { &mut user.files };
        if queue.len() > most {
            queue.retain(|file| file.strong_count() > 0);
        }
        queue.push_back(Arc::downgrade(file));
    }

    /// What the kernel should forget: some of what it has known longest, of each user who has
    /// nearly all that they may have, among those that are `asked` for.
    pub fn oldest(&self, most: usize, asked: impl Fn(u32) -> bool) -> Vec<(u32, Vec<Arc<T>>)> {
        let mut state = self.state();
        let is_meant = |user: &u32| asked(*user) && self.is_crowded(&state, *user);
        let crowded: Vec<u32> = state.users.keys().copied().filter(is_meant).collect();
        let users = crowded.into_iter().filter_map(|account| {
            let user = state.users.get_mut(&account)?;
            let some = most.min(user.own / 4 + 1);
            Some((account, user.oldest(some)))
        });
        // The caller drops them without this lock, which the end of a file takes.
        users.collect()
    }

    /// Whether the user should wait: what that user has with one more is above three quarters of
    /// what it may be.
    fn is_crowded(&self, state: &State<T>, account: u32) -> bool {
        let (own, free) = self.with_one_more(state, account);
        own.saturating_mul(4) > free.saturating_mul(3)
    }

    /// With one more: how many the user has, and how many are free.
    fn with_one_more(&self, state: &State<T>, account: u32) -> (usize, usize) {
        let own = state.users.get(&account).map_or(0, |user| user.own);
        (own + 1, self.most.saturating_sub(state.all + 1))
    }

    fn charge(self: &Arc<Self>, state: &mut State<T>, account: u32) -> Charge<T> {
        state.all += 1;
        state.users.entry(account).or_default().own += 1;
        Charge { of: self.clone(), account }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for User<T> {
    fn default() -> Self {
        let (files, directories) = (VecDeque::new(), VecDeque::new());
        User { own: 0, files, directories, at_directories: true, left: 0 }
    }
}

impl<T> User<T> {
    /// Some that the kernel still knows. All files have their turn, then all directories, and then
    /// the files again: one that is in use stays, and is not always the first.
    fn oldest(&mut self, most: usize) -> Vec<Arc<T>> {
        let mut found = Vec::new();
        // The rest of one kind comes first, then the other, and the first again where the other is
        // empty.
        for _ in 0..3 {
            while self.left > 0 && found.len() < most {
                self.left -= 1;
                let queue = self.queue();
                let Some(known) = queue.pop_front() else { break };
                if let Some(file) = known.upgrade() {
                    queue.push_back(known);
                    found.push(file);
                }
            }
            if found.len() == most {
                break;
            }
            self.at_directories = !self.at_directories;
            self.left = self.queue().len();
        }
        found
    }

    fn queue(&mut self) -> &mut VecDeque<Weak<T>> {
        if self.at_directories { &mut self.directories } else { &mut self.files }
    }
}

impl<T> Charge<T> {
    /// Whom it is charged to.
    pub fn account(&self) -> u32 {
        self.account
    }
}

impl<T> Drop for Charge<T> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.all -= 1;
        if let Some(user) = state.users.get_mut(&self.account) {
            user.own -= 1;
            if user.own == 0 {
                state.users.remove(&self.account);
            }
        }
        drop(state);
        self.of.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn takes(charges: &Arc<Charges<u32>>, account: u32) -> Vec<Charge<u32>> {
        std::iter::from_fn(|| charges.take(account)).collect()
    }

    /// As many as a user gets who never gives up.
    fn takes_all(charges: &Arc<Charges<u32>>, account: u32) -> Vec<Charge<u32>> {
        std::iter::from_fn(|| charges.wait(account).ok()).collect()
    }

    #[test]
    fn a_user_has_no_more_than_is_free_after_it() {
        let charges = Charges::new(700, false);
        let first = takes(&charges, 1);
        assert_eq!(first.len(), 300, "three quarters of the 400 that are free then");
        let rest = takes_all(&charges, 1);
        assert_eq!(first.len() + rest.len(), 350, "as many as are free then");
        assert_eq!(charges.wait(1).err(), Some(Full));
        // Others who come then neither wait nor go without.
        let second = takes(&charges, 2);
        let third = takes(&charges, 3);
        assert_eq!((second.len(), third.len()), (150, 85));
        drop(first);
        assert!(charges.take(1).is_some());
        let alone = Charges::new(70, true);
        assert_eq!(takes_all(&alone, 1).len(), 70);
    }

    #[test]
    fn a_user_with_nearly_all_waits_until_one_is_given_back() {
        let charges = Charges::new(700, false);
        let mut first = takes(&charges, 1);
        let began = Instant::now();
        thread::scope(|scope| {
            let waits = scope.spawn(|| charges.wait(1).unwrap());
            drop(first.pop());
            waits.join().unwrap();
        });
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(charges.state().all, 299);
    }

    #[test]
    fn the_kernel_is_asked_for_each_file_before_any_is_asked_for_again() {
        let charges = Charges::new(28, false);
        let held = takes(&charges, 1);
        let files: Vec<_> = (0..held.len() as u32).map(Arc::new).collect();
        // The first is a directory.
        files.iter().for_each(|file| charges.told(1, file, **file == 0));
        let idle = charges.take(2).unwrap();
        charges.told(2, &Arc::new(99), false);
        let asked = |most| -> Vec<u32> {
            let users = charges.oldest(most, |_| true);
            users.iter().flat_map(|(_, files)| files).map(|file| **file).collect()
        };
        assert_eq!(files.len(), 12);
        assert_eq!((asked(3), asked(3)), (vec![1, 2, 3], vec![4, 5, 6]));
        // Not those that are forgotten; directories last.
        let files: Vec<_> = files.into_iter().filter(|file| !(7..10).contains(&**file)).collect();
        assert_eq!((asked(3), asked(3)), (vec![10, 11, 0], vec![1, 2, 3]));
        drop((files, held));
        assert!(charges.oldest(3, |_| true).is_empty(), "a user who has few is left alone");
        drop(idle);
        assert!(charges.state().users.is_empty());
    }
}
