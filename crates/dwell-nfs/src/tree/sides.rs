// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of files here and on a server, behind one interface: what a copy reads from and writes to.

use std::cell::{OnceCell, RefCell};
use std::fs;
use std::io::{self, IoSliceMut};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Buf as _;
use dwell::executor::{AsyncFile, Handle as Tasks};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::Local;
use crate::client::Client;
use crate::connection::Payload;
use crate::error::{Error, Result, engine, system};
use crate::file::{RemoteFile, Writer};
use crate::memory::Memory;

/// Data of a file to read from.
pub enum Source {
    /// Here.
    Local(LocalSource),
    /// There.
    Remote(RemoteFile),
}

/// A file here to read from.
pub struct LocalSource {
    path: PathBuf,
    descriptor: fs::File,
    /// Made once the page cache does not have what is asked for.
    file: OnceCell<AsyncFile>,
    tasks: Tasks,
    /// What it is read into.
    memory: Rc<RefCell<Memory>>,
}

impl LocalSource {
    /// Opens a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(of: &Local, tasks: &Tasks, memory: &Rc<RefCell<Memory>>) -> Result<LocalSource> {
        let descriptor = of.open_to_read().map_err(system("opening", of.path()))?;
        let (path, tasks, memory) = (of.path().to_owned(), tasks.clone(), memory.clone());
        Ok(LocalSource { path, descriptor, file: OnceCell::new(), tasks, memory })
    }

    fn file(&self) -> Result<&AsyncFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let failed = system("opening", &self.path);
        let opened = rustix::fs::fcntl_setfl(&self.descriptor, OFlags::empty())
            .map_err(io::Error::from)
            .and_then(|()| self.descriptor.try_clone())
            .map_err(failed)?;
        let open = || self.tasks.file(Arc::new(dwell::Options::new().open_descriptor(opened)?));
        let file = open().map_err(|error| engine("opening", &self.path, error))?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Fills a buffer from the file's beginning, if nothing has to be waited for.
    fn read_at_once(&self, buffer: &mut [u8]) -> bool {
        let wanted = Ok(buffer.len());
        let room = &mut [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.descriptor, room, 0, ReadWriteFlags::NOWAIT) {
            // Memory has nothing to wait for, and does not know the question.
            Err(Errno::OPNOTSUPP) => {
                let there = rustix::fs::fstatfs(&self.descriptor);
                there.is_ok_and(|there| there.f_type == libc::TMPFS_MAGIC)
                    && rustix::io::pread(&self.descriptor, buffer, 0) == wanted
            }
            read => read == wanted,
        }
    }

    async fn read(&self, offset: u64, bytes: u32) -> Result<Payload> {
        let mut buffer = self.memory.borrow_mut().part(bytes as usize);
        // One read takes all of a small file.
        if offset == 0 && self.file.get().is_none() && self.read_at_once(&mut buffer) {
            return Ok(Payload::new(buffer.freeze()));
        }
        let (read, mut buffer) = self.file()?.read_at(buffer, offset).await;
        let read = read.map_err(|error| engine("read", &self.path, error))?;
        buffer.truncate(read);
        Ok(Payload::new(buffer.freeze()))
    }
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
            Source::Local(file) => file.read(offset, bytes).await,
        }
    }

    /// Where data begins that may be other than zeros, at `offset` or after it. Servers do not
    /// tell.
    pub fn data_from(&self, offset: u64) -> u64 {
        let Source::Local(LocalSource { descriptor, .. }) = self else { return offset };
        match rustix::fs::seek(descriptor, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            // None until the end.
            Err(rustix::io::Errno::NXIO) => {
                descriptor.metadata().map_or(offset, |facts| facts.len().max(offset))
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

#[cfg(test)]
mod tests {
    use dwell::executor::Executor;

    use super::*;

    #[test]
    fn a_file_in_the_page_cache_is_read_at_once_and_any_other_by_a_queue() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let data: Vec<u8> = (0..10_000u32).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &data).unwrap();
        let executor = Executor::new().unwrap();
        let memory = Rc::new(RefCell::new(Memory::new(1 << 16)));
        let source =
            LocalSource::open(&Local::at(&path).unwrap(), &executor.handle(), &memory).unwrap();
        let read = |offset, bytes| executor.block_on(source.read(offset, bytes)).unwrap();
        assert_eq!(read(0, 10_000).as_ref(), data);
        // Not every file system says what its page cache has.
        let is_at_once = source.read_at_once(&mut [0; 10_000]);
        assert_eq!(source.file.get().is_none(), is_at_once);
        assert_eq!(read(4096, 10_000).as_ref(), &data[4096..]);
        assert!(source.file.get().is_some());
        // The file is shorter than what is asked for.
        assert_eq!(read(0, 20_000).as_ref(), data);
    }

    #[test]
    fn a_source_that_is_no_file_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let executor = Executor::new().unwrap();
        let memory = Rc::new(RefCell::new(Memory::new(1 << 16)));
        let source =
            LocalSource::open(&Local::at(&path).unwrap(), &executor.handle(), &memory).unwrap();
        let error = executor.block_on(source.read(0, 10)).err().unwrap();
        assert!(error.to_string().contains("pipe"), "{error}");
    }
}
