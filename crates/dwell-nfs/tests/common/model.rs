// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server with a whole file system in memory. When it is restarted, it forgets data that was not
//! made durable. It has no memory of requests, and fails at the call that it is told to fail at.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use super::fake::{Call, Fake, Told, opaque, words};

const NOENT: u32 = 2;
const EXIST: u32 = 17;
const NOTDIR: u32 = 20;
const ISDIR: u32 = 21;
const NOTEMPTY: u32 = 66;
const STALE: u32 = 70;

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server is restarted before it carries the call out.
    RestartBefore,
    /// The server is restarted after it carried the call out, before it answers.
    RestartAfter,
    /// The call is carried out and the connection lost before the answer is sent.
    Unanswered,
    /// The call is answered with this status, and not carried out.
    Refuse(u32),
}

/// What there is by one handle.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// As the protocol numbers it: 1 a file, 2 a directory, 5 a link, 7 a pipe.
    pub kind: u32,
    pub mode: u32,
    pub links: u32,
    /// Data as clients see it, and as it is after a restart.
    pub data: Vec<u8>,
    pub durable: Vec<u8>,
    pub accessed: (u32, u32),
    pub modified: (u32, u32),
    pub changed: u32,
    pub target: Vec<u8>,
    /// What it was made with, if exclusively.
    pub verifier: Vec<u8>,
    pub names: BTreeMap<Vec<u8>, u64>,
}

type Due = Box<dyn FnMut(&Call, u64) -> Option<Fault> + Send>;

#[derive(Default)]
pub struct State {
    pub entries: HashMap<u64, Entry>,
    last: u64,
    /// Its verifier.
    pub life: u32,
    /// Calls of NFS that came.
    pub calls: u64,
    /// Each call's procedure.
    pub seen: Vec<u32>,
    clock: u32,
    fault: Option<Due>,
}

/// The file system; clones share it.
#[derive(Clone)]
pub struct Model(Arc<Mutex<State>>);

struct Arguments<'a>(&'a [u8]);

impl Arguments<'_> {
    fn u32(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk().expect("a word");
        self.0 = rest;
        u32::from_be_bytes(*word)
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    fn opaque(&mut self) -> Vec<u8> {
        let length = self.u32() as usize;
        let bytes = self.0[..length].to_vec();
        self.0 = &self.0[length.next_multiple_of(4)..];
        bytes
    }

    fn handle(&mut self) -> u64 {
        self.opaque().first_chunk().map_or(0, |id| u64::from_be_bytes(*id))
    }

    fn attributes(&mut self, entry: &mut Entry, now: u32) {
        if self.u32() == 1 {
            entry.mode = self.u32();
        }
        for _ in 0..2 {
            if self.u32() == 1 {
                self.u32();
            }
        }
        if self.u32() == 1 {
            let bytes = self.u64() as usize;
            entry.data.resize(bytes, 0);
            // What was written and is not durable stays so.
            entry.durable.resize(bytes, 0);
        }
        for accessed in [true, false] {
            let time = match self.u32() {
                0 => continue,
                1 => (now, 0),
                _ => (self.u32(), self.u32()),
            };
            *if accessed { &mut entry.accessed } else { &mut entry.modified } = time;
        }
    }
}

