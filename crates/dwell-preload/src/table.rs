// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptors of this process. Each has one atomic word with what is known of it, how lately
//! its reads missed the page cache, and how often its number came to name something else.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dwell::file::Heat;

use crate::{futex, process};

/// Descriptors that are told apart; higher ones are left to the kernel.
pub const MOST: usize = 1 << 16;

static WORDS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// How often each number was opened, closed or replaced. What was granted for it before is another
/// file's.
static EPOCHS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
static HEATS: [Heat; MOST] = [const { Heat::new() }; MOST];
/// One more than the highest descriptor that was ever entered.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// Whether a descriptor may have become private since they last came into other hands.
static SOME_PRIVATE: AtomicBool = AtomicBool::new(false);
/// How often they did. What was private before then no longer is.
static AGE: AtomicU32 = AtomicU32::new(0);

/// A word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u64);

/// The treatment of a descriptor's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It has to be looked at first.
    Unknown,
    /// They are the kernel's.
    Pass,
    /// They are decided.
    Decide,
}

const PASS: u64 = 1;
const DECIDE: u64 = 2;
const TREATMENT: u64 = 3;
const DIRECT: u64 = 1 << 2;
const APPEND: u64 = 1 << 3;
/// Where it stands is moved by one thread of this process and by nobody else.
const PRIVATE: u64 = 1 << 4;
/// That thread is moving it at this moment.
const MOVING: u64 = 1 << 5;
/// Its writes are copies into the page cache.
const COPIES: u64 = 1 << 6;
/// Somebody sleeps until it is no longer moving.
const AWAITED: u64 = 1 << 7;
const DEVICE_SHIFT: u32 = 8;
const DEVICE_BITS: u32 = 7;
/// The thread that is moving it is about to say where it stands from now on.
const LANDING: u64 = 1 << 15;
const AGE_SHIFT: u32 = 16;
const OWNER_SHIFT: u32 = 32;
/// Its owner, and whether that one is moving it.
const OWNERSHIP: u64 =
    PRIVATE | MOVING | LANDING | AWAITED | 0xffff << AGE_SHIFT | 0xffff_ffff << OWNER_SHIFT;

/// Devices that words can tell apart.
pub const MOST_DEVICES: usize = 1 << DEVICE_BITS;

/// How often descriptors came into other hands so far. Those opened from here on may be private.
#[inline]
pub fn age() -> u32 {
    // First: whoever takes the flag away after this makes this age an old one, too.
    let age = AGE.load(Ordering::SeqCst);
    SOME_PRIVATE.store(true, Ordering::SeqCst);
    age
}

impl Word {
    /// One whose requests are the kernel's.
    pub const PASSED: Word = Word(PASS);
    /// One that has to be looked at first.
    pub const UNKNOWN: Word = Word(0);

    /// One whose requests are decided.
    pub fn decided(device: u8, direct: bool, append: bool) -> Word {
        let direct = if direct { DIRECT } else { 0 };
        let append = if append { APPEND } else { 0 };
        Word(DECIDE | direct | append | u64::from(device) << DEVICE_SHIFT)
    }

    /// The same, whose writes are copies into the page cache.
    pub fn copying(self) -> Word {
        Word(self.0 | COPIES)
    }

    /// The same, opened by a thread since that [`age`].
    pub fn owned_by(self, thread: u32, age: u32) -> Word {
        match u16::try_from(age) {
            Ok(age) if thread != 0 => {
                let (age, owner) = (u64::from(age) << AGE_SHIFT, u64::from(thread) << OWNER_SHIFT);
                Word(self.0 | PRIVATE | age | owner)
            }
            _ => self,
        }
    }

    /// The same, opened by whoever opened `before`.
    pub fn owned_as(self, before: Word) -> Word {
        Word(self.0 | before.0 & OWNERSHIP)
    }

    /// The treatment of its requests.
    #[inline(always)]
    pub fn treatment(self) -> Treatment {
        match self.0 & TREATMENT {
            0 => Treatment::Unknown,
            PASS => Treatment::Pass,
            _ => Treatment::Decide,
        }
    }

