# SPDX-License-Identifier: MIT OR Apache-2.0
"""Simulations: paging processes, waits on any device, and SmartCon's analytic model."""

import dataclasses
import os
import sys

from . import _dwell

#: The policies of `simulate`.
POLICIES = ("async", "sync", "sync_runahead", "sync_prefetch", "its")


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sets(values):
    return [f"{name}={_text(value)}" for name, value in values.items()]


def _make_params():
    fields, lines = [], []
    for name, default, unit, section, is_open, doc in _dwell.fields():
        value = _value(default)
        said = f"§{section}, left open by the paper" if is_open else f"§{section}"
        metadata = {"unit": unit, "section": section, "open": is_open, "doc": doc}
        fields.append((name, type(value), dataclasses.field(default=value, metadata=metadata)))
        lines.append(f"    {name}: {doc} [{unit}; {said}]")
    made = dataclasses.make_dataclass("Params", fields, frozen=True, kw_only=True)
    made.__module__ = "dwell"
    made.__doc__ = (
        "The parameters of `simulate`, each with its unit and the paper's section. Sections are those of\n"
        '"How to Steal CPU Idle Time When Synchronous I/O Mode Becomes Promising", DAC 2024.\n\n'
        + "\n".join(lines)
    )
    return made


Params = _make_params()


def _changed(params):
    """What differs from the defaults; a batch file may say the rest."""
    if params is None:
        return {}
    if isinstance(params, dict):
        return params
    given = dataclasses.asdict(params)
    return {name: value for name, value in given.items() if value != getattr(Params(), name)}


class _Bar:
    """Progress: a bar of tqdm's in notebooks and terminals that have it, a line otherwise."""

    def __init__(self, name):
        self.name, self.bar, self.wide = name, None, 0
        try:
            from tqdm.auto import tqdm
            self.bar = tqdm(total=100, desc=name, unit="%", leave=False)
        except ImportError:
            pass

    def __call__(self, what, share):
        if self.bar is not None:
            self.bar.set_postfix_str(what)
            self.bar.update(100 * share - self.bar.n)
        else:
            line = f"{self.name}: {what} {100 * share:.0f} %"
            self.wide = max(self.wide, len(line))
            print("\r" + line.ljust(self.wide), end="", file=sys.stderr, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.close()
        elif self.wide:
            print("\r" + " " * self.wide + "\r", end="", file=sys.stderr, flush=True)


def _shown(progress, name):
    """A function to tell progress to, and one that ends it."""
    if callable(progress):
        return progress, lambda: None
    if progress is None:
        progress = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not progress:
        return None, lambda: None
    bar = _Bar(name)
    return bar, bar.close


@dataclasses.dataclass(frozen=True)
class Study:
    """What `simulate` found. Times are virtual nanoseconds."""

    #: One row per batch, policy and seed.
    runs: _dwell.Table
    #: One row per process of a run.
    processes: _dwell.Table
    #: One row per program of a batch, alone: instructions, footprint, working set.
    programs: _dwell.Table

    def saving(self, measure="idle_ns", over="async"):
        """The share of `measure` that ITS saves over another policy, by batch: a list over the seeds."""
        found = {}
        for row in self.runs.to_pylist():
            found.setdefault((row["batch"], row["seed"]), {})[row["policy"]] = row[measure]
        savings = {}
        for (batch, _), by_policy in sorted(found.items()):
            if "its" in by_policy and by_policy.get(over):
                savings.setdefault(batch, []).append(1 - by_policy["its"] / by_policy[over])
        return savings


def simulate(batches, *, policies=POLICIES, seeds=10, params=None, limit=None, partial=False, progress=None):
    """Simulates processes that page from a fast device, under ways to spend the wait for a page.

    batches   a batch file (TOML), a directory of such, or several of either
    policies  some of `POLICIES`
    seeds     how many; each draws its own priorities
    params    a `Params`, of which what differs from the defaults counts, or a dictionary of some of
              its fields; they come after a batch's own settings
    limit     instructions of each trace at most
    partial   whether traces that end early will do
    progress  True, False, or a function of (what, share); by default where somebody watches

    Gives a `Study`. The same batch, parameters and seed give the same rows on any machine.
    """
    batches = [batches] if isinstance(batches, (str, os.PathLike)) else list(batches)
    policies = [policies] if isinstance(policies, str) else list(policies)
    if not policies:
        raise _dwell.DwellError("policies: name at least one of " + ", ".join(POLICIES))
    if not isinstance(seeds, int) or seeds < 1:
        raise _dwell.DwellError(f"seeds={seeds!r}: give a whole number of at least 1")
    tell, end = _shown(progress, "simulate")
    try:
        return Study(*_dwell.simulate(batches, policies, seeds, _sets(_changed(params)), limit, partial, tell))
    finally:
        end()


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def wait(scenario=None, *, policies=(), seeds=3, **params):
    """Simulates waits on a device that is not here, one row per policy and seed.

    scenario  path of a TOML file as `dwell lab sim wait --print` shows; without it, one thread on four
              CPUs and a device of 3 µs
    params    single settings of it: `wait(cores=32, device={"latency": "3us"})`
    policies  names; all when left out
    """
    text = "" if scenario is None else _read(scenario)
    return _dwell.wait(text, _nested(params), [policies] if isinstance(policies, str) else list(policies), seeds)


def model(calibration=None, *, devices=None, **params):
    """SmartCon's analytic model: what spinning gains over switching, from cycles per instruction.

    calibration  path of a TOML file as `dwell lab sim model --print` shows; the paper's without it
    devices      more devices by the latency of a block, as in `{"z-nand": "12us"}`, or of a line of
                 memory, as in `{"mram": "35ns/line"}`
    params       single values: `model(mainstream={"switch_cycles": 3000})`
    """
    text = None if calibration is None else _read(calibration)
    named = [f"{name}={latency}" for name, latency in (devices or {}).items()]
    return _dwell.model(text, _nested(params), named)


def _nested(params, before=""):
    """`{"device": {"latency": "3us"}}` as `device.latency=3us`."""
    sets = []
    for name, value in params.items():
        if isinstance(value, dict):
            sets += _nested(value, f"{before}{name}.")
        else:
            sets.append(f"{before}{name}={_text(value)}")
    return sets
