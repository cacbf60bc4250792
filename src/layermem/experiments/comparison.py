"""Several architectures on one preset, seed by seed: what is missing is run.

An arm is a variant, with options of its own after a colon: ``lime:router_init=identity``.

It does not know: how a run is done, the command line.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layermem.config import Run
from layermem.experiments.sweep import complete
from layermem.models.registry import lookup
from layermem.runs import RunFolder


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


def compare(base: Run, names: str, seeds: Sequence[int], out: Path, jobs: int) -> list[RunFolder]:
    """Bring all runs to their end; return them arm by arm, in the seeds' order."""
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
    return [folders[labels[arm, seed]] for arm in arms(names) for seed in seeds]


def measures(folder: RunFolder) -> dict[Measure, float]:
    """Return what an ended run is judged by."""
    rows = [row for row in folder.rows() if "val_loss" in row]
    found = {LOSS: float(rows[-1]["val_loss"])}
    if folder.result.exists():
        result = json.loads(folder.result.read_text(encoding="utf-8"))
        found |= {ACCURACY: result["accuracy"], STEPS: result["steps"]}
    return found