    /// Which device it is on.
    #[inline]
    pub fn device(self) -> u8 {
        (self.0 >> DEVICE_SHIFT) as u8 & (MOST_DEVICES - 1) as u8
    }

    /// Whether it bypasses the page cache.
    #[inline]
    pub fn direct(self) -> bool {
        self.0 & DIRECT != 0
    }

    /// Whether its writes go to the end.
    #[inline]
    pub fn appends(self) -> bool {
        self.0 & APPEND != 0
    }

    /// Whether its writes are copies into the page cache, and so wait for nothing.
    #[inline]
    pub fn copies(self) -> bool {
        self.0 & COPIES != 0
    }

    fn is_private(self) -> bool {
        self.0 & PRIVATE != 0 && (self.0 >> AGE_SHIFT) as u16 as u32 == AGE.load(Ordering::Relaxed)
    }

    fn owner(self) -> u32 {
        (self.0 >> OWNER_SHIFT) as u32
    }

    /// Whether a thread is moving it in more than one step.
    pub fn is_moving(self) -> bool {
        self.0 & MOVING != 0
    }

    fn is_moved_by(self, thread: u32) -> bool {
        self.is_moving() && self.owner() == thread
    }
}

fn slot(fd: i32) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(fd).ok()?)
}

/// The word of a descriptor; that of one left to the kernel past the table's end.
#[inline(always)]
pub fn word(fd: i32) -> Word {
    match WORDS.get(fd as u32 as usize) {
        Some(word) => Word(word.load(Ordering::Relaxed)),
        None => Word::PASSED,
    }
}

/// How lately its reads missed the page cache.
#[inline]
pub fn heat(fd: i32) -> &'static Heat {
    &HEATS[fd as u32 as usize & (MOST - 1)]
}

/// Enters what was found of a descriptor, of which `before` was known when it was looked at. What
/// has changed since holds: another thread may share it, or be moving it, or have closed it. Its
/// word now.
pub fn enter(fd: i32, before: Word, found: Word) -> Word {
    let Some(slot) = slot(fd) else { return found };
    HIGHEST.fetch_max(fd as usize + 1, Ordering::Relaxed);
    let order = Ordering::SeqCst;
    match slot.compare_exchange(before.0, found.0, order, order) {
        Ok(_) => {
            heat(fd).cool();
            found
        }
        Err(now) => Word(now),
    }
}

/// Forgets what was found of a descriptor whose number names the same as before: not who moves it.
pub fn look_again(fd: i32) {
    if let Some(slot) = slot(fd) {
        slot.fetch_and(OWNERSHIP, Ordering::SeqCst);
    }
}

/// Forgets all about a descriptor. A thread that is moving it does not say any more where it stands;
/// one that is just saying it is waited for.
fn forget(slot: &AtomicU64) {
    loop {
        let word = slot.load(Ordering::SeqCst);
        if word == 0 {
            return;
        }
        if word & LANDING != 0 && process::is_ours() {
            sleep(slot, word);
        } else if slot.compare_exchange(word, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            if word & AWAITED != 0 {
                wake(slot);
            }
            return;
        }
    }
}

/// A number is about to name something else, or just came to: what is known of it, and granted for
/// it, is no longer so. Closing says so before and after, because another thread may open or ask in
/// between.
#[inline]
pub fn renew(fd: i32) {
    if let Some(slot) = slot(fd) {
        forget(slot);
    }
    if let Some(epoch) = usize::try_from(fd).ok().and_then(|fd| EPOCHS.get(fd)) {
        epoch.fetch_add(1, Ordering::SeqCst);
    }
}

/// How often a number was renewed.
pub fn epoch(fd: i32) -> u32 {
    let epoch = usize::try_from(fd).ok().and_then(|fd| EPOCHS.get(fd));
    epoch.map_or(0, |epoch| epoch.load(Ordering::SeqCst))
}

