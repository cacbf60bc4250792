"""Several architectures on one preset, seed by seed: what is missing is run.

An arm is a variant, with options of its own after colons: ``lime:router=last:router_window=4``.

It does not know: how a run is done, the command line.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from layermem.config import Run
from layermem.experiments.outcomes import LOSS, divergence, measures
from layermem.experiments.sweep import complete
from layermem.models.registry import lookup
from layermem.runs import RunFolder

# A seed that rates are chosen with, and nothing else.
CHOOSING_SEED = 1000
_Key = TypeVar("_Key", int, float)
_UNFIT = re.compile(r"[^\w.=-]")


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

    Infinite where a run diverged: a rate too high for an arm is a finding. A run that failed in any
    other way is an error, and nothing is chosen: it would be without that rate by accident.
    """
    runs = {
        (arm, rate): replace(one, optim=replace(one.optim, lr=rate))
        for arm, one in _by_arm(base, names, CHOOSING_SEED).items()
        for rate in _different(rates)
    }
    labels = _told_apart({key: _label(key[0], CHOOSING_SEED, key[1]) for key in runs})
    folders = complete(
        {labels[key]: run for key, run in runs.items()}, out / "rates", jobs, may_diverge=True
    )
    tried: dict[str, dict[float, float]] = {}
    for (arm, rate), run in runs.items():
        folder = folders[labels[arm, rate]]
        diverged = divergence(folder, run.id)
        loss = math.inf if diverged else measures(folder, run)[LOSS]
        tried.setdefault(arm, {})[rate] = loss
    for arm, losses in tried.items():
        if not any(map(math.isfinite, losses.values())):
            raise RuntimeError(
                f"{arm} diverged at every rate ({', '.join(f'{rate:g}' for rate in losses)}); try "
                "lower ones"
            )
    return tried


def best(losses: Mapping[float, float]) -> float:
    """Return the rate of the lowest loss; one whose loss is not finite has diverged."""
    finite = {rate: loss for rate, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise ValueError(f"there is no rate to choose: all losses are not finite, of {losses}")
    return min(finite, key=lambda rate: finite[rate])


def compare(
    base: Run,
    names: str,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    rates: Mapping[str, float],
) -> list[RunFolder]:
    """Bring all runs to their end; return them arm by arm, in the seeds' order.

    A seed may have diverged: that is a result, and stands in its folder.
    ``rates``: the learning rate of each arm; of one it does not name, the preset's.
    """
    runs = {(arm, seed): one for seed in seeds for arm, one in _by_arm(base, names, seed).items()}
    for (arm, seed), one in runs.items():
        if arm in rates:
            runs[arm, seed] = replace(one, optim=replace(one.optim, lr=rates[arm]))
    labels = _told_apart({key: _label(*key, rates.get(key[0])) for key in runs})
    folders = complete({labels[key]: run for key, run in runs.items()}, out, jobs, may_diverge=True)
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


def _different(rates: Sequence[float]) -> Sequence[float]:
    if len(set(rates)) < len(rates):
        raise ValueError(f"rates must differ, got {', '.join(f'{rate:g}' for rate in rates)}")
    return rates


def _told_apart(labels: dict[tuple[str, _Key], str]) -> dict[tuple[str, _Key], str]:
    """Return folder names, of which no two may be one: a run would stand for another."""
    keys: dict[str, tuple[str, _Key]] = {}
    for key, label in labels.items():
        if label in keys:
            raise ValueError(
                f"{keys[label]} and {key} would have one folder, {label}; let arms "
                "and rates differ in more than punctuation or a seventh digit"
            )
        keys[label] = key
    return labels
