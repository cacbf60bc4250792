"""Arms on one preset, seed by seed: rates and decays are chosen, missing runs are trained.

An arm is a variant, with options of its own after colons: ``lime:router=last:router_window=4``.

It does not know: how a run is trained, the command line.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from layermem.config import Model, Run
from layermem.experiments.many_runs import train_missing
from layermem.experiments.records import check_comparable, read_divergence, read_metrics
from layermem.models.registry import BUILT_WITH, check_names, lookup, variants
from layermem.results.run_record import LOSS
from layermem.runs import RunFolder
from layermem.train.setup import adds_parameters, check_options, check_router_lr

CHOOSING_SEED = 1000
"""Seed that learning rates are chosen with; results must be of other seeds."""
_Key = TypeVar("_Key", int, float)
_NOT_IN_FOLDER_NAMES = re.compile(r"[^\w.=-]")


def parse_arms(names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return variant and options of each arm in ``plain,lime,lime:router_init=identity``.

    A comma within brackets belongs to an option: ``lime:router_sources=[[],[0]]``. ``all`` stands
    for every variant, the plain decoder first. An option that the variant has no field for is
    refused here, before any arm is trained.
    """
    arms: dict[str, tuple[str, tuple[str, ...]]] = {}
    depth, arm = 0, ""
    for letter in f"{names},":
        depth += (letter in "[{") - (letter in "]}")
        if letter != "," or depth:
            arm += letter
            continue
        variant, *options = arm.strip().split(":")
        if variant == "all" and not options:
            arms |= {name: (name, ()) for name in dict.fromkeys(("plain", *variants()))}
        else:
            fields = Model(options=tuple(options)).variant_fields()
            check_names(lookup(variant), fields.keys() - BUILT_WITH)
            arms[arm.strip()] = variant, tuple(options)
        arm = ""
    if depth:
        raise ValueError(f"a bracket is open or closed too often in {names!r}")
    return arms


def try_learning_rates(
    base: Run,
    names: str,
    learning_rates: Sequence[float],
    out: Path,
    jobs: int,
    *,
    may_diverge: bool = False,
) -> dict[str, dict[float, float]]:
    """Train every arm with every learning rate on ``CHOOSING_SEED``; return validation losses.

    The loss is infinite where a run diverged: that a learning rate is too high for an arm is a
    result. That every one is too high is an error, unless an arm ``may_diverge``. A run that failed
    in any other way is an error, and nothing is chosen: the choice would be without that learning
    rate by accident.
    """
    runs = rate_trials(base, names, learning_rates)
    labels = {key: label for label, (key, _) in runs.items()}
    folders = train_missing(
        {label: run for label, (_, run) in runs.items()}, out / "rates", jobs, may_diverge=True
    )
    losses = losses_of_trials({key: (run, folders[labels[key]]) for key, run in runs.values()})
    if not may_diverge:
        check_some_end(losses)
    return losses


def rate_trials(
    base: Run, names: str, learning_rates: Sequence[float]
) -> dict[str, tuple[tuple[str, float], Run]]:
    """Return what ``try_learning_rates`` trains: folder name to arm and rate, and the run."""
    if len(set(learning_rates)) < len(learning_rates):
        rates = ", ".join(f"{rate:g}" for rate in learning_rates)
        raise ValueError(f"learning rates must differ, got {rates}")
    runs = {
        (arm, rate): replace(run, optim=replace(run.optim, lr=rate))
        for arm, run in _run_of_each_arm(base, names, CHOOSING_SEED).items()
        for rate in learning_rates
    }
    labels = _distinct({key: _folder_name(key[0], CHOOSING_SEED, key[1]) for key in runs})
    return {labels[key]: (key, run) for key, run in runs.items()}


def losses_of_trials(
    trials: Mapping[tuple[str, float], tuple[Run, RunFolder]],
) -> dict[str, dict[float, float]]:
    """Return validation losses by arm and learning rate, infinite where a run diverged."""
    check_comparable(folder for _, folder in trials.values())
    losses: dict[str, dict[float, float]] = {}
    for (arm, rate), (run, folder) in trials.items():
        diverged = read_divergence(folder, run.id) is not None
        loss = math.inf if diverged else read_metrics(folder, run)[LOSS].value
        losses.setdefault(arm, {})[rate] = loss
    return losses


def check_some_end(losses: Mapping[str, Mapping[float, float]]) -> None:
    """Raise if an arm diverged at every learning rate, so that it has none to choose."""
    for arm, by_rate in losses.items():
        if not any(map(math.isfinite, by_rate.values())):
            raise RuntimeError(
                f"{arm} diverged at every learning rate "
                f"({', '.join(f'{rate:g}' for rate in by_rate)}); try lower ones"
            )


