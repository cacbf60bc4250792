"""Reproduces one artefact of the paper: runs, observations, result; and says where all stand.

    list_artefacts    every artefact at every scale: what is recorded, what it needs
    estimate          what an artefact's runs would cost here
    tasks_to_answer   which evaluation tasks its models would be asked
    reproduce         trains what is missing, and writes artefact.json

It does not know: tables, pages, the command line.
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from layermem.experiments.artefacts import get_artefact, names
from layermem.experiments.learning_rates import chosen_of
from layermem.experiments.looks import looks_at_artefact, replaced_result
from layermem.experiments.model_sizes import model_sizes
from layermem.experiments.reproduction.artefact import SCALES, SEEDS, Artefact, Study, Trained
from layermem.experiments.reproduction.estimates import (
    RunCost,
    Speed,
    measure_speed,
    run_cost,
    total,
)
from layermem.experiments.reproduction.evaluating import check_tasks, leave_out
from layermem.experiments.reproduction.plans import PlannedRun, plan, stages, trials
from layermem.experiments.reproduction.recorded import RecordedRuns
from layermem.experiments.reproduction.summary import summarise
from layermem.experiments.reproduction.training import Outcome, state_of, train, tried_rates_of
from layermem.results.artefact import ArtefactResult, RunState, Scale
from layermem.results.files import read_result, to_json
from layermem.runs import write_atomically

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ListedScale:
    """Where an artefact stands at one scale."""

    scale: Scale
    """The scale."""
    runs: int
    """Runs that are planned, those included that choose learning rates."""
    recorded: int
    """Runs that have ended, or diverged."""
    failed: int
    """Runs whose last attempt failed, or whose record cannot be read."""
    result: str
    """What the recorded result is good for, in a few words; empty: there is none, or not all of its
    runs are recorded."""
    needs: str
    """What it needs; empty: nothing but this machine."""

    @property
    def state(self) -> str:
        """Return where it stands, in a few words."""
        failed = f", {self.failed} failed" if self.failed else ""
        if self.result:
            return self.result
        if not self.runs:
            return "not begun (no runs)"
        if not self.recorded:
            return f"not begun{failed} (0 of {self.runs} runs)"
        return f"{self.recorded} of {self.runs} runs{failed}"


@dataclass(frozen=True, kw_only=True)
class EstimatedStudy:
    """What the runs of one study would cost here."""

    study: str
    """Its name."""
    runs: int
    """Runs in all."""
    recorded: int
    """Those that need not be run."""
    cost: RunCost
    """Closed-form cost of all; the parameters of the largest model."""
    missing_flops: float
    """FLOPs of those that are to be run."""
    speed: Speed
    """What hours are from."""

    @property
    def hours(self) -> float:
        """Return the hours of one thread, or of the GPU, that are still to come."""
        return self.missing_flops / self.speed.flops_per_second / 3600


def seeds_at(artefact: Artefact, scale: Scale, count: int | None) -> tuple[int, ...]:
    """Return the seeds of a scale, from that of its presets on, which is 0 but for the paper's 42.

    ``count``: how many; None: as many as the scale has by itself.
    """
    if count is not None and count < 1:
        raise ValueError(f"--seeds must be at least 1, got {count}")
    first = max((study.base.seed for study in artefact.studies(scale)), default=0)
    return tuple(range(first, first + (SEEDS[scale] if count is None else count)))


def tasks_to_answer(
    name: str, scale: Scale, task_records: Sequence[str] = (), without: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the evaluation tasks that each model would be asked; check records that are given."""
    tasks = leave_out(get_artefact(name), without).tasks
    if task_records:
        with tempfile.TemporaryDirectory() as folder:
            check_tasks(tasks, scale, task_records, Path(folder))
    return tasks


def result_folder(out: Path, name: str, scale: Scale) -> Path:
    """Return where the result of an artefact lies."""
    return out / "artefacts" / f"{name}-{scale}"


