// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as Python's exceptions.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(dwell, DwellError, PyValueError, "What Dwell refuses, in one sentence.");

/// An error of the engine: `OSError` with its number where the system has one.
pub fn of_engine(error: dwell::Error) -> PyErr {
    let text = error.to_string();
    match std::io::Error::from(error).raw_os_error() {
        Some(number) => PyOSError::new_err((number, text)),
        None => DwellError::new_err(text),
    }
}

/// Any other error.
pub fn refused(error: impl std::fmt::Display) -> PyErr {
    DwellError::new_err(format!("{error:#}"))
}
