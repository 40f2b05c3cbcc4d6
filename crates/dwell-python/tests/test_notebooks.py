# SPDX-License-Identifier: MIT OR Apache-2.0
import json
import pathlib

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("Agg")
import matplotlib.pyplot  # noqa: E402
PLACE = pathlib.Path(__file__).parents[3] / "examples/python"


@pytest.mark.parametrize("path", sorted(PLACE.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, monkeypatch):
    monkeypatch.chdir(PLACE)
    seen = {"__name__": "__main__"}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), seen)
    matplotlib.pyplot.close("all")


def test_units_are_drawn_on_axes_of_their_own():
    import dwell

    row = {"case": "a", "measured": 1.0, "low": 0.9, "high": 1.1, "unit": "×", "paper_range": [1.0, 2.0]}
    figure = dwell.Figure("X1", "what", {}, [row, {**row, "unit": "ms"}, {**row, "measured": None}])
    drawn = figure.plot()
    assert [axis.get_xlabel() for axis in drawn.axes] == ["×", "ms"]
    matplotlib.pyplot.close("all")
