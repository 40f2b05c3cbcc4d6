# SPDX-License-Identifier: MIT OR Apache-2.0
import os

import dwell
import pyarrow
import pytest
from dwell._command import command, read_figure


@pytest.fixture(autouse=True)
def there():
    if not os.path.exists(command()):
        pytest.skip(f"{command()} is not built")


def test_a_figure_is_measured_and_kept(tmp_path):
    figure = dwell.figure("S9", max_time="30s", out=tmp_path)
    assert figure.id == "S9" and figure.rows and figure.machine["cpus"] > 0
    assert read_figure(tmp_path / "S9.json") == figure
    assert "<table>" in figure._repr_html_()
    with pytest.raises(dwell.DwellError, match="S99"):
        dwell.figure("S99")


def test_an_emulated_device_is_measured():
    found = dwell.bench("emu:z-nand", policies=["block", "spin"], args=["--sizes", "4k", "--rounds", "2", "--batch-ms", "20"])
    assert {row["policy"] for row in found["rows"]} >= {"block", "spin"}


def test_a_trace_is_a_stream_of_accesses(tmp_path):
    with pytest.raises(dwell.DwellError, match="none.dwt"):
        dwell.trace.open(tmp_path / "none.dwt")
    recorded = os.environ.get("DWELL_TRACE")
    if not recorded:
        pytest.skip("no recorded trace in DWELL_TRACE")
    trace = dwell.trace.open(recorded)
    stream = pyarrow.RecordBatchReader.from_stream(trace)
    assert sum(batch.num_rows for batch in stream) == trace.accesses
