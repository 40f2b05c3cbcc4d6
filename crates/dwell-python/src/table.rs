// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables that every library of the Arrow family takes without a copy.

use std::sync::Arc;

use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    Array, ArrayRef, Float64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray, UInt64Array,
};
use arrow_schema::{Field, Schema, SchemaRef};
use dwell_sim::columns::{Cells, Column};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::refused;

/// Rows with named columns. `pyarrow.table(t)`, `polars.DataFrame(t)` and `t.to_pandas()` take it
/// by the Arrow PyCapsule interface, without a copy.
#[pyclass(module = "dwell", frozen)]
pub struct Table {
    batch: RecordBatch,
}

impl Table {
    /// # Errors
    /// Columns of different length.
    pub fn of(columns: Vec<Column>) -> PyResult<Table> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::<ArrayRef>::new());
        for Column { name, cells } in columns {
            let array: ArrayRef = match cells {
                Cells::Texts(texts) => Arc::new(StringArray::from(texts)),
                Cells::Counts(counts) => Arc::new(UInt64Array::from(counts)),
                Cells::Numbers(numbers) => Arc::new(Float64Array::from(numbers)),
            };
            fields.push(Field::new(name, array.data_type().clone(), false));
            arrays.push(array);
        }
        let schema = Arc::new(Schema::new(fields));
        RecordBatch::try_new(schema, arrays).map(|batch| Table { batch }).map_err(refused)
    }
}

/// What reads like this, as Python takes it.
pub fn capsule<'py>(
    py: Python<'py>,
    reader: impl RecordBatchReader + Send + 'static,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(
        py,
        FFI_ArrowArrayStream::new(Box::new(reader)),
        c"arrow_array_stream",
    )
}

pub fn schema_capsule<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(refused)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

#[pymethods]
impl Table {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The one who asks casts what it wants otherwise, as the interface allows.
        drop(requested_schema);
        let schema = self.batch.schema();
        capsule(py, RecordBatchIterator::new([Ok(self.batch.clone())], schema))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.batch.schema())
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The rows, each a dictionary. For more than some thousand rows take `pyarrow.table(t)`.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, pyo3::types::PyDict>>> {
        let schema = self.batch.schema();
        (0..self.batch.num_rows())
            .map(|row| {
                let all = pyo3::types::PyDict::new(py);
                for (field, array) in schema.fields().iter().zip(self.batch.columns()) {
                    all.set_item(field.name(), value(py, array, row)?)?;
                }
                Ok(all)
            })
            .collect()
    }

    /// As `pandas.DataFrame`. Needs pyarrow and pandas.
    fn to_pandas<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let arrow = PyModule::import(slf.py(), "pyarrow")?;
        arrow.getattr("table")?.call1((slf,))?.call_method0("to_pandas")
    }

    fn __repr__(&self) -> String {
        format!("<dwell.Table of {} rows: {}>", self.__len__(), self.column_names().join(", "))
    }
}

fn value<'py>(py: Python<'py>, array: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
    let any = array.as_any();
    if let Some(counts) = any.downcast_ref::<UInt64Array>() {
        return Ok(counts.value(row).into_pyobject(py)?.into_any());
    }
    if let Some(numbers) = any.downcast_ref::<Float64Array>() {
        return Ok(numbers.value(row).into_pyobject(py)?.into_any());
    }
    match any.downcast_ref::<StringArray>() {
        Some(texts) => Ok(texts.value(row).into_pyobject(py)?.into_any()),
        None => Err(refused(format!("a column of {}", array.data_type()))),
    }
}