fn u64s(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

impl State {
    fn entry(&mut self, id: u64) -> Result<&mut Entry, u32> {
        self.entries.get_mut(&id).ok_or(STALE)
    }

    fn directory(&mut self, id: u64) -> Result<&mut Entry, u32> {
        match self.entry(id)? {
            entry if entry.kind == 2 => Ok(entry),
            _ => Err(NOTDIR),
        }
    }

    fn named(&mut self, directory: u64, name: &[u8]) -> Result<u64, u32> {
        self.directory(directory)?.names.get(name).copied().ok_or(NOENT)
    }

    fn attributes(&self, id: u64) -> Vec<u8> {
        let entry = &self.entries[&id];
        let bytes = entry.data.len() as u64;
        let (accessed, modified) = (entry.accessed, entry.modified);
        [
            words(&[entry.kind, entry.mode, entry.links, 0, 0]),
            u64s(bytes),
            u64s(bytes),
            words(&[0, 0]),
            u64s(1),
            u64s(id),
            words(&[accessed.0, accessed.1, modified.0, modified.1, entry.changed, 0]),
        ]
        .concat()
    }

    fn made(&mut self, directory: u64, name: Vec<u8>, mut entry: Entry) -> Vec<u8> {
        self.last += 1;
        let id = self.last;
        (entry.links, entry.changed) = (1, self.clock);
        self.entries.insert(id, entry);
        self.entries.get_mut(&directory).unwrap().names.insert(name, id);
        self.told(id)
    }

    fn told(&self, id: u64) -> Vec<u8> {
        let handle = opaque(&id.to_be_bytes());
        [words(&[1]), handle, words(&[1]), self.attributes(id), words(&[0, 0])].concat()
    }

    fn unlink(&mut self, directory: u64, name: &[u8]) {
        let id = self.entries.get_mut(&directory).unwrap().names.remove(name).unwrap();
        let entry = self.entries.get_mut(&id).unwrap();
        entry.links -= 1;
        if entry.links == 0 {
            self.entries.remove(&id);
        }
    }

    /// Everything that was not made durable is gone.
    pub fn restart(&mut self) {
        self.life += 1;
        for entry in self.entries.values_mut() {
            entry.data.clone_from(&entry.durable);
        }
    }

    fn carry_out(&mut self, procedure: u32, mut given: Arguments<'_>) -> Result<Vec<u8>, u32> {
        self.clock += 1;
        let now = self.clock;
        let verifier = words(&[7, self.life]);
        let id = if procedure == 0 { 0 } else { given.handle() };
        Ok(match procedure {
            0 => Vec::new(),
            1 => {
                self.entry(id)?;
                self.attributes(id)
            }
            2 => {
                let entry = self.entry(id)?;
                entry.changed = now;
                given.attributes(entry, now);
                words(&[0, 0])
            }
            3 => {
                let found = self.named(id, &given.opaque())?;
                let handle = opaque(&found.to_be_bytes());
                [handle, words(&[1]), self.attributes(found), words(&[0])].concat()
            }
            5 => [words(&[0]), opaque(&self.entry(id)?.target)].concat(),
            6 => {
                let (at, count) = (given.u64() as usize, given.u32() as usize);
                let data = &self.entry(id)?.data;
                let start = at.min(data.len());
                let end = (at + count).min(data.len());
                let ends = u32::from(end == data.len());
                let part = &data[start..end];
                [words(&[0, part.len() as u32, ends]), opaque(part)].concat()
            }
            7 => {
                let (at, count, stable) = (given.u64() as usize, given.u32(), given.u32());
                let part = given.opaque();
                let entry = self.entry(id)?;
                for data in [Some(&mut entry.data), (stable > 0).then_some(&mut entry.durable)] {
                    let Some(data) = data else { continue };
                    data.resize(data.len().max(at + part.len()), 0);
                    data[at..at + part.len()].copy_from_slice(&part);
                }
                (entry.modified, entry.changed) = ((now, 0), now);
                // As servers do for whoever is not root.
                entry.mode &= !0o6000;
                [words(&[0, 0, count, stable]), verifier].concat()
            }
            4 => [words(&[0]), words(&[given.u32()])].concat(),
            8 => {
                let (name, mode) = (given.opaque(), given.u32());
                match (self.named(id, &name), mode) {
                    (Ok(found), 2) if given.0 == self.entries[&found].verifier => self.told(found),
                    (Err(NOENT), 2) => {
                        let verifier = given.0.to_vec();
                        self.made(id, name, Entry { kind: 1, verifier, ..Entry::default() })
                    }
                    (Ok(found), 0) => {
                        let mut entry = self.entries[&found].clone();
                        given.attributes(&mut entry, now);
                        self.entries.insert(found, entry);
                        self.told(found)
                    }
                    (Ok(_), _) => return Err(EXIST),
                    (Err(NOENT), _) => {
                        let mut entry = Entry { kind: 1, modified: (now, 0), ..Entry::default() };
                        given.attributes(&mut entry, now);
                        self.made(id, name, entry)
                    }
                    (Err(status), _) => return Err(status),
                }
            }
            9 | 10 => {
                let name = given.opaque();
                if self.named(id, &name) != Err(NOENT) {
                    return Err(EXIST);
                }
                let kind = if procedure == 9 { 2 } else { 5 };
                let mut entry = Entry { kind, modified: (now, 0), ..Entry::default() };
                given.attributes(&mut entry, now);
                if procedure == 10 {
                    entry.target = given.opaque();
                }
                self.made(id, name, entry)
            }
            11 => {
                let (name, kind) = (given.opaque(), given.u32());
                if self.named(id, &name) != Err(NOENT) {
                    return Err(EXIST);
                }
                let mut entry = Entry { kind, modified: (now, 0), ..Entry::default() };
                given.attributes(&mut entry, now);
                self.made(id, name, entry)
            }
            12 | 13 => {
                let name = given.opaque();
                let found = self.named(id, &name)?;
                let entry = &self.entries[&found];
                match (procedure, entry.kind) {
                    (12, 2) => return Err(ISDIR),
                    (13, 2) if !entry.names.is_empty() => return Err(NOTEMPTY),
                    (13, kind) if kind != 2 => return Err(NOTDIR),
                    _ => {}
                }
                self.unlink(id, &name);
                words(&[0, 0])
            }
            14 => {
                let (from, to, into) = (given.opaque(), given.handle(), given.opaque());
                let found = self.named(id, &from)?;
                if self.named(to, &into).is_ok() {
                    self.unlink(to, &into);
                }
                self.entries.get_mut(&id).unwrap().names.remove(&from);
                self.entries.get_mut(&to).unwrap().names.insert(into, found);
                words(&[0, 0, 0, 0])
            }
            15 => {
                let (directory, name) = (given.handle(), given.opaque());
                self.entry(id)?;
                if self.named(directory, &name) != Err(NOENT) {
                    return Err(EXIST);
                }
                self.entries.get_mut(&directory).unwrap().names.insert(name, id);
                self.entry(id)?.links += 1;
                words(&[0, 0, 0])
            }
            17 => {
                let names = self.directory(id)?.names.clone();
                let mut listing = words(&[0, 0, 0]);
                for (number, (name, found)) in names.iter().enumerate() {
                    listing.extend(words(&[1]));
                    listing.extend([u64s(*found), opaque(name), u64s(number as u64 + 1)].concat());
                    listing.extend([words(&[1]), self.attributes(*found), words(&[1])].concat());
                    listing.extend(opaque(&found.to_be_bytes()));
                }
                listing.extend(words(&[0, 1]));
                listing
            }
            19 => {
                let sizes = [65536, 65536, 1, 65536, 65536, 1, 65536];
                [words(&[0]), words(&sizes), words(&[0, 0xffff_ffff, 0, 1, 0])].concat()
            }
            18 => [
                words(&[0]),
                words(&[0, 1 << 30].repeat(3)),
                words(&[0, 1000].repeat(3)),
                words(&[0]),
            ]
            .concat(),
            20 => words(&[0, 32000, 255, 1, 1, 0, 1]),
            21 => {
                let entry = self.entry(id)?;
                entry.durable.clone_from(&entry.data);
                [words(&[0, 0]), verifier].concat()
            }
            _ => return Err(10004),
        })
    }
}

/// What a failure of a procedure tells after its status: that no attributes follow.
fn refusal(procedure: u32, status: u32) -> Vec<u8> {
    let follows = match procedure {
        0 | 1 => 0,
        3..=6 | 16..=20 => 1,
        14 => 4,
        15 => 3,
        _ => 2,
    };
    [words(&[status]), words(&vec![0; follows])].concat()
}

const ROOT: u64 = 1;

impl Default for Model {
    fn default() -> Self {
        let mut state = State { last: ROOT, ..State::default() };
        state.entries.insert(ROOT, Entry { kind: 2, mode: 0o755, links: 2, ..Entry::default() });
        Model(Arc::new(Mutex::new(state)))
    }
}

impl Model {
    /// What there is now.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// From now on, `fault` is asked at each call of NFS, with its number from now on.
    pub fn fail(&self, fault: impl FnMut(&Call, u64) -> Option<Fault> + Send + 'static) {
        let mut state = self.state();
        state.calls = 0;
        state.fault = Some(Box::new(fault));
    }

    /// At the call of this number, once.
    pub fn fail_at(&self, number: u64, fault: Fault) {
        self.fail(move |_, now| (now == number).then_some(fault));
    }

    /// No more.
    pub fn fail_never(&self) {
        let mut state = self.state();
        (state.calls, state.fault) = (0, None);
        state.seen.clear();
    }

    /// Serves it; the export is `/e`.
    pub fn serve(&self) -> Fake {
        let model = self.clone();
        Fake::start(move |call| model.tell(call))
    }

    /// What it does with a call.
    pub fn tell(&self, call: &Call) -> Told {
        if call.program == 100_005 {
            return Told::Results(match call.procedure {
                1 => [words(&[0]), opaque(&ROOT.to_be_bytes()), words(&[1, 1])].concat(),
                5 => [words(&[1]), opaque(b"/e"), words(&[0, 0])].concat(),
                _ => Vec::new(),
            });
        }
        let mut state = self.state();
        let state = &mut *state;
        state.calls += 1;
        state.seen.push(call.procedure);
        let fault = state.fault.as_mut().and_then(|fault| fault(call, state.calls));
        match fault {
            Some(Fault::RestartBefore) => {
                state.restart();
                return Told::Close;
            }
            Some(Fault::Refuse(status)) => return Told::Results(refusal(call.procedure, status)),
            _ => {}
        }
        let results = match state.carry_out(call.procedure, Arguments(&call.arguments)) {
            Ok(results) if call.procedure == 0 => results,
            Ok(results) => [words(&[0]), results].concat(),
            Err(status) => refusal(call.procedure, status),
        };
        match fault {
            Some(Fault::RestartAfter) => {
                state.restart();
                Told::Close
            }
            Some(Fault::Unanswered) => Told::Close,
            _ => Told::Results(results),
        }
    }

    /// The entry at a path below the export, by names.
    pub fn at(&self, path: &str) -> Option<Entry> {
        let state = self.state();
        let mut here = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            here = *state.entries[&here].names.get(name.as_bytes())?;
        }
        state.entries.get(&here).cloned()
    }

    /// Makes a file, durably.
    pub fn put(&self, name: &str, data: &[u8]) -> u64 {
        let mut state = self.state();
        let entry = Entry {
            kind: 1,
            mode: 0o644,
            data: data.into(),
            durable: data.into(),
            ..<_>::default()
        };
        state.made(ROOT, name.into(), entry);
        state.last
    }

    /// Makes something else in a directory, by the protocol's number of its kind: its handle.
    pub fn make(&self, directory: u64, name: &str, kind: u32, target: &str) -> u64 {
        let mut state = self.state();
        state.made(directory, name.into(), Entry { kind, target: target.into(), ..<_>::default() });
        state.last
    }
}
