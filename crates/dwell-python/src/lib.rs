// SPDX-License-Identifier: MIT OR Apache-2.0
//! The native half of the Python module `dwell`. Its Python half, in `python/dwell`, gives it
//! names, defaults and documentation.

use pyo3::prelude::*;

mod error;
mod file;
mod memory;
mod model;
mod running;
mod simulate;
mod table;
mod trace;
mod waits;

/// What `dwell` is made of.
#[pymodule]
fn _dwell(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DwellError", module.py().get_type::<error::DwellError>())?;
    module.add_class::<table::Table>()?;
    module.add_class::<trace::Trace>()?;
    module.add_class::<file::File>()?;
    module.add_class::<memory::Memory>()?;
    module.add_function(wrap_pyfunction!(simulate::fields, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::sweep_points, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::sweep_files, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::sweep_run, module)?)?;
    module.add_function(wrap_pyfunction!(waits::wait, module)?)?;
    module.add_function(wrap_pyfunction!(model::model, module)?)
}
