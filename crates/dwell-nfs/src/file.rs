// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of one file: reads, and unstable writes that are kept until the server has them for good.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::client::Client;
use crate::connection::Payload;
use crate::error::{Error, Result, Why};
use crate::nfs3::{Commit, Handle, Read, Stable, Write, Written};
use crate::procedure::Procedure;
use crate::ranges::{Held, Ranges};
use crate::uncommitted::{Piece, Uncommitted};
use crate::xdr::Reader;

/// How often data is sent again because the server was restarted before it was durable.
const MOST_ROUNDS: u32 = 16;

/// A file on a server.
#[derive(Clone)]
pub struct RemoteFile {
    client: Rc<Client>,
    handle: Handle,
    /// Told in errors.
    path: Rc<str>,
}

impl RemoteFile {
    /// A file by its handle; `path` is told in errors.
    pub fn new(client: &Rc<Client>, handle: Handle, path: impl ToString) -> Self {
        RemoteFile { client: client.clone(), handle, path: path.to_string().into() }
    }

    /// The export it is in.
    pub fn client(&self) -> &Rc<Client> {
        &self.client
    }

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Its path, for errors.
    pub fn path(&self) -> &str {
        &self.path
    }

    fn failed(&self, action: &'static str, offset: u64, why: impl Into<Why>) -> Error {
        Error::new(action, &self.path, why).at(offset)
    }

    /// Reads up to `bytes` bytes; less only at the end of the file.
    ///
    /// # Errors
    /// What the server says, with path and offset.
    pub async fn read(&self, offset: u64, bytes: u32) -> Result<Payload> {
        let (first, ends) = self.read_once(offset, bytes).await?;
        if ends || first.len() == bytes as usize {
            return Ok(first);
        }
        // More than one transfer, or the server gave less than it could.
        let mut whole = first.as_ref().to_vec();
        while whole.len() < bytes as usize {
            let (at, left) = (offset + whole.len() as u64, bytes - whole.len() as u32);
            let (more, ends) = self.read_once(at, left).await?;
            whole.extend_from_slice(more.as_ref());
            if ends {
                break;
            }
            if more.is_empty() {
                let what = "the server gives no data and says that there is more";
                return Err(self.failed("read", at, Why::Invalid(what.into())));
            }
        }
        Ok(Payload::new(whole))
    }

    async fn read_once(&self, offset: u64, bytes: u32) -> Result<(Payload, bool)> {
        let bytes = bytes.min(self.client.read_bytes());
        let call = Read { file: self.handle, offset, bytes };
        let failed = |why| self.failed("read", offset, why);
        let results = self.client.bytes(&call, None).await.map_err(failed)?;
        let answer = call.read(&mut Reader::new(&results));
        let (data, ends) = match answer.map_err(|bad| failed(bad.into()))? {
            Ok(read) => (results.slice_ref(read.data), read.ends),
            Err(status) => return Err(failed(Why::Status(status))),
        };
        Ok((Payload::new(data), ends))
    }

    /// Writes all of `data`, one transfer after the other and at least as durably as asked for;
    /// calls `wrote` for each part that the server took.
    async fn write_parts(
        &self,
        offset: u64,
        data: &Payload,
        stable: Stable,
        wrote: &mut dyn FnMut(u64, Payload, Written),
    ) -> Result<()> {
        let most = self.client.write_bytes() as usize;
        let mut done = 0;
        while done < data.len() {
            let (at, part) = (offset + done as u64, data.part(done..done + most));
            let call = Write { file: self.handle, offset: at, bytes: part.len() as u32, stable };
            let failed = |why| self.failed("write", at, why);
            let results = self.client.bytes(&call, Some(part.clone())).await.map_err(failed)?;
            let answer = call.read(&mut Reader::new(&results)).map_err(|bad| failed(bad.into()))?;
            let written = answer.map_err(|status| failed(Why::Status(status)))?;
            let bytes = written.bytes as usize;
            wrote(at, part.part(0..bytes), written);
            done += bytes;
        }
        Ok(())
    }
}

/// Writes a file by unstable writes, and makes them durable. Each byte is kept until a COMMIT
/// answers with the verifier that the byte was taken with. What a server took and forgot, because
/// it was restarted, is sent again. Writes to the same bytes go one after the other, in the order
/// in which they were first polled.
pub struct Writer {
    file: RemoteFile,
    uncommitted: RefCell<Uncommitted>,
    ranges: Rc<Ranges>,
}

impl Writer {
    /// Writes to this file.
    pub fn new(file: RemoteFile) -> Self {
        Writer { file, uncommitted: RefCell::default(), ranges: Rc::default() }
    }

    /// Writes to this file. Its bytes that are not known to be durable count into `all`.
    pub(crate) fn within(file: RemoteFile, all: &Rc<Cell<u64>>) -> Self {
        let uncommitted = RefCell::new(Uncommitted::within(all));
        Writer { file, uncommitted, ranges: Rc::default() }
    }

    /// The file.
    pub fn file(&self) -> &RemoteFile {
        &self.file
    }

