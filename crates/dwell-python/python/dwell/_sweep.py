# SPDX-License-Identifier: MIT OR Apache-2.0
"""Many simulations that differ in parameters, on this machine or on a Ray cluster."""

import dataclasses
import hashlib
import os
import pathlib
import tempfile

from . import _dwell
from ._simulate import _shown


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A dataset of Parquet files, one per point, named by what its rows depend on."""

    #: The directory.
    out: pathlib.Path
    #: The keys of all points, in the sweep's order.
    keys: list
    #: Points simulated now; the others were there.
    simulated: int

    def missing(self):
        """Keys whose files are not there: those of other shards."""
        return [key for key in self.keys if not (self.out / f"{key}.parquet").exists()]

    def table(self):
        """All rows as a `pyarrow.Table`, in the sweep's order. Needs pyarrow."""
        import pyarrow
        import pyarrow.parquet as parquet

        paths = [self.out / f"{key}.parquet" for key in self.keys]
        return pyarrow.concat_tables(parquet.ParquetFile(path).read() for path in paths if path.exists())


def _toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        escaped = os.fspath(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{name}" = {_toml(one)}' for name, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise _dwell.DwellError(f"{value!r}: give a number, a word, a list or a dictionary")


def _given(grid):
    """The sweep as TOML, and the directory of its batches."""
    if isinstance(grid, dict):
        return "".join(f"{name} = {_toml(value)}\n" for name, value in grid.items()), pathlib.Path.cwd()
    path = pathlib.Path(grid)
    return path.read_text(encoding="utf-8"), path.parent.absolute()


def sweep(grid, out, *, engine="local", shard=(1, 1), progress=None):
    """Simulates batches with many parameters; gives a `Sweep`.

    grid    a TOML file, or the same as a dictionary:
            {"batches": ["two.toml"], "policies": ["sync", "its"], "seeds": 5,
             "grid": {"switch_ns": [1000, 5000], "llc_bytes": ["1M", "8M"]}}, or in place of "grid"
            {"draw": {"count": 100, "seed": 1, "between": {"prefetch_pages": [1, 64]}}}
    out     directory of the dataset; a point whose file is there is not simulated again
    engine  "local": all cores of this machine; "ray": one task per point on the cluster that
            `ray.init` has joined
    shard   (3, 64) does every 64th point from the third on
    """
    text, beside = _given(grid)
    out = pathlib.Path(out)
    number, of = shard
    if not 1 <= number <= of:
        raise _dwell.DwellError(f"shard {number}/{of}: give one as (3, 64)")
    points = _dwell.sweep_points(text, beside)
    part = points[number - 1::of]
    tell, end = _shown(progress, "sweep")
    try:
        if engine == "local":
            simulated = _dwell.sweep_run(text, beside, out, part, tell)
        elif engine == "ray":
            simulated = _on_ray(text, beside, out, part, tell)
        else:
            raise _dwell.DwellError(f"engine {engine!r}: there are local and ray")
    finally:
        end()
    return Sweep(out, [key for key, _, _ in points], simulated)


def _unpacked(files):
    """The files of a sweep on this node, written once."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    place = pathlib.Path(tempfile.gettempdir()) / f"dwell-sweep-{os.getuid()}-{digest.hexdigest()[:16]}"
    if not place.exists():
        own = pathlib.Path(tempfile.mkdtemp(prefix="dwell-sweep-"))
        for name, content in files.items():
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).write_bytes(content)
        try:
            own.rename(place)
        except OSError:
            pass  # Another task was faster.
    if place.stat().st_uid != os.getuid():
        raise _dwell.DwellError(f"{place}: belongs to somebody else; remove it or set TMPDIR")
    return place


def _relative(path, beside):
    try:
        return str(pathlib.Path(path).absolute().relative_to(beside))
    except ValueError as error:
        raise _dwell.DwellError(f"with engine ray, batches and traces lie beside the grid: {error}") from None


def _point(text, files, key, batch, sets):
    """One point, as the bytes of its file; runs on a node of the cluster."""
    place = _unpacked(files)
    with tempfile.TemporaryDirectory() as out:
        _dwell.sweep_run(text, place, pathlib.Path(out), [(key, place / batch, sets)], None)
        return (pathlib.Path(out) / f"{key}.parquet").read_bytes()


def _on_ray(text, beside, out, points, tell):
    import ray

    out.mkdir(parents=True, exist_ok=True)
    wanted = [point for point in points if not (out / f"{point[0]}.parquet").exists()]
    paths = _dwell.sweep_files(text, beside)
    files = ray.put({_relative(path, beside): pathlib.Path(path).read_bytes() for path in paths})
    # Another node does again what a lost one was doing.
    task = ray.remote(max_retries=-1, num_cpus=1)(_point)
    running = {task.remote(text, files, key, _relative(batch, beside), sets): key for key, batch, sets in wanted}
    done = 0
    while running:
        ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
        for one in ready:
            key = running.pop(one)
            part = out / f".{key}.part"
            part.write_bytes(ray.get(one))
            part.rename(out / f"{key}.parquet")
            done += 1
        if tell is not None:
            tell(f"{done} of {len(wanted)} points", done / max(1, len(wanted)))
    return done
