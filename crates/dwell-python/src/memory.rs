// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as memory under a budget, for NumPy and everything that takes a buffer.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use dwell_pager::{Access, Advice, Faults, Options, Otherwise, Region};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{of_engine, refused};

/// A file as memory of which at most a budget is in DRAM. Arrays over it keep it alive. Threads and
/// system calls may touch it; a forked child may not.
#[pyclass(module = "dwell", frozen)]
pub struct Memory {
    region: Region,
    writes: bool,
}

fn advice(name: &str) -> PyResult<Advice> {
    match name {
        "normal" => Ok(Advice::Normal),
        "sequential" => Ok(Advice::Sequential),
        "random" => Ok(Advice::Random),
        "willneed" => Ok(Advice::WillNeed),
        "dontneed" => Ok(Advice::DontNeed),
        _ => Err(refused(format!(
            "no advice is called `{name}`; there are normal, sequential, random, willneed and dontneed"
        ))),
    }
}

#[pymethods]
impl Memory {
    #[new]
    #[pyo3(signature = (path, mode, budget, spill=None, fallback=false))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        budget: usize,
        spill: Option<PathBuf>,
        fallback: bool,
    ) -> PyResult<Memory> {
        let access = match mode {
            "r" => Access::ReadOnly,
            "r+" => Access::Shared,
            "c" => Access::Private { spill },
            _ => return Err(refused(format!("mode `{mode}`: there are r, r+ and c"))),
        };
        let writes = access.writes();
        let write_file = access == Access::Shared;
        let otherwise = if fallback { Otherwise::Map } else { Otherwise::Fail };
        let options =
            Options::new(budget).faults(Faults::Thread).access(access).otherwise(otherwise);
        let region = py.detach(|| {
            let file = dwell::options().write(write_file).open(&path)?;
            Region::open(Arc::new(file), &options)
        });
        Ok(Memory { region: region.map_err(of_engine)?, writes })
    }

    /// Its length in bytes.
    fn __len__(&self) -> usize {
        self.region.len()
    }

    /// Writes back what was changed and makes it durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.region.sync()).map_err(of_engine)
    }

    /// Says how the bytes from `start` to `end` will be used: normal, sequential, random, willneed
    /// or dontneed.
    fn advise(&self, py: Python<'_>, how: &str, start: usize, end: usize) -> PyResult<()> {
        let advice = advice(how)?;
        py.detach(|| self.region.advise(start..end, advice)).map_err(of_engine)
    }

    /// What was counted: faults, pages read ahead, pages written back, pages in DRAM.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counted = self.region.statistics();
        let all = PyDict::new(py);
        macro_rules! put {
            ($($name:ident),*) => { $(all.set_item(stringify!($name), counted.$name)?;)* };
        }
        put!(
            faults,
            reads_awaited,
            joined,
            rescued,
            requests,
            pages_read,
            prefetched,
            prefetched_used,
            evicted,
            written_back,
            write_errors,
            read_errors,
            over_budget,
            resident,
            peak
        );
        Ok(all)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        // SAFETY: the region is mapped as long as its owner lives, which the view keeps alive.
        // PyBuffer_FillInfo refuses a writable view of what is read-only.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                memory.region.as_ptr().cast(),
                memory.region.len() as ffi::Py_ssize_t,
                c_int::from(!memory.writes),
                flags,
            )
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    fn __repr__(&self) -> String {
        let bytes = self.region.len();
        format!("<dwell.Memory of {bytes} bytes over {}>", self.region.file().path().display())
    }
}