    /// Writes all of `data`. It is durable only after [`Writer::commit`].
    ///
    /// # Errors
    /// What the server says, with path and offset. A write that had no answer in time may still be
    /// carried out.
    pub async fn write(&self, offset: u64, data: &Payload) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let held = self.ranges.hold(offset..offset + data.len() as u64).await;
        self.send(offset, &data.held(Some(held)), Stable::Unstable).await
    }

    /// Writes all of `data` durably, in one call where it fits in one: [`Writer::commit`] has
    /// nothing to do for it.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub async fn write_durably(&self, offset: u64, data: &Payload) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let held = self.ranges.hold(offset..offset + data.len() as u64).await;
        self.send(offset, &data.held(Some(held)), Stable::FileSync).await
    }

    /// Waits until no call may write to the file any more; later writes wait until what this
    /// returns is dropped.
    pub(crate) async fn settled(&self) -> Rc<Held> {
        self.ranges.hold(0..u64::MAX).await
    }

    /// Whether a call may still write to the file.
    pub(crate) fn is_writing(&self) -> bool {
        self.ranges.any()
    }

    /// Writes to a range that the data holds.
    async fn send(&self, offset: u64, data: &Payload, stable: Stable) -> Result<()> {
        let mut wrote = |offset, data: Payload, written: Written| {
            let verifier = (written.stable == Stable::Unstable).then_some(written.verifier);
            self.uncommitted.borrow_mut().took(offset, data.held(None), verifier);
        };
        self.file.write_parts(offset, data, stable, &mut wrote).await
    }

    /// Sends a piece again that the server has lost, without what was written over it meanwhile:
    /// how much, in bytes.
    async fn send_again(&self, piece: &Piece) -> Result<u64> {
        let held = self.ranges.hold(piece.range()).await;
        let left = self.uncommitted.borrow().left_of(piece);
        let mut bytes = 0;
        for part in left {
            let data = part.data.held(Some(held.clone()));
            self.send(part.offset, &data, Stable::Unstable).await?;
            bytes += part.data.len() as u64;
        }
        Ok(bytes)
    }

    /// Reads up to `bytes` bytes: what the server has, and over it what it took and may have lost
    /// since.
    ///
    /// # Errors
    /// As [`RemoteFile::read`].
    pub async fn read(&self, offset: u64, bytes: u32) -> Result<Payload> {
        let data = self.file.read(offset, bytes).await?;
        let range = offset..offset + u64::from(bytes);
        Ok(self.uncommitted.borrow().over(range, &data).unwrap_or(data))
    }

    /// Where the last byte ends that is not known to be durable; 0 where there is none. A server
    /// that was restarted may have a shorter file until the next [`Writer::commit`].
    pub fn end(&self) -> u64 {
        self.uncommitted.borrow().end()
    }

    /// Bytes that are not known to be durable.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.uncommitted.borrow().bytes()
    }

    /// Makes what was written before it durable: how many bytes had to be sent again for it. Where
    /// it fails, or is dropped, what is not durable is kept for the next one. It does not wait for
    /// what others go on writing.
    ///
    /// # Errors
    /// What the server says; that it was restarted again and again.
    pub async fn commit(&self) -> Result<u64> {
        let again_bytes = Cell::new(0);
        for _ in 0..MOST_ROUNDS {
            let (first, last, restarts) = {
                let uncommitted = self.uncommitted.borrow();
                let Some(first) = uncommitted.first() else { return Ok(again_bytes.get()) };
                (first, uncommitted.last(), uncommitted.restarts())
            };
            let call = Commit { file: self.file.handle, offset: 0, bytes: 0 };
            let client = &self.file.client;
            let verifier = (client.call("commit", &self.file.path, &call, |seen| seen).await)
                .map_err(|error| error.at(first))?;
            let lost = self.uncommitted.borrow_mut().committed(last, verifier);
            // What was lost may have been written over since: that, too, is to be durable.
            if lost.is_empty() && self.uncommitted.borrow().restarts() == restarts {
                return Ok(again_bytes.get());
            }
            let at_once = client.most_outstanding().max(1) as usize;
            for some in lost.chunks(at_once) {
                let again = some.iter().map(|piece| async {
                    let bytes = self.send_again(piece).await?;
                    again_bytes.set(again_bytes.get() + bytes);
                    Ok(())
                });
                all(again.collect()).await?;
            }
        }
        let what = format!(
            "the server was restarted {MOST_ROUNDS} times before data was durable; nothing says that it is"
        );
        Err(Error::new("commit", &self.file.path, Why::Invalid(what)))
    }
}

/// Runs futures beside each other until all are done or one fails.
pub(crate) async fn all<F: Future<Output = Result<()>>>(futures: Vec<F>) -> Result<()> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for place in &mut futures {
            let Some(future) = place else { continue };
            match future.as_mut().poll(context) {
                std::task::Poll::Ready(Ok(())) => *place = None,
                std::task::Poll::Ready(Err(error)) => return std::task::Poll::Ready(Err(error)),
                std::task::Poll::Pending => waiting = true,
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(Ok(())) }
    })
    .await
}

/// Reads a whole file in order, many requests ahead of `take`: `bytes` as long as it was, and what
/// was added meanwhile. If it is cut meanwhile, reading ends there.
///
/// # Errors
/// What the server says; what `take` fails with.
pub async fn read_in_order(
    file: &RemoteFile,
    bytes: u64,
    take: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<()> {
    let client = file.client();
    let chunk = client.read_bytes();
    let mut ahead = std::collections::VecDeque::new();
    let mut next = 0;
    loop {
        // One request goes beyond the end that was known.
        let most = if next < bytes { client.most_outstanding() as usize } else { 1 };
        while ahead.is_empty() || (ahead.len() < most && next < bytes) {
            let (file, offset) = (file.clone(), next);
            ahead.push_back(client.tasks().spawn(async move { file.read(offset, chunk).await }));
            next += u64::from(chunk);
        }
        let Some(first) = ahead.pop_front() else { return Ok(()) };
        let data = first.await?;
        take(data.as_ref()).map_err(|error| Error::new("writing on", file.path(), error))?;
        // The end: what lies behind it, if the file grew since, does not follow.
        if data.len() < chunk as usize {
            return Ok(());
        }
    }
}