def try_rates_and_decays(
    base: Run,
    names: str,
    learning_rates: Sequence[float],
    decays: Sequence[float],
    out: Path,
    jobs: int,
) -> dict[str, dict[float, dict[float, float]]]:
    """Do the same with every weight decay; return validation losses by arm, decay and rate.

    An arm may diverge at every rate of one decay, where it does not at another.
    """
    folders = {out / f"decay-{decay:g}" for decay in decays}
    if len(folders) < len(decays):
        raise ValueError(
            f"weight decays must differ in six digits, got {', '.join(map(repr, decays))}"
        )
    by_decay = {
        decay: try_learning_rates(
            replace(base, optim=replace(base.optim, weight_decay=decay)),
            names,
            learning_rates,
            out / f"decay-{decay:g}",
            jobs,
            may_diverge=True,
        )
        for decay in decays
    }
    losses = {arm: {decay: by_decay[decay][arm] for decay in decays} for arm in parse_arms(names)}
    for arm, of_arm in losses.items():
        lowest = {rate: min(of_arm[decay][rate] for decay in decays) for rate in learning_rates}
        check_some_end({arm: lowest})
    return losses


def train_arms(
    base: Run,
    names: str,
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    learning_rates: Mapping[str, float],
    decays: Mapping[str, float] | None = None,
) -> list[RunFolder]:
    """Train every arm with every seed; return the folders, arm by arm, in the order of the seeds.

    A seed may have diverged: that is a result, and stands in its folder.
    ``learning_rates``, ``decays``: those of each arm; an arm that is not named takes the preset's.
    """
    runs = runs_of_arms(base, names, seeds, learning_rates, decays)
    folders = train_missing(
        {label: run for label, (_, run) in runs.items()}, out, jobs, may_diverge=True
    )
    labels = {key: label for label, (key, _) in runs.items()}
    return [folders[labels[arm, seed]] for arm in parse_arms(names) for seed in seeds]


def runs_of_arms(
    base: Run,
    names: str,
    seeds: Sequence[int],
    learning_rates: Mapping[str, float],
    decays: Mapping[str, float] | None = None,
) -> dict[str, tuple[tuple[str, int], Run]]:
    """Return what ``train_arms`` trains: folder name to arm and seed, and the run."""
    decays = decays or {}
    runs = {
        (arm, seed): run
        for seed in seeds
        for arm, run in _run_of_each_arm(base, names, seed).items()
    }
    for (arm, seed), run in runs.items():
        optim = replace(
            run.optim,
            lr=learning_rates.get(arm, run.optim.lr),
            weight_decay=decays.get(arm, run.optim.weight_decay),
        )
        runs[arm, seed] = replace(run, optim=optim)
    labels = _distinct(
        {
            (arm, seed): _folder_name(arm, seed, learning_rates.get(arm), decays.get(arm))
            for arm, seed in runs
        }
    )
    return {labels[key]: (key, run) for key, run in runs.items()}


def _run_of_each_arm(base: Run, names: str, seed: int) -> dict[str, Run]:
    runs = {
        arm: replace(
            base,
            variant=variant,
            seed=seed,
            model=replace(base.model, options=(*base.model.options, *options)),
        )
        for arm, (variant, options) in parse_arms(names).items()
    }
    for arm, run in runs.items():
        # The sizes of a saved model, or of a host, are not the run's own.
        if run.model.pretrained is None and run.host.model is None:
            try:
                check_options(run.variant, run.model)
            except ValueError as error:
                raise ValueError(f"{arm}: {error}") from error
    return _with_router_lr_where_used(runs)


def _with_router_lr_where_used(runs: dict[str, Run]) -> dict[str, Run]:
    """Return the runs of arms, ``optim.router_lr`` left out of those that add no parameters.

    It is refused if none does.
    """
    unused = {
        arm: replace(run, optim=replace(run.optim, router_lr=None))
        for arm, run in runs.items()
        if run.optim.router_lr is not None
        and run.model.pretrained is None
        and not adds_parameters(run.variant, run.model)
    }
    if unused.keys() == runs.keys():
        for run in runs.values():
            check_router_lr(run)
    return {**runs, **unused}


def _folder_name(
    arm: str, seed: int, learning_rate: float | None, decay: float | None = None
) -> str:
    """Return the name of a run's folder."""
    rate = "" if learning_rate is None else f"-lr{learning_rate:g}"
    rate += "" if decay is None else f"-wd{decay:g}"
    return _NOT_IN_FOLDER_NAMES.sub("-", arm) + f"{rate}-s{seed}"


def _distinct(names: dict[tuple[str, _Key], str]) -> dict[tuple[str, _Key], str]:
    """Return folder names; raise if two are the same: one run would stand for another."""
    keys: dict[str, tuple[str, _Key]] = {}
    for key, name in names.items():
        if name in keys:
            raise ValueError(
                f"{keys[name]} and {key} would have one folder, {name}; let arms and learning "
                "rates differ in more than punctuation or a seventh digit"
            )
        keys[name] = key
    return names
