# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recorded executions, which `dwell lab trace record` writes."""

from ._dwell import Trace

__all__ = ["Trace", "open"]


def open(path):
    """Opens a trace. As an Arrow stream it gives one row per access to memory, some 65,000 at a time.

    Columns: `instruction` (its number, from 0), `thread`, `code` (address of the instruction),
    `address`, `bytes`, `reads`, `writes`.

    >>> import pyarrow                                          # doctest: +SKIP
    >>> for batch in pyarrow.RecordBatchReader.from_stream(dwell.trace.open("xz.dwt")):  # doctest: +SKIP
    ...     print(batch.num_rows)
    """
    return Trace(path)
