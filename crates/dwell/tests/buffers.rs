// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of a pipeline and of the executor own buffers of every type.

mod common;

use std::ops::Deref;
use std::sync::Arc;

use common::fake::{Answer, Fake};
use common::{Fixed, check, executor, fast, fill};
use dwell::File;
use dwell::buffer::{Aligned, Exclusive, IoBuf, IoBufMut, Spare};
use dwell::source::Source;

const BYTES: u64 = 64 * 1024;
const SEED: u64 = 3;

fn data(bytes: usize, at: u64) -> Vec<u8> {
    let mut data = vec![0; bytes];
    fill(&mut data, at, SEED);
    data
}

fn file_of(bytes: u64) -> (tempfile::NamedTempFile, Arc<File>) {
    let place = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(place.path(), data(bytes as usize, 0)).unwrap();
    let file = dwell::Options::new().write(true).open(place.path()).unwrap();
    (place, Arc::new(file))
}

/// Reads 100 bytes into a new buffer by the pipeline and by the executor.
fn read<B: IoBufMut + Deref<Target = [u8]>>(new: impl Fn() -> B) {
    let (_place, file) = file_of(BYTES);
    let mut pipeline = file.pipeline(1).unwrap();
    pipeline.read_at(new(), 1000).map_err(|(error, _)| error).unwrap();
    let done = pipeline.next().unwrap();
    assert_eq!(done.result.unwrap(), 100);
    let buffer = done.buffer.unwrap();
    assert_eq!(buffer.len(), 100);
    check(&buffer, 1000, SEED);

    let executor = executor();
    let future = executor.file(file.clone()).unwrap();
    let (result, buffer) = executor.block_on(future.read_exact_at(new(), 2000));
    result.unwrap();
    assert_eq!(buffer.len(), 100);
    check(&buffer, 2000, SEED);

    // At the end of the file there are 7 bytes more.
    let (result, buffer) = executor.block_on(future.read_at(new(), BYTES - 7));
    assert_eq!(result.unwrap(), 7);
    check(&buffer[..7], BYTES - 7, SEED);
}

/// Writes 100 bytes by the pipeline and by the executor.
fn write<B: IoBuf>(new: impl Fn(Vec<u8>) -> B) {
    let (place, file) = file_of(BYTES);
    let mut pipeline = file.pipeline(1).unwrap();
    let bytes = data(100, 7000);
    pipeline.write_at(new(bytes.clone()), 1000).map_err(|(error, _)| error).unwrap();
    assert_eq!(pipeline.next().unwrap().result.unwrap(), 100);
    let executor = executor();
    let future = executor.file(file.clone()).unwrap();
    let (result, _) = executor.block_on(future.write_all_at(new(bytes.clone()), 2000));
    result.unwrap();
    let found = std::fs::read(place.path()).unwrap();
    assert!(found[1000..1100] == bytes && found[2000..2100] == bytes);
}

fn leaked(bytes: Vec<u8>) -> &'static [u8] {
    bytes.leak()
}

#[test]
fn reads_fill_buffers_of_every_type() {
    read(|| vec![0; 100]);
    read(|| vec![0; 100].into_boxed_slice());
    read(|| Aligned::new(100));
    read(|| Exclusive::try_from(Arc::from(vec![0; 100])).unwrap());
    read(|| Spare::new(Vec::with_capacity(100)));
}