/// The same for all numbers from `first` to `last`.
pub fn renew_range(first: u32, last: u32) {
    let highest = HIGHEST.load(Ordering::Relaxed) as u32;
    for fd in first..last.saturating_add(1).min(highest) {
        renew(fd as i32);
    }
}

/// Whether any descriptor may be moved by one thread of this process alone.
pub fn has_private() -> bool {
    SOME_PRIVATE.load(Ordering::Relaxed)
}

/// From now on others can move any descriptor of before.
pub fn shared_with_others() {
    if !SOME_PRIVATE.swap(false, Ordering::SeqCst) {
        return;
    }
    // Beyond 65535 times nothing is private any more.
    let _ = AGE.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |age| {
        (age <= u32::from(u16::MAX)).then_some(age + 1)
    });
}

/// From now on more than one thread moves this descriptor; returns once its owner does not.
pub fn share(fd: i32) {
    let Some(slot) = slot(fd) else { return };
    if slot.load(Ordering::SeqCst) & PRIVATE != 0 {
        slot.fetch_and(!PRIVATE, Ordering::SeqCst);
    }
    // The owner waits for a device, not this thread: as for a lock that is held meanwhile, there is
    // nothing to decide.
    loop {
        let word = slot.load(Ordering::SeqCst);
        // In a child whose fork was not seen, the owner is not there.
        if word & MOVING == 0 || !process::is_ours() {
            return;
        }
        sleep(slot, word);
    }
}

/// Sleeps, unless a word has changed, until who is moving its descriptor has done so.
fn sleep(slot: &AtomicU64, word: u64) {
    let awaited = word | AWAITED;
    let known = Ordering::SeqCst;
    if word == awaited || slot.compare_exchange(word, awaited, known, known).is_ok() {
        futex::wait(low_half(slot), awaited as u32);
    }
}

/// The half of a word that says whether it is moving.
fn low_half(slot: &AtomicU64) -> *const u32 {
    let halves = slot.as_ptr().cast_const().cast::<u32>();
    if cfg!(target_endian = "big") { halves.wrapping_add(1) } else { halves }
}

#[cold]
fn wake(slot: &AtomicU64) {
    futex::wake_all(low_half(slot));
}

/// The calling thread is about to use a descriptor where it stands, by a plain system call: whoever
/// is not its owner must wait until the owner is done and take it for shared.
#[inline]
pub fn about_to_move(fd: i32, word: Word, thread: u32) {
    if word.0 & (PRIVATE | MOVING) != 0 && word.owner() != thread {
        share(fd);
    }
}

/// The right to move a descriptor in more than one step, for as long as nobody closes it.
pub struct Moving {
    slot: &'static AtomicU64,
    thread: u32,
}

impl Moving {
    /// `None` where others could move it too.
    pub fn begin(fd: i32, word: Word, thread: u32) -> Option<Moving> {
        if !word.is_private() || word.owner() != thread || thread == 0 {
            return None;
        }
        let slot = slot(fd)?;
        let moving = word.0 | MOVING;
        slot.compare_exchange(word.0, moving, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        Some(Moving { slot, thread })
    }

    /// Moves it by `act`, the last step, for which a close waits. After a close the number may be
    /// another file's already: then nothing is moved.
    pub fn land(&self, act: impl FnOnce()) {
        if self.change(|word| word | LANDING).is_some() {
            act();
        }
    }

    /// Changes the word, which was what is returned, unless it is no longer of what is being moved.
    fn change(&self, to: impl Fn(u64) -> u64) -> Option<u64> {
        let order = Ordering::SeqCst;
        let is_same = |word: &u64| Word(*word).is_moved_by(self.thread);
        self.slot.fetch_update(order, order, |word| is_same(&word).then(|| to(word))).ok()
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let before = self.change(|word| word & !(MOVING | LANDING | AWAITED));
        if before.is_some_and(|word| word & AWAITED != 0) {
            wake(self.slot);
        }
    }
}
