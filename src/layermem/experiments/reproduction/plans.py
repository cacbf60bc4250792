"""The runs of an artefact by name: those that choose learning rates, and those that count.

A name is STUDY/FOLDER, as a sweep with ``--out STUDY`` would name its folders.

It does not know: which runs are recorded, how they are trained.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layermem.config import Run
from layermem.experiments.arms import CHOOSING_SEED, rate_trials, runs_of_arms
from layermem.experiments.reproduction.artefact import Artefact, Study
from layermem.results.artefact import Scale


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study."""

    study: Study
    """The study."""
    arm: str
    """Its arm."""
    run: Run
    """The run, with its seed."""
    trial: float | None = None
    """Learning rate that it tries; None: it counts."""


def stages(studies: Iterable[Study]) -> list[list[Study]]:
    """Return the studies in the order of training: those that others start from come first."""
    studies = list(studies)
    first = {study.starts_from.name: study.starts_from for study in studies if study.starts_from}
    return [list(stage) for stage in (first.values(), studies) if stage]


def trials(study: Study) -> dict[str, PlannedRun]:
    """Return the runs that choose a study's learning rates; none where none are tried."""
    if not study.rates:
        return {}
    return {
        f"{study.name}/rates/{label}": PlannedRun(study=study, arm=arm, run=run, trial=rate)
        for label, ((arm, rate), run) in rate_trials(
            study.base, ",".join(study.arms), study.rates
        ).items()
    }


def counting_runs(
    study: Study,
    seeds: Sequence[int],
    rates: Mapping[str, float],
    folder_of: Callable[[str, Run], Path],
    rates_before: Mapping[str, float] | None = None,
) -> dict[str, PlannedRun]:
    """Return the runs that count.

    ``rates``: learning rate of each arm. ``folder_of``: where a named run lies or would lie, for a
    study that starts from another, whose rates are ``rates_before``.
    """
    labelled = runs_of_arms(study.base, ",".join(study.arms), seeds, rates)
    starts: dict[tuple[str, int], Path] = {}
    if study.starts_from:
        before = counting_runs(study.starts_from, seeds, rates_before or {}, folder_of)
        starts = {
            (planned.arm, planned.run.seed): folder_of(name, planned.run) / "final"
            for name, planned in before.items()
        }
    planned = {}
    for label, (key, run) in labelled.items():
        if key in starts:
            run = replace(run, model=replace(run.model, pretrained=str(starts[key])))
        planned[f"{study.name}/{label}"] = PlannedRun(study=study, arm=key[0], run=run)
    return planned


def plan(
    artefact: Artefact,
    scale: Scale,
    seeds: Sequence[int],
    rates: Mapping[str, Mapping[str, float]] | None = None,
    folder_of: Callable[[str, Run], Path] = lambda name, run: Path("runs", name),
) -> dict[str, PlannedRun]:
    """Return all runs of an artefact at a scale by name.

    ``rates``: by study and arm, those that were chosen; where they are not known yet, runs that
    count have the base's in place of it.
    """
    if CHOOSING_SEED in seeds:
        raise ValueError(f"seed {CHOOSING_SEED} is kept for choosing learning rates")
    rates = rates or {}
    runs: dict[str, PlannedRun] = {}
    for stage in stages(artefact.studies(scale)):
        for study in stage:
            before = rates.get(study.starts_from.name) if study.starts_from else None
            chosen = rates.get(study.name, {})
            runs |= trials(study)
            runs |= counting_runs(study, seeds, chosen, folder_of, before)
    return runs
