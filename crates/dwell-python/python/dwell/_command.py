# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the command `dwell` measures on this machine: figures of the papers, and benchmarks."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile

from ._dwell import DwellError


def command():
    """The command: of $DWELL, of this environment, or of the PATH."""
    beside = os.path.join(sysconfig.get_path("scripts"), "dwell")
    for found in (os.environ.get("DWELL"), beside if os.path.exists(beside) else None, shutil.which("dwell")):
        if found:
            return found
    raise DwellError("the command dwell is not there; install the wheel that has it, or set DWELL to its path")


def _ran(*args):
    ended = subprocess.run([command(), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
        said = next((line for line in lines if line.startswith("dwell: ")), lines[-1])
        raise DwellError(f"dwell {' '.join(args[:2])}: {said.removeprefix('dwell: ')}")
    return ended.stdout


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure as it was measured: `rows` are dictionaries with `case`, `paper` (what the paper has),
    `measured`, `low`, `high` (95 % interval), `unit`, `verdict` and `note`."""

    id: str
    what: str
    machine: dict
    rows: list

    def plot(self):
        """Draws what was measured with its interval, and the paper's range beside it, an axis for each unit.
        Gives the `matplotlib.figure.Figure`. Needs matplotlib."""
        import matplotlib.pyplot as pyplot

        by_unit = {}
        for row in self.rows:
            if isinstance(row.get("measured"), (int, float)):
                by_unit.setdefault(row["unit"], []).append(row)
        heights = [1 + len(rows) for rows in by_unit.values()] or [1]
        drawn, axes = pyplot.subplots(
            len(heights), figsize=(9, 0.8 + 0.32 * sum(heights)), height_ratios=heights, squeeze=False,
            layout="constrained",
        )
        for axis, (unit, rows) in zip(axes[:, 0], by_unit.items()):
            for at, row in enumerate(rows):
                low, high = (row["measured"] if row.get(end) is None else row[end] for end in ("low", "high"))
                reach = [[row["measured"] - low], [high - row["measured"]]]
                axis.errorbar(row["measured"], at, xerr=reach, fmt="o", color="C0", capsize=3, label="measured")
                if row.get("paper_range"):
                    ends = row["paper_range"]
                    axis.plot(ends, [at + 0.3] * 2, "D-", color="C1", markersize=4, label="paper")
            axis.set_yticks(range(len(rows)), [row["case"] for row in rows])
            axis.set_ylim(len(rows) - 0.4, -0.6)
            axis.set_xlabel(unit)
            known = dict(zip(*reversed(axis.get_legend_handles_labels())))
            axis.legend(known.values(), known, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        drawn.suptitle(f"{self.id}: {self.what}", x=0.01, ha="left", fontsize="medium", wrap=True)
        return drawn

    def _repr_html_(self):
        from html import escape

        def cell(row, name):
            value = row.get(name)
            return escape(f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value))

        heads = ("case", "paper", "measured", "low", "high", "unit", "verdict", "note")
        body = "".join("<tr>" + "".join(f"<td>{cell(row, name)}</td>" for name in heads) + "</tr>" for row in self.rows)
        return f"<b>{escape(self.id)}</b> {escape(self.what)}<table><tr>{''.join(f'<th>{n}</th>' for n in heads)}</tr>{body}</table>"


def figure(id, *, max_time="600s", case=None, out=None):
    """Measures one figure of the papers on this machine, as `dwell lab figure ID` does, and gives it.

    max_time  longest time to sample a row, as 60s
    case      only rows whose names contain this
    out       directory that keeps ID.json and ID.svg; a measurement goes on where one was stopped
    """
    with tempfile.TemporaryDirectory() as own:
        place = pathlib.Path(out or own)
        _ran("lab", "figure", id, "--max-time", max_time, "--out", str(place), *(["--case", case] if case else []))
        return read_figure(place / f"{id}.json")


def read_figure(path):
    """A figure that `dwell lab figure --out` has kept."""
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    return Figure(kept["id"], kept["what"], kept["machine"], kept["rows"])


def bench(*subjects, policies=(), args=()):
    """Measures files, devices or addresses as `dwell bench io` does; gives its JSON as dictionaries.

    policies  contenders; those of the command when left out
    args      more of the command's options, as in `["--rounds", "20"]`
    """
    chosen = ["--policies", ",".join(policies)] if policies else []
    with tempfile.TemporaryDirectory() as out:
        return json.loads(_ran("bench", "io", *map(str, subjects), *chosen, "--json", "--out", out, *args))
