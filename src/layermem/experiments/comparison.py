"""Several architectures on one preset, seed by seed: what is missing is run, then a table.

An arm is a variant, with options of its own after a colon: ``lime:router_init=identity``.

It does not know: how a run is done, the command line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from layermem.config import Run
from layermem.experiments.sweep import complete
from layermem.intervals import interval, paired
from layermem.models.registry import lookup
from layermem.runs import RunFolder, write_whole


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of a run that has ended."""

    name: str
    """What it is called in a table."""
    is_share: bool
    """Whether it is written in percent."""


LOSS = Measure(name="validation loss", is_share=False)
ACCURACY = Measure(name="right answers", is_share=True)
STEPS = Measure(name="every step right", is_share=True)


def arms(names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return variant and options of each arm in ``plain,lime,lime:router_init=identity``."""
    found = {}
    for arm in names.split(","):
        variant, *options = arm.strip().split(":")
        lookup(variant)
        found[arm.strip()] = variant, tuple(options)
    return found


def compare(
    base: Run, names: str, seeds: Sequence[int], out: Path, jobs: int
) -> dict[str, dict[Measure, list[float]]]:
    """Bring all runs to their end; return what was measured, arm by arm, in the seeds' order."""
    runs = {
        (arm, seed): replace(
            base,
            variant=variant,
            seed=seed,
            model=replace(base.model, options=(*base.model.options, *options)),
        )
        for seed in seeds
        for arm, (variant, options) in arms(names).items()
    }
    labels = {key: f"{key[0].replace(':', '-')}-s{key[1]}" for key in runs}
    folders = complete({labels[key]: run for key, run in runs.items()}, out, jobs)
    found = {key: measures(folders[label]) for key, label in labels.items()}
    return {
        arm: {
            measure: [found[arm, seed][measure] for seed in seeds]
            for measure in found[arm, seeds[0]]
        }
        for arm in arms(names)
    }


def measures(folder: RunFolder) -> dict[Measure, float]:
    """Return what an ended run is judged by."""
    rows = [row for row in folder.rows() if "val_loss" in row]
    found = {LOSS: float(rows[-1]["val_loss"])}
    if folder.result.exists():
        result = json.loads(folder.result.read_text(encoding="utf-8"))
        found |= {ACCURACY: result["accuracy"], STEPS: result["steps"]}
    return found


def show(
    title: str, found: Mapping[str, Mapping[Measure, Sequence[float]]], console: Console
) -> None:
    """Print means with 95% intervals over seeds, and paired differences to the first arm."""
    console.print(title)
    first = next(iter(found))
    for measure in found[first]:
        table = Table(measure.name, "mean", "each seed", f"against {first}", box=None)
        for arm, values in found.items():
            gap = (
                ""
                if arm == first
                else _say(paired(values[measure], found[first][measure]), measure, "+")
            )
            each = " ".join(_number(value, measure) for value in values[measure])
            table.add_row(arm, _say(interval(values[measure]), measure), each, gap)
        console.print(table)


def keep(path: Path, about: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write what was measured, for whoever reads it later."""
    arms = {arm: {m.name: values for m, values in by.items()} for arm, by in found.items()}
    write_whole(path, json.dumps({**about, "arms": arms}, indent=1) + "\n")


def _say(asked: Any, measure: Measure, sign: str = "") -> str:
    if asked.count == 1:
        return f"{_number(asked.mean, measure, sign)} (one seed)"
    return f"{_number(asked.mean, measure, sign)} +- {_number(asked.half, measure)}"


def _number(value: float, measure: Measure, sign: str = "") -> str:
    return format(value, f"{sign}.1%" if measure.is_share else f"{sign}.4f")
