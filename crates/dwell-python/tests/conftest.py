# SPDX-License-Identifier: MIT OR Apache-2.0
import pytest

BATCH = """
name = "two"
[[process]]
name = "sweep"
loop = { order = "sweep", bytes = 400000, visits = 4000, work = 8 }
[[process]]
name = "draw"
loop = { order = "draw", bytes = 400000, visits = 4000, work = 8, store_every = 3 }
"""


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(BATCH)
    return path
