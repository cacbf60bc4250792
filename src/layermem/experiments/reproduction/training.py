"""Trains the runs of an artefact that are not recorded, choosing learning rates first.

It does not know: what is computed of the runs.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layermem.experiments.arms import check_some_end, losses_of_trials
from layermem.experiments.comparison import check_test_problems
from layermem.experiments.learning_rates import chosen_of, tried_rates
from layermem.experiments.many_runs import train_missing
from layermem.experiments.records import check_comparable, naming_damage, read_record
from layermem.experiments.reproduction.artefact import Artefact, Study
from layermem.experiments.reproduction.plans import PlannedRun, counting_runs, stages, trials
from layermem.experiments.reproduction.recorded import RecordedRuns, run_state
from layermem.results.artefact import RunState, Scale
from layermem.results.learning_rates import TriedRates
from layermem.results.run_record import RunRecord
from layermem.runs import RunFolder
from layermem.train.run_config import check_same_run, recorded_run

logger = logging.getLogger(__name__)
Records = dict[str, dict[str, dict[int, RunRecord]]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What training an artefact's runs came to."""

    records: Records
    """Study, arm and seed to the record of each run that ended well."""
    states: tuple[RunState, ...]
    """Where every run stands."""
    tried: Mapping[str, tuple[TriedRates, ...]]
    """Study to the learning rates that each of its arms tried, where some were."""
    failure: str | None
    """What failed, and where it is said; None: nothing."""


def train(
    artefact: Artefact, scale: Scale, seeds: Sequence[int], recorded: RecordedRuns, jobs: int
) -> Outcome:
    """Train what is missing; runs that failed are told, and in no record.

    A run that failed in the choice of a learning rate is an error: the choice would be without it
    by accident.
    """
    tried: dict[str, tuple[TriedRates, ...]] = {}
    failures: list[str] = []
    runs: dict[str, PlannedRun] = {}
    for stage in stages(artefact.studies(scale)):
        attempts = {name: run for study in stage for name, run in trials(study).items()}
        if failure := train_planned(attempts, recorded, jobs):
            raise RuntimeError(failure)
        tried |= {study.name: tried_rates_of(study, recorded) for study in stage if study.rates}
        counting: dict[str, PlannedRun] = {}
        for study in stage:
            before = chosen_of(tried.get(study.starts_from.name, ())) if study.starts_from else None
            chosen = chosen_of(tried.get(study.name, ()))
            counting |= counting_runs(study, seeds, chosen, recorded.path_of, before)
        if failure := train_planned(counting, recorded, jobs):
            failures.append(failure)
        runs |= attempts | counting
    return Outcome(
        records=read_records(runs, recorded),
        states=tuple(state_of(name, planned, recorded) for name, planned in runs.items()),
        tried=tried,
        failure="; ".join(failures) or None,
    )


def tried_rates_of(
    study: Study, recorded: RecordedRuns, *, may_diverge: bool = False
) -> tuple[TriedRates, ...]:
    """Return the learning rates that each arm tried and its choice, that of the lowest validation
    loss; all trials must be recorded, and there are none where no rates are tried.

    An arm that diverged at every rate is an error, unless it ``may_diverge``; it has no choice.
    """
    by_key = {
        (planned.arm, planned.trial): (planned.run, recorded.folder_of(name, planned.run))
        for name, planned in trials(study).items()
        if planned.trial is not None
    }
    losses = losses_of_trials(by_key)
    if not may_diverge:
        check_some_end(losses)
    return tried_rates(losses)


def state_of(name: str, planned: PlannedRun, recorded: RecordedRuns) -> RunState:
    """Return where a planned run stands."""
    folder = recorded.folder_of(name, planned.run)
    state, note = run_state(folder, planned.run)
    return RunState(
        name=name, run_id=planned.run.id, folder=str(folder.path), state=state, note=note
    )


def read_records(runs: Mapping[str, PlannedRun], recorded: RecordedRuns) -> Records:
    """Return what runs that count and ended well recorded; refuse what cannot be compared.

    Runs that chose learning rates are compared with those that count, too.
    """
    records: Records = {}
    of_study: dict[str, dict[str, RunRecord]] = {}
    folders: dict[str, list[RunFolder]] = {}
    for name, planned in runs.items():
        folder = recorded.folder_of(name, planned.run)
        if run_state(folder, planned.run)[0] != "ended":
            continue
        folders.setdefault(planned.study.name, []).append(folder)
        if planned.trial is not None:
            continue
        # A folder of this name may hold what an earlier version planned under it.
        check_same_run(folder, planned.run)
        record = read_record(name, planned.run, folder)
        arms = records.setdefault(planned.study.name, {})
        arms.setdefault(planned.arm, {})[planned.run.seed] = record
        of_study.setdefault(planned.study.name, {})[name] = record
    for members in of_study.values():
        check_test_problems(members)
    for of_one_study in folders.values():
        check_comparable(of_one_study)
    return records


def train_planned(runs: Mapping[str, PlannedRun], recorded: RecordedRuns, jobs: int) -> str | None:
    """Train what is recorded nowhere; return what failed (None: nothing)."""
    own = {
        name: planned.run
        for name, planned in runs.items()
        if recorded.path_of(name, planned.run) == recorded.out / name
    }
    for name in own:
        folder = RunFolder(recorded.out / name)
        if folder.config.exists():
            with naming_damage(folder):
                recorded_run(folder)
    logger.info("%d of %d runs are recorded elsewhere", len(runs) - len(own), len(runs))
    try:
        train_missing(own, recorded.out, jobs, may_diverge=True)
    except RuntimeError as error:
        return str(error)
    return None