def list_artefacts(
    out: Path, runs: Sequence[Path] = (), count: int | None = None
) -> dict[str, tuple[Artefact, tuple[ListedScale, ...]]]:
    """Return each artefact by name, and where it stands at each scale."""
    recorded = RecordedRuns(out, runs)
    listed = {}
    for name in names():
        artefact = get_artefact(name)
        scales = tuple(_list_scale(name, artefact, scale, recorded, count) for scale in SCALES)
        listed[name] = artefact, scales
    return listed


def _list_scale(
    name: str, artefact: Artefact, scale: Scale, recorded: RecordedRuns, count: int | None
) -> ListedScale:
    planned = planned_states(artefact, scale, count, recorded)
    states = [state for _, state in planned.values()]
    folder = result_folder(recorded.out, name, scale)
    return ListedScale(
        scale=scale,
        runs=len(states),
        recorded=sum(map(_is_recorded, states)),
        failed=sum(state.state == "failed" for state in states),
        result=_result_state(folder, seeds_at(artefact, scale, count), list(planned.values())),
        needs="; ".join(filter(None, (artefact.needs.get(scale), artefact.missing))),
    )


def _result_state(
    folder: Path, seeds: Sequence[int], planned: Sequence[tuple[PlannedRun, RunState]]
) -> str:
    """Return what the result in a folder is good for, beside where its planned runs stand now."""
    file = folder / "artefact.json"
    if not file.exists():
        return ""
    try:
        result = read_result(ArtefactResult, file)
    except (ValueError, OSError) as error:
        # One result of many: the others are listed all the same.
        logger.warning("%s", error)
        return f"damaged: delete {file}"
    then = {state.name: state for state in result.runs}
    now = [
        (run, state)
        for run, state in planned
        if run.trial is not None or run.run.seed in result.seeds
    ]
    if any(
        _is_recorded(state) and _differs(then.get(state.name), state, run) for run, state in now
    ):
        return "out of date: run it again"
    if not all(_is_recorded(state) for _, state in now):
        return ""
    if planned and len(result.seeds) != len(seeds):
        of = f" of {len(seeds)}" if len(result.seeds) < len(seeds) else ""
        return f"done with {len(result.seeds)}{of} seeds"
    return "done"


def _differs(then: RunState | None, now: RunState, run: PlannedRun) -> bool:
    """Return whether a run that is recorded now was missing in a result, or was another run."""
    if then is None or not _is_recorded(then):
        return True
    # The id of one that starts from another study's model changes with the path of its folder.
    return run.study.starts_from is None and then.run_id != now.run_id


def _is_recorded(state: RunState) -> bool:
    return state.state in ("ended", "diverged")


def planned_states(
    artefact: Artefact, scale: Scale, count: int | None, recorded: RecordedRuns
) -> dict[str, tuple[PlannedRun, RunState]]:
    """Return every planned run and where it stands.

    Runs that count are known once learning rates are chosen; before that none of them is recorded.
    """
    rates, unknown = {}, set()
    for stage in stages(artefact.studies(scale)):
        for study in stage:
            states = [_state(name, run, recorded) for name, run in trials(study).items()]
            if chosen := _chosen_rates(study, states, recorded):
                rates[study.name] = chosen
            elif states:
                unknown.add(study.name)
    planned = plan(artefact, scale, seeds_at(artefact, scale, count), rates, recorded.path_of)
    result = {}
    for name, run in planned.items():
        if run.study.name in unknown and run.trial is None:
            folder = str(recorded.out / name)
            state = RunState(name=name, run_id="", folder=folder, state="not begun")
        else:
            state = _state(name, run, recorded)
        result[name] = run, state
    return result


def _chosen_rates(
    study: Study, states: Sequence[RunState], recorded: RecordedRuns
) -> dict[str, float]:
    """Return each arm's learning rate; empty where none are tried, or not all could be read."""
    if any(state.state not in ("ended", "diverged") for state in states):
        return {}
    try:
        return chosen_of(tried_rates_of(study, recorded))
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        # One study of many: the others are listed all the same.
        logger.warning("%s chose no learning rates: %s", study.name, error)
        return {}


