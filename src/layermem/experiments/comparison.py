"""Several architectures on one preset, seed by seed: what is missing is run.

An arm is a variant, with options of its own after colons: ``lime:router=last:router_window=4``.

It does not know: how a run is done, the command line.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
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


# A seed that rates are chosen with, and nothing else.
CHOOSING_SEED = 1000
_UNFIT = re.compile(r"[^\w.=-]")
LOSS = Measure(name="validation loss", is_share=False)
ACCURACY = Measure(name="right answers", is_share=True)
STEPS = Measure(name="every step right", is_share=True)


def arms(names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return variant and options of each arm in ``plain,lime,lime:router_init=identity``.

    A comma within brackets belongs to an option: ``lime:router_sources=[[],[0]]``.
    """
    found, open_brackets, arm = {}, 0, ""
    for letter in f"{names},":
        open_brackets += (letter in "[{") - (letter in "]}")
        if letter != "," or open_brackets:
            arm += letter
            continue
        variant, *options = arm.strip().split(":")
        lookup(variant)
        found[arm.strip()], arm = (variant, tuple(options)), ""
    if open_brackets:
        raise ValueError(f"a bracket is open or closed too often in {names!r}")
    return found


def choose(
    base: Run, names: str, rates: Sequence[float], out: Path, jobs: int
) -> dict[str, dict[float, float]]:
    """Try rates with every arm on a seed kept for that; return validation losses by arm and rate.

    Infinite where a run failed: a rate too high for an arm is a finding.
    """
    runs = {
        (arm, rate): replace(one, optim=replace(one.optim, lr=rate))
        for arm, one in _by_arm(base, names, CHOOSING_SEED).items()
        for rate in rates
    }
    labels = {(arm, rate): _label(arm, CHOOSING_SEED, rate) for arm, rate in runs}
    ended = complete({labels[k]: r for k, r in runs.items()}, out / "rates", jobs, tolerant=True)
    tried: dict[str, dict[float, float]] = {}
    for (arm, rate), label in labels.items():
        loss = measures(ended[label])[LOSS] if label in ended else math.inf
        tried.setdefault(arm, {})[rate] = loss
    for arm, losses in tried.items():
        if min(losses.values()) == math.inf:
            where = out / "rates" / labels[arm, rates[-1]]
            raise RuntimeError(f"no rate let {arm} end; see {where / 'error.txt'}; try lower ones")
    return tried


def best(losses: Mapping[float, float]) -> float:
    """Return the rate of the lowest loss."""
    return min(losses, key=lambda rate: losses[rate])


def compare(
    base: Run,
    names: str,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    rates: Mapping[str, float],
) -> list[RunFolder]:
    """Bring all runs to their end; return them arm by arm, in the seeds' order.

    ``rates``: the learning rate of each arm; of one it does not name, the preset's.
    """
    runs = {(arm, seed): one for seed in seeds for arm, one in _by_arm(base, names, seed).items()}
    for (arm, seed), one in runs.items():
        if arm in rates:
            runs[arm, seed] = replace(one, optim=replace(one.optim, lr=rates[arm]))
    labels = {(arm, seed): _label(arm, seed, rates.get(arm)) for arm, seed in runs}
    folders = complete({labels[key]: run for key, run in runs.items()}, out, jobs)
    return [folders[labels[arm, seed]] for arm in arms(names) for seed in seeds]


def _by_arm(base: Run, names: str, seed: int) -> dict[str, Run]:
    return {
        arm: replace(
            base,
            variant=variant,
            seed=seed,
            model=replace(base.model, options=(*base.model.options, *options)),
        )
        for arm, (variant, options) in arms(names).items()
    }


def _label(arm: str, seed: int, rate: float | None) -> str:
    """Return what a run's folder is called."""
    tuned = "" if rate is None else f"-lr{rate:g}"
    return _UNFIT.sub("-", arm) + f"{tuned}-s{seed}"


def measures(folder: RunFolder) -> dict[Measure, float]:
    """Return what an ended run is judged by."""
    rows = [row for row in folder.rows() if "val_loss" in row]
    found = {LOSS: float(rows[-1]["val_loss"])}
    if folder.result.exists():
        result = json.loads(folder.result.read_text(encoding="utf-8"))
        found |= {ACCURACY: result["accuracy"], STEPS: result["steps"]}
    return found