#[test]
fn writes_take_their_data_from_buffers_of_every_type() {
    write(|bytes| bytes);
    write(Vec::into_boxed_slice);
    write(leaked);
    write(Arc::<[u8]>::from);
    write(|bytes| Exclusive::try_from(Arc::from(bytes)).unwrap());
    write(|bytes| (bytes, "with a note"));
    write(|bytes| {
        let mut aligned = Aligned::new(bytes.len());
        aligned.copy_from_slice(&bytes);
        aligned
    });
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_are_buffers_too() {
    use bytes::{Bytes, BytesMut};

    read(|| BytesMut::zeroed(100));
    read(|| Spare::new(BytesMut::with_capacity(100)));
    write(Bytes::from);
    write(|bytes| BytesMut::from(&bytes[..]));
}

#[test]
fn shared_memory_is_filled_by_its_only_owner() {
    let memory: Arc<[u8]> = Arc::from(vec![0; 8]);
    let other = memory.clone();
    let memory = Exclusive::try_from(memory).unwrap_err();
    drop(other);
    let weak = Arc::downgrade(&memory);
    let memory = Exclusive::try_from(memory).unwrap_err();
    drop(weak);
    assert_eq!(Exclusive::try_from(memory).unwrap().len(), 8);
}

#[test]
fn a_read_appends_to_what_a_buffer_holds() {
    let (_place, file) = file_of(BYTES);
    let mut buffer = Vec::with_capacity(50);
    buffer.extend_from_slice(b"head");
    let mut pipeline = file.pipeline(1).unwrap();
    pipeline.read_at(Spare::new(buffer), BYTES - 10).map_err(|(error, _)| error).unwrap();
    let done = pipeline.next().unwrap();
    assert_eq!(done.result.unwrap(), 10);
    let spare = done.buffer.unwrap();
    assert_eq!(spare.len(), 10);
    let buffer = spare.into_inner();
    assert_eq!(&buffer[..4], b"head");
    check(&buffer[4..], BYTES - 10, SEED);
}

#[test]
fn a_failed_read_leaves_the_length_as_it_was() {
    let fake = Fake::new(BYTES, SEED).with(|state| {
        state.queued.push_back(Answer::Refused(libc::EIO));
    });
    let file = fake.open(fast(), Fixed::spin());
    let mut pipeline = file.pipeline(1).unwrap();
    let buffer = Spare::new(vec![1, 2, 3]);
    pipeline.read_at(buffer, 0).map_err(|(error, _)| error).unwrap();
    let done = pipeline.next().unwrap();
    assert_eq!(done.result.unwrap_err().errno(), Some(libc::EIO));
    assert_eq!(done.buffer.unwrap().into_inner(), [1, 2, 3]);
}

#[test]
fn short_reads_go_on_in_the_same_memory() {
    let fake = Fake::new(BYTES, SEED).with(|state| {
        state.queued.extend([Answer::Short(30), Answer::Short(1), Answer::Done]);
    });
    let file = Arc::new(fake.open(fast(), Fixed::spin()));
    let executor = executor();
    let file = executor.file(file).unwrap();
    let buffer = Spare::new(Vec::with_capacity(100));
    let (result, buffer) = executor.block_on(file.read_exact_at(buffer, 500));
    result.unwrap();
    assert_eq!(buffer.len(), 100);
    check(&buffer, 500, SEED);
}

/// Says that it read, and writes nothing.
struct Liar;

impl Source for Liar {
    type Queue = dwell::kernel::KernelQueue;
    fn queue(&self, _: u32) -> std::io::Result<Self::Queue> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn routes(&self) -> dwell::dwell_policy::Routes {
        dwell::dwell_policy::Routes::INLINE
    }
    fn call(&self, io: &dwell::queue::Io) -> i32 {
        io.bytes() as i32 + 1000
    }
    fn target(&self) -> i32 {
        0
    }
    fn bytes(&self) -> std::io::Result<u64> {
        Ok(BYTES)
    }
}

#[test]
fn a_source_that_promises_nothing_shows_no_memory_that_was_not_initialised() {
    let policy = Arc::new(dwell::policy::Block);
    let file = File::over(Liar, "liar", "liar", Default::default(), policy, None);
    let mut pipeline = file.pipeline(1).unwrap();
    let buffer = Spare::new(Vec::with_capacity(100));
    pipeline.read_at(buffer, 0).map_err(|(error, _)| error).unwrap();
    assert_eq!(pipeline.next().unwrap().buffer.unwrap().into_inner(), [0; 100]);
    drop(pipeline);
    let executor = executor();
    let file = executor.file(Arc::new(file)).unwrap();
    let buffer = Spare::new(Vec::with_capacity(100));
    let (_, buffer) = executor.block_on(file.read_at(buffer, 0));
    assert_eq!(buffer.into_inner(), [0; 100]);
}

#[test]
fn more_than_there_is_memory_for_is_no_buffer() {
    for bytes in [1 << 62, usize::MAX] {
        assert!(Aligned::try_new(bytes).is_none(), "{bytes}");
    }
    let buffer = Aligned::try_new(5000).unwrap();
    assert_eq!(buffer[..], [0; 5000]);
    assert_eq!(buffer.as_ptr() as usize % Aligned::ALIGNMENT, 0);
}
