// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of files here and on a server, behind one interface: what a copy reads from and writes to.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::rc::Rc;

use bytes::Buf as _;
use dwell::executor::AsyncFile;

use crate::client::Client;
use crate::connection::Payload;
use crate::error::{Error, Result, engine};
use crate::file::{RemoteFile, Writer};
use crate::memory::Memory;

/// Data of a file to read from.
pub enum Source {
    /// Here; opened once more, to look for holes; and memory to read into.
    Local(AsyncFile, fs::File, Rc<RefCell<Memory>>),
    /// There.
    Remote(RemoteFile),
}

/// Data of a file to write to.
pub enum Target {
    /// Here.
    Local(AsyncFile),
    /// There.
    Remote(Writer),
}

impl Source {
    /// Reads up to `bytes` bytes; less only at the end.
    ///
    /// # Errors
    /// What the system or the server says, with path and offset.
    pub async fn read(&self, offset: u64, bytes: u32) -> Result<Payload> {
        match self {
            Source::Remote(file) => file.read(offset, bytes).await,
            Source::Local(file, _, memory) => {
                let buffer = memory.borrow_mut().part(bytes as usize);
                let (read, mut buffer) = file.read_at(buffer, offset).await;
                let read = read.map_err(|error| engine("read", file.file().path(), error))?;
                buffer.truncate(read);
                Ok(Payload::new(buffer.freeze()))
            }
        }
    }

    /// Where data begins that may be other than zeros, at `offset` or after it. Servers do not
    /// tell.
    pub fn data_from(&self, offset: u64) -> u64 {
        let Source::Local(_, holes, _) = self else { return offset };
        match rustix::fs::seek(holes, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            // None until the end.
            Err(rustix::io::Errno::NXIO) => {
                holes.metadata().map_or(offset, |facts| facts.len().max(offset))
            }
            Err(_) => offset,
        }
    }

    /// The best length of one read, in bytes.
    pub fn read_bytes(&self) -> Option<u32> {
        match self {
            Source::Local(..) => None,
            Source::Remote(file) => Some(file.client().read_bytes()),
        }
    }

    /// The export, if it is on a server.
    pub fn client(&self) -> Option<&Rc<Client>> {
        match self {
            Source::Local(..) => None,
            Source::Remote(file) => Some(file.client()),
        }
    }
}

impl Target {
    /// Writes all of a file that has little data: durably where that costs nothing more.
    ///
    /// # Errors
    /// As [`Target::write`].
    pub async fn write_whole(&self, data: Payload) -> Result<()> {
        match self {
            Target::Remote(writer) => writer.write_durably(0, &data).await,
            Target::Local(_) => self.write(0, data).await,
        }
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// What the system or the server says, with path and offset.
    pub async fn write(&self, offset: u64, data: Payload) -> Result<()> {
        match self {
            Target::Remote(writer) => writer.write(offset, &data).await,
            Target::Local(file) => {
                let failed = |error| engine("write", file.file().path(), error);
                let (mut left, mut at) = (data.into_bytes(), offset);
                while !left.is_empty() {
                    let (wrote, mut rest) = file.write_at(left, at).await;
                    let wrote = wrote.map_err(failed)?;
                    if wrote == 0 {
                        let none = io::Error::from(io::ErrorKind::WriteZero);
                        return Err(Error::new("write", file.file().path().display(), none).at(at));
                    }
                    rest.advance(wrote);
                    (left, at) = (rest, at + wrote as u64);
                }
                Ok(())
            }
        }
    }

    /// Makes what was written durable; how many bytes a server had to be sent again for it.
    ///
    /// # Errors
    /// What the system or the server says.
    pub async fn commit(&self) -> Result<u64> {
        match self {
            Target::Remote(writer) => writer.commit().await,
            Target::Local(file) => {
                let path = file.file().path().to_owned();
                file.sync_data().await.map_err(|error| engine("sync", &path, error)).map(|()| 0)
            }
        }
    }

    /// The best length of one write, in bytes.
    pub fn write_bytes(&self) -> Option<u32> {
        match self {
            Target::Local(_) => None,
            Target::Remote(writer) => Some(writer.file().client().write_bytes()),
        }
    }

    /// The export, if it is on a server.
    pub fn client(&self) -> Option<&Rc<Client>> {
        match self {
            Target::Local(_) => None,
            Target::Remote(writer) => Some(writer.file().client()),
        }
    }
}