def _state(name: str, run: PlannedRun, recorded: RecordedRuns) -> RunState:
    """Return where a run stands; one whose record cannot be read counts as failed."""
    try:
        return state_of(name, run, recorded)
    except (ValueError, KeyError, TypeError) as error:
        folder = str(recorded.path_of(name, run.run))
        return RunState(
            name=name, run_id=run.run.id, folder=folder, state="failed", note=str(error)
        )


def estimate(
    name: str, scale: Scale, count: int | None, out: Path, runs: Sequence[Path] = ()
) -> list[EstimatedStudy]:
    """Return what the runs of each study would cost here, from some steps that are timed.

    Answers to evaluation tasks are not in it.
    """
    states = planned_states(get_artefact(name), scale, count, RecordedRuns(out, runs))
    by_study: dict[str, list[tuple[PlannedRun, RunState]]] = {}
    for planned, state in states.values():
        by_study.setdefault(planned.study.name, []).append((planned, state))
    estimated = []
    for study, members in by_study.items():
        first = members[0][0].run
        sizes = model_sizes(first)
        runs_of_arms = {planned.arm: planned.run for planned, _ in members}
        by_arm = {arm: run_cost(run, sizes) for arm, run in runs_of_arms.items()}
        missing = [p for p, state in members if not _is_recorded(state)]
        estimated.append(
            EstimatedStudy(
                study=study,
                runs=len(members),
                recorded=len(members) - len(missing),
                cost=total(by_arm[planned.arm] for planned, _ in members),
                missing_flops=total(by_arm[planned.arm] for planned in missing).flops,
                speed=measure_speed(first, sizes),
            )
        )
    return estimated


def reproduce(
    name: str,
    scale: Scale,
    count: int | None,
    out: Path,
    runs: Sequence[Path] = (),
    jobs: int = 1,
    command: str = "",
    task_records: Sequence[str] = (),
    without: Sequence[str] = (),
) -> tuple[ArtefactResult, str | None]:
    """Train what is missing, observe and judge; return the result, and what failed (None: nothing).

    The result is written to artefact.json; runs that failed or diverged are in it, and in no mean.
    ``task_records``: of evaluation tasks, as ``layermem eval`` takes them. ``without``: tasks of a
    table that are left out.
    """
    artefact = leave_out(get_artefact(name), without)
    seeds = seeds_at(artefact, scale, count)
    if scale in artefact.on_gpu and not torch.cuda.is_available():
        raise ValueError(
            f"{name} at scale {scale} needs {artefact.needs[scale]}, and there is no GPU here; "
            "--dry-run says what it would cost, --scale tiny runs on a CPU"
        )
    folder = result_folder(out, name, scale)
    if artefact.tasks or task_records:
        check_tasks(artefact.tasks, scale, task_records, folder)
    outcome = train(artefact, scale, seeds, RecordedRuns(out, runs), jobs)
    trained = Trained(
        scale=scale,
        seeds=seeds,
        records=outcome.records,
        out=folder,
        task_records=tuple(task_records),
    )
    before = replaced_result(ArtefactResult, folder / "artefact.json")
    looks = looks_at_artefact(before, outcome.states, seeds)
    rows, claims = summarise(artefact, artefact.observe(trained), scale, seeds, len(looks))
    result = ArtefactResult(
        command=command,
        name=name,
        title=artefact.title,
        claim=artefact.claim,
        scale=scale,
        seeds=seeds,
        rows=rows,
        claims=claims,
        rates={study: chosen_of(of_study) for study, of_study in outcome.tried.items()},
        tried=outcome.tried,
        runs=outcome.states,
        notes=(*artefact.notes, *_size_notes(outcome)),
        missing=artefact.missing,
        looks=looks,
    )
    write_atomically(folder / "artefact.json", to_json(result))
    return result, outcome.failure


def _size_notes(outcome: Outcome) -> list[str]:
    """Say which runs are in no mean."""
    lost = [state.name for state in outcome.states if not _is_recorded(state)]
    diverged = [
        state.name
        for state in outcome.states
        if state.state == "diverged" and "/rates/" not in state.name
    ]
    notes = [f"Failed or not ended, and in no mean: {', '.join(lost)}."] if lost else []
    return notes + ([f"Diverged, and in no mean: {', '.join(diverged)}."] if diverged else [])
