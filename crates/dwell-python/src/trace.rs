// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded executions, access by access.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, RecordBatch, RecordBatchReader, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use dwell_trace::{Event, Reader};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::refused;
use crate::table;

/// Rows of one batch.
const ROWS: usize = 1 << 16;

/// A recorded execution. As an Arrow stream it gives one row per access to memory.
#[pyclass(module = "dwell", frozen)]
pub struct Trace {
    path: PathBuf,
    instructions: u64,
    accesses: u64,
    cut_short_at: Option<u64>,
}

fn schema() -> SchemaRef {
    let field = |name, kind| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![
        field("instruction", DataType::UInt64),
        field("thread", DataType::UInt32),
        field("code", DataType::UInt64),
        field("address", DataType::UInt64),
        field("bytes", DataType::UInt16),
        field("reads", DataType::Boolean),
        field("writes", DataType::Boolean),
    ]))
}

#[pymethods]
impl Trace {
    #[new]
    fn new(path: PathBuf) -> PyResult<Trace> {
        let reader = Reader::open(&path).map_err(refused)?;
        Ok(Trace {
            instructions: reader.instructions(),
            accesses: reader.accesses(),
            cut_short_at: reader.cut_short_at(),
            path,
        })
    }

    /// Where it is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Instructions executed.
    #[getter]
    fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Accesses to memory.
    #[getter]
    fn accesses(&self) -> u64 {
        self.accesses
    }

    /// The byte at which the file ends early; `None` for a whole one.
    #[getter]
    fn cut_short_at(&self) -> Option<u64> {
        self.cut_short_at
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let reader = Reader::open(&self.path).map_err(refused)?;
        table::capsule(py, Batches { reader, instruction: 0, thread: 0, rows: Rows::default() })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        table::schema_capsule(py, &schema())
    }

    fn __repr__(&self) -> String {
        let Trace { path, instructions, accesses, .. } = self;
        format!(
            "<dwell.Trace {}: {instructions} instructions, {accesses} accesses>",
            path.display()
        )
    }
}

#[derive(Default)]
struct Rows {
    instruction: Vec<u64>,
    thread: Vec<u32>,
    code: Vec<u64>,
    address: Vec<u64>,
    bytes: Vec<u16>,
    reads: Vec<bool>,
    writes: Vec<bool>,
}

impl Rows {
    fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let Rows { instruction, thread, code, address, bytes, reads, writes } =
            std::mem::take(self);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(instruction)),
            Arc::new(UInt32Array::from(thread)),
            Arc::new(UInt64Array::from(code)),
            Arc::new(UInt64Array::from(address)),
            Arc::new(UInt16Array::from(bytes)),
            Arc::new(BooleanArray::from(reads)),
            Arc::new(BooleanArray::from(writes)),
        ];
        RecordBatch::try_new(schema(), columns)
    }
}

/// The accesses of a trace, some at a time.
struct Batches {
    reader: Reader,
    /// Instructions before the next one.
    instruction: u64,
    thread: u32,
    rows: Rows,
}

impl Batches {
    fn fill(&mut self) -> dwell_trace::Result<()> {
        while self.rows.address.len() < ROWS {
            match self.reader.next_event()? {
                None => return Ok(()),
                Some(Event::Thread(thread)) => self.thread = thread,
                Some(Event::Syscall(_)) => {}
                Some(Event::Block(run)) => {
                    for executed in run.instructions() {
                        for (site, &address) in executed.sites.iter().zip(executed.addresses) {
                            self.rows.instruction.push(self.instruction);
                            self.rows.thread.push(self.thread);
                            self.rows.code.push(executed.instruction.address);
                            self.rows.address.push(address);
                            self.rows.bytes.push(site.size);
                            self.rows.reads.push(site.kind.reads());
                            self.rows.writes.push(site.kind.writes());
                        }
                        self.instruction += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.fill() {
            Err(error) => Some(Err(ArrowError::ExternalError(Box::new(error)))),
            Ok(()) if self.rows.address.is_empty() => None,
            Ok(()) => Some(self.rows.take()),
        }
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        schema()
    }
}
