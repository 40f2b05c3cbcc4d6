# SPDX-License-Identifier: MIT OR Apache-2.0
import dataclasses
import os
import signal
import threading
import time

import dwell
import pyarrow
import pytest


def test_a_batch_gives_arrow_tables(batch):
    study = dwell.simulate(batch, policies=["sync", "its"], seeds=2)
    runs = pyarrow.table(study.runs)
    assert runs.num_rows == len(study.runs) == 4
    assert runs.column_names == study.runs.column_names
    assert runs.schema.field("elapsed_ns").type == pyarrow.uint64()
    assert set(runs["policy"].to_pylist()) == {"sync", "its"}
    assert pyarrow.table(study.processes).num_rows == 8
    assert pyarrow.table(study.programs)["program"].to_pylist() == ["sweep", "draw"]
    assert study.runs.to_pylist() == runs.to_pylist()
    assert {batch: len(seeds) for batch, seeds in study.saving(over="sync").items()} == {"two": 2}


def test_parameters_are_dataclasses_whose_documentation_has_units(batch):
    fields = {field.name: field for field in dataclasses.fields(dwell.Params)}
    assert fields["switch_ns"].metadata["unit"] == "ns"
    assert "switch_ns" in dwell.Params.__doc__ and "[ns;" in dwell.Params.__doc__
    slow = dwell.simulate(batch, policies="async", seeds=1, params=dwell.Params(switch_ns=90_000))
    fast = dwell.simulate(batch, policies="async", seeds=1, params={"switch_ns": 1})
    assert slow.runs.to_pylist()[0]["switch_ns"] > fast.runs.to_pylist()[0]["switch_ns"]
    with pytest.raises(TypeError, match="switch_nss"):
        dwell.Params(switch_nss=1)


@pytest.mark.parametrize("wrong, names", [
    ({"params": {"switch_nss": 1}}, "switch_nss"),
    ({"params": {"replacement": "rlu"}}, "replacement=rlu"),
    ({"policies": ["guess"]}, "guess"),
    ({"policies": []}, "policies"),
    ({"seeds": 0}, "seeds=0"),
])
def test_what_is_wrong_is_named(batch, wrong, names):
    with pytest.raises(dwell.DwellError, match=names):
        dwell.simulate(batch, **wrong)


def test_a_batch_that_is_none_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text('name = "x"\n')
    for name in ("bad.toml", "none.toml"):
        with pytest.raises(dwell.DwellError, match=name):
            dwell.simulate(tmp_path / name)


def long_batch(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text('name = "long"\n[[process]]\nname = "draw"\n'
                    'loop = { order = "draw", bytes = 4000000, visits = 2000000000, work = 8 }\n')
    return path


def test_ctrl_c_ends_a_simulation(tmp_path):
    batch = long_batch(tmp_path)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dwell.simulate(batch, seeds=1)
    assert time.monotonic() - began < 60


def test_progress_is_told_and_other_threads_run(tmp_path):
    batch, heard, turns = long_batch(tmp_path), [], []
    going = threading.Event()

    def count():
        while not going.wait(0.01):
            turns.append(1)

    thread = threading.Thread(target=count)
    thread.start()

    def tell(what, share):
        heard.append((what, share))
        if len(heard) == 1:
            raise RuntimeError("enough")

    try:
        with pytest.raises(RuntimeError, match="enough"):
            dwell.simulate(batch, seeds=1, progress=tell)
    finally:
        going.set()
        thread.join()
    assert turns and all(0 <= share <= 1 for _, share in heard)


def test_waits_and_the_model_give_tables():
    waits = dwell.wait(policies=["block", "spin"], seeds=2, cores=8, device={"latency": "3us"}).to_pylist()
    assert [row["policy"] for row in waits] == ["block", "block", "spin", "spin"]
    assert waits[2]["mean_ns"] < waits[0]["mean_ns"]
    with pytest.raises(dwell.DwellError, match="no policy is called `guess`"):
        dwell.wait(policies="guess")
    with pytest.raises(dwell.DwellError, match="coress"):
        dwell.wait(coress=3)
    model = dwell.model(devices={"z-nand": "3us"}).to_pylist()
    assert any(row["name"] == "z-nand" and row["gain"] > 1 for row in model)
    with pytest.raises(dwell.DwellError, match="no_such"):
        dwell.model(no_such=1)


def test_the_stubs_name_what_is_there():
    import ast
    import pathlib

    from dwell import _dwell

    stubs = ast.parse((pathlib.Path(dwell.__file__).parent / "_dwell.pyi").read_text())
    named = {node.name: node for node in stubs.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    there = {name for name in dir(_dwell) if not name.startswith("_")}
    assert set(named) == there
    for name, node in named.items():
        if isinstance(node, ast.ClassDef) and name != "DwellError":
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("__")}
            assert methods == {one for one in vars(getattr(_dwell, name)) if not one.startswith("_")}, name
