# SPDX-License-Identifier: MIT OR Apache-2.0
import os
import signal

import dwell
import pytest

GRID = {"batches": ["two.toml"], "policies": ["sync", "its"], "seeds": 1,
        "grid": {"switch_ns": [1000, 2000, 5000], "replacement": ["lru", "fifo"]}}


def content(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_shards_merge_into_what_one_machine_makes(batch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = dwell.sweep(GRID, tmp_path / "whole")
    assert whole.simulated == 6 and not whole.missing()
    for number in (1, 2, 3, 4):
        part = dwell.sweep(GRID, tmp_path / "parts", shard=(number, 4))
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert part.table().equals(whole.table()) and whole.table().num_rows == 12
    assert dwell.sweep(GRID, tmp_path / "whole").simulated == 0


def test_what_is_wrong_is_named(batch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong, names in [({"grid": {"switch_nss": [1]}}, "switch_nss"), ({"seed": 1}, "seed"),
                         ({"batches": ["none.toml"]}, "none.toml")]:
        with pytest.raises(dwell.DwellError, match=names):
            dwell.sweep({**GRID, **wrong}, tmp_path / "out")
    with pytest.raises(dwell.DwellError, match="shard 5/4"):
        dwell.sweep(GRID, tmp_path / "out", shard=(5, 4))
    with pytest.raises(dwell.DwellError, match="engine"):
        dwell.sweep(GRID, tmp_path / "out", engine="cluster")


def test_a_cluster_that_loses_a_worker_makes_the_same_table(batch, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.chdir(tmp_path)
    points = int(os.environ.get("DWELL_SWEEP_POINTS", "12"))
    grid = {**GRID, "grid": {"switch_ns": list(range(1000, 1000 + points))}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        killed = []

        def kill_one(what, share):
            if killed or share < 0.1:
                return
            for entry in os.listdir("/proc"):
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as file:
                        line = file.read()
                except OSError:
                    continue
                if line.startswith(b"ray::_point"):
                    os.kill(int(entry), signal.SIGKILL)
                    killed.append(entry)
                    return

        there = dwell.sweep(grid, tmp_path / "ray", engine="ray", progress=kill_one)
    finally:
        ray.shutdown()
    here = dwell.sweep(grid, tmp_path / "here")
    assert killed and not there.missing()
    assert content(tmp_path / "ray") == content(tmp_path / "here")
    assert there.table().equals(here.table())
