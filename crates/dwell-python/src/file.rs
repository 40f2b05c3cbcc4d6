// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and devices, read and written at offsets.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use dwell::buffer::Aligned;
use dwell::policies;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{of_engine, refused};

/// An open file, device or address. Each request waits as the policy decides for it. Threads share
/// it.
#[pyclass(module = "dwell", frozen)]
pub struct File {
    opened: Mutex<Option<Arc<dwell::File>>>,
    /// The same for `await`, once it was asked for.
    awaited: Arc<Mutex<Option<dwell_tokio::File>>>,
}

/// Bytes of somebody else's Python object, for as long as a request lasts.
struct Lent(PyBuffer<u8>);

impl Lent {
    fn of(object: &Bound<'_, PyAny>, writes: bool) -> PyResult<Lent> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(refused("the buffer is not contiguous; give a copy"));
        }
        if writes && buffer.readonly() {
            return Err(refused("the buffer is read-only; give a bytearray or an array"));
        }
        Ok(Lent(buffer))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: contiguous memory of that length, which stays while the buffer is held. Python's
        // rule for buffers without the GIL holds here too: nobody changes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

/// Memory for so many bytes.
fn memory(bytes: usize) -> PyResult<Aligned> {
    Aligned::try_new(bytes).ok_or_else(|| PyMemoryError::new_err(format!("{bytes} bytes")))
}

/// Python's own copy of what was read.
fn copied<'py>(py: Python<'py>, read: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, read.len(), |copy| {
        copy.copy_from_slice(read);
        Ok(())
    })
}

/// Reads as many bytes as there are, by several requests where one cannot move so many.
fn fill(file: &dwell::File, buffer: &mut [u8], offset: u64) -> dwell::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl File {
    fn opened(&self) -> PyResult<Arc<dwell::File>> {
        let opened = self.opened.lock().map_err(refused)?;
        opened.clone().ok_or_else(|| refused("the file is closed"))
    }
}

async fn awaited(
    known: Arc<Mutex<Option<dwell_tokio::File>>>,
    opened: Arc<dwell::File>,
) -> PyResult<dwell_tokio::File> {
    if let Some(file) = known.lock().map_err(refused)?.clone() {
        return Ok(file);
    }
    let file = dwell_tokio::File::of(opened).await.map_err(of_engine)?;
    Ok(known.lock().map_err(refused)?.get_or_insert(file).clone())
}

#[pymethods]
impl File {
    #[new]
    #[pyo3(signature = (path, *, write=false, create=false, direct=false, sync=false, policy="adaptive"))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        write: bool,
        create: bool,
        direct: bool,
        sync: bool,
        policy: &str,
    ) -> PyResult<File> {
        let known = || policies::names().join(", ");
        let policy = policies::by_name(policy).ok_or_else(|| {
            refused(format!("no policy is called `{policy}`; there are {}", known()))
        })?;
        let options = dwell::options().write(write).create(create).direct(direct).sync(sync);
        let opened = py.detach(|| options.policy(policy).open(&path)).map_err(of_engine)?;
        Ok(File { opened: Mutex::new(Some(Arc::new(opened))), awaited: Arc::default() })
    }

    /// Reads up to `size` bytes at `offset`; fewer only at the end of the file.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.opened()?;
        let mut buffer = memory(size)?;
        let bytes = py.detach(|| fill(&file, &mut buffer, offset)).map_err(of_engine)?;
        copied(py, &buffer[..bytes])
    }

    /// Reads at `offset` into a bytearray, memoryview or array of bytes; gives how many were read.
    /// Nobody else may use the buffer meanwhile.
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.opened()?;
        let mut lent = Lent::of(buffer, true)?;
        let into = lent.bytes_mut();
        py.detach(|| fill(&file, into, offset)).map_err(of_engine)
    }

    /// Writes all of `data` at `offset`.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let file = self.opened()?;
        let lent = Lent::of(data, false)?;
        let from = lent.bytes();
        py.detach(|| file.write_all_at(from, offset)).map_err(of_engine)
    }

    /// Makes durable what was written.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.opened()?;
        py.detach(|| file.sync()).map_err(of_engine)
    }

    /// As `read_at`, to be awaited in asyncio.
    fn aread_at<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (known, opened) = (self.awaited.clone(), self.opened()?);
        let buffer = memory(size)?;
        pyo3_async_runtimes::tokio::future_into_py(py, async move {
            let file = awaited(known, opened).await?;
            let read = file.read_at(buffer, offset).await;
            let (bytes, buffer) = read.map_err(|failed| of_engine(failed.into()))?;
            Python::attach(|py| copied(py, &buffer[..bytes]).map(Bound::unbind))
        })
    }

    /// As `write_at`, to be awaited in asyncio. `data` is copied first.
    fn awrite_at<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lent = Lent::of(data, false)?;
        let mut copy = memory(lent.bytes().len())?;
        copy.copy_from_slice(lent.bytes());
        let (known, opened) = (self.awaited.clone(), self.opened()?);
        pyo3_async_runtimes::tokio::future_into_py(py, async move {
            let file = awaited(known, opened).await?;
            let written = file.write_all_at(copy, offset).await;
            written.map(drop).map_err(|failed| of_engine(failed.into()))
        })
    }

    /// Its length in bytes.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.opened()?.bytes().map_err(of_engine)
    }

    /// Its path or address.
    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.opened()?.path().to_owned())
    }

    /// How the requests so far were waited for: counts by route and mode, and by reason.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.opened()?.stats();
        let all = PyDict::new(py);
        let text = serde_json::to_string(&stats).map_err(refused)?;
        let loaded = PyModule::import(py, "json")?.call_method1("loads", (text,))?;
        all.update(loaded.cast()?)?;
        Ok(all)
    }

    /// Closes it; requests in flight end first.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let awaited = self.awaited.lock().map_err(refused)?.take();
        let opened = self.opened.lock().map_err(refused)?.take();
        py.detach(|| drop((awaited, opened)));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        match self.opened() {
            Ok(file) => {
                format!("<dwell.File {} ({})>", file.path().display(), file.policy().name())
            }
            Err(_) => "<dwell.File, closed>".to_owned(),
        }
    }
}
