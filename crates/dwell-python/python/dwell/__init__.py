# SPDX-License-Identifier: MIT OR Apache-2.0
"""Waiting well for fast storage.

Simulations (`simulate`, `wait`, `model`), recorded executions (`trace.open`), figures and benchmarks
of this machine (`figure`, `bench`), files that wait by policy (`open`) and arrays larger than memory
(`memmap`). Tables are Arrow tables: `pyarrow.table(t)`, `polars.DataFrame(t)`, `t.to_pandas()`.
"""

from ._dwell import DwellError, File, Memory, Table, Trace, __version__
from . import trace
from ._command import Figure, bench, figure, read_figure
from ._files import memmap, open
from ._simulate import POLICIES, Params, Study, model, simulate, wait
from ._sweep import Sweep, sweep

__all__ = [
    "DwellError", "Figure", "File", "Memory", "POLICIES", "Params", "Study", "Sweep", "Table", "Trace",
    "__version__", "bench", "figure", "memmap", "model", "open",
    "read_figure", "simulate", "sweep", "trace", "wait",
]
