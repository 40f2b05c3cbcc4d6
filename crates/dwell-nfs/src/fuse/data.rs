// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data that programs write to a mount, until it is durable: within a bound for the whole mount,
//! and told where no program can be told any more.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::connection::Payload;
use crate::error::{Error, Result};
use crate::file::{RemoteFile, Writer, all};
use crate::nfs3::Status;

use super::export::{Export, Outcome, PATH, errno};
use super::reserved::Reserved;

/// So much is kept of a file, in bytes, before it is made durable without being asked.
const KEPT_BYTES: u64 = 64 << 20;
/// After an unmount, a server that does not answer is waited for as long as so many requests over
/// TCP wait before they are sent again: 30 s, unless `timeo` says otherwise.
const LAST_TRIES: u64 = 3;

/// A write that the kernel makes by itself, as long as it is under way.
struct Unheard<'e>(&'e Export, (u64, u64));

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let mut unheard = self.0.unheard.borrow_mut();
        if let Some(place) = unheard.iter().position(|one| *one == self.1) {
            unheard.swap_remove(place);
        }
    }
}

impl Export {
    fn writer_of(&self, number: u64) -> Outcome<Rc<Writer>> {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes.get_mut(number).ok_or(libc::ESTALE)?;
        let new = || {
            let file = RemoteFile::new(&self.client, node.handle, PATH);
            Rc::new(Writer::within(file, &self.kept))
        };
        Ok(node.writer.get_or_insert_with(new).clone())
    }

    /// Says what no program can be told.
    fn tell(&self, number: u64, error: Error) {
        let path = format!("{}: the file with inode number {number}", self.client.url());
        (self.told.borrow_mut())(&Error { path, ..error });
    }

    /// Writes to a file; `unheard` says that the kernel does so by itself, for a mapping.
    pub async fn write(
        &self,
        number: u64,
        offset: u64,
        data: Vec<u8>,
        unheard: bool,
    ) -> Outcome<u32> {
        let writer = self.writer_of(number)?;
        let bytes = data.len() as u32;
        let _unheard = unheard.then(|| {
            let one = (number, u64::from(bytes));
            self.unheard.borrow_mut().push(one);
            Unheard(self, one)
        });
        let written = self.write_within(&writer, offset, Payload::new(data)).await;
        written.map(|()| bytes).map_err(|error| {
            let told = errno(&error);
            if unheard {
                self.tell(number, error);
            }
            told
        })
    }

    async fn write_within(&self, writer: &Writer, offset: u64, data: Payload) -> Result<()> {
        let most = self.client.url().kept_bytes;
        let has_room = || self.kept.get() + data.len() as u64 <= most;
        if !has_room() {
            // A program whose data cannot be made durable is told by its next fsync or close.
            let _ = self.commit_all().await;
        }
        if !has_room() {
            return writer.write_durably(offset, &data).await;
        }
        let reserved = Reserved::new(&self.kept, data.len() as u64);
        writer.write(offset, &data).await?;
        drop(reserved);
        if writer.uncommitted_bytes() > KEPT_BYTES {
            writer.commit().await?;
        }
        Ok(())
    }

    /// Makes what was written to a file durable. Where that fails, it is kept for the next time.
    pub async fn commit(&self, number: u64) -> Outcome<()> {
        self.commit_file(number, true).await.map_err(|error| errno(&error))
    }

    /// As [`Export::commit`]; `is_heard` says that a program which uses the file is told.
    async fn commit_file(&self, number: u64, is_heard: bool) -> Result<()> {
        let Some(writer) = self.writer(number) else { return Ok(()) };
        let done = writer.commit().await.map(drop);
        if done.as_ref().is_err_and(|error| error.status() == Some(Status::STALE)) {
            // The file is gone, and its data with it. A program that has it open is told by its
            // next fsync or close, which has to find the data for that.
            if let Some(node) = self.nodes.borrow_mut().get_mut(number)
                && (is_heard || node.opens == 0)
            {
                node.writer = None;
            }
        }
        self.nodes.borrow_mut().forget(number, 0);
        done
    }

    /// A file was closed for the last time by one of those that have it open.
    pub async fn release(&self, number: u64) {
        // A mapping may have been written to after the file was closed.
        if let Err(error) = self.commit_file(number, true).await {
            self.tell(number, error);
        }
        let kept = {
            let mut nodes = self.nodes.borrow_mut();
            let Some(node) = nodes.get_mut(number) else { return };
            node.opens = node.opens.saturating_sub(1);
            let kept = node.kept.take_if(|_| node.opens == 0);
            if kept.is_some() {
                node.writer = None;
            }
            nodes.forget(number, 0);
            kept
        };
        if let Some((directory, name)) = kept
            && let Ok(Some(found)) = self.client.look_up(directory, &name, &PATH).await
        {
            // Whatever becomes of it, nobody can be told.
            let _ = self.client.remove(directory, &name, &found, &PATH).await;
        }
    }

    /// Makes everything that was written durable, as far as that is possible: what `sync` asks of
    /// a file system.
    pub async fn commit_all(&self) -> Outcome<()> {
        let numbers = self.nodes.borrow().unfinished();
        let outcome = Cell::new(Ok(()));
        let commits = numbers.into_iter().map(async |number| {
            if let Err(error) = self.commit_file(number, false).await {
                outcome.set(Err(errno(&error)));
            }
            Ok(())
        });
        let _ = all(commits.collect()).await;
        outcome.get()
    }

    /// Nobody uses it any more: once the last requests have ended, what was written and is not
    /// durable is made so, as long as the server answers. How much is lost, in bytes.
    pub async fn end(&self, requests: impl Future<Output = ()>) -> u64 {
        let mut ended = pin!(async {
            requests.await;
            let _ = self.commit_all().await;
        });
        let mut gone = pin!(self.is_gone());
        poll_fn(|context| match ended.as_mut().poll(context) {
            Poll::Pending => gone.as_mut().poll(context),
            done => done,
        })
        .await;
        let (unfinished, mut lost) = (self.nodes.borrow().unfinished(), 0);
        for number in unfinished {
            let bytes = self.writer(number).map_or(0, |writer| writer.uncommitted_bytes());
            let what = format!("{bytes} bytes that were written are lost");
            self.tell(number, Error::invalid("", what));
            lost += bytes;
        }
        for (number, bytes) in self.unheard.take() {
            let what = format!("{bytes} bytes that a program wrote to a mapping are lost");
            self.tell(number, Error::invalid("", what));
            lost += bytes;
        }
        self.client.unmount().await;
        lost
    }

    /// Returns when the server does not answer any more.
    async fn is_gone(&self) {
        let tasks = self.client.tasks();
        let wait = Duration::from_nanos(self.client.settings().silence_ns * LAST_TRIES);
        while tasks.timeout(wait, self.client.call_null()).await.is_ok() {
            tasks.sleep(wait).await;
        }
    }
}
