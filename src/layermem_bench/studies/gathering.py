"""Labelled runs -> a result: what they recorded, by board, condition and arm, and what is missing.

A study's runs are those that it planned, a report's those in some folders; from their labels on,
both go the same way.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from layermem_bench.config.result_files import read_result
from layermem_bench.config.run import Run, to_dict
from layermem_bench.costs.closed_forms import costs_of_runs
from layermem_bench.costs.model_sizes import trained_fields
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.host_models import load_host
from layermem_bench.run.run_config import check_same_run
from layermem_bench.statistics import further_looks
from layermem_bench.studies import result as results
from layermem_bench.studies.definition import Observed, Records, Study, Trained, metric_of
from layermem_bench.studies.planning import Done, Plan, parameters, trials
from layermem_bench.studies.records import (
    RecordedRuns,
    check_comparable,
    read_record,
    standing,
)
from layermem_bench.studies.result import (
    BY_LEVEL,
    METRICS,
    RIGHT_ANSWERS,
    Condition,
    Looks,
    Metric,
    OfPaper,
    Picture,
    Row,
    RunRecord,
    StudyResult,
)

logger = logging.getLogger(__name__)
RESULT = "study.json"
"""File of a result in its folder."""
AS_RECORDED = "recorded"
"""The condition of runs that no study made: they are compared as they are."""
STUDIES = "studies"
"""Folder of the results of studies, beside the runs of their boards."""
_LOST = "diverged at every learning rate that was tried"


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A run with its labels, where it lies, and what it recorded."""

    run: Run
    folder: RunFolder
    record: RunRecord


def gather(
    study: Study,
    done: Mapping[str, Done],
    recorded: RecordedRuns,
    before: StudyResult | None,
    folder: Path,
) -> StudyResult:
    """Return what came of a study; ``before``: the result that this one in ``folder`` replaces."""
    boards, runs = [], list[RunRecord]()
    for of_board in done.values():
        tried, members = (_read(plan, recorded) for plan in (trials(of_board.board), of_board.runs))
        check_comparable(each.folder for each in (*tried, *members) if each.record.state == "ended")
        boards.append(_board_of_study(study, of_board, members, before))
        runs += [replace(each.record, validations=(), solved=None, about={}) for each in tried]
        runs += [each.record for each in members if each.record.arm not in of_board.lost]
    trained = Trained(seeds=study.seeds, records=_by_arm(runs, study.conditions[0]), out=folder)
    seen = list(study.observe(trained) if study.observe else ())
    observed = [each for each in seen if isinstance(each, Observed)]
    of_paper: dict[str, Any] = {each.name: getattr(study, each.name) for each in fields(OfPaper)}
    of_paper["notes"] = (*study.notes, *_lost_notes(runs))
    counted = [run for run in runs if run.conditions]
    looks = _looks(before, before.looks if before else (), counted, study.seeds)
    return StudyResult(
        command="",
        name=study.name,
        title=study.title,
        seeds=study.seeds,
        boards=tuple(boards),
        metrics=_with_rows(metrics_of(runs), study, observed),
        rows=tuple(Row(metric=o.quantity, arm=o.arm, by_seed=dict(o.by_seed)) for o in observed),
        runs=tuple(runs),
        pictures=tuple(each for each in seen if isinstance(each, Picture)),
        looks=looks if study.claims else (),
        **of_paper,
    )


def _read(plan: Plan, recorded: RecordedRuns) -> list[Labelled]:
    """Return planned runs with what they recorded, wherever they lie and stand."""
    members = []
    for name, run in plan.items():
        folder = recorded.folder_of(name, run)
        record = standing(name, run, folder)
        if record.state == "ended":
            # A folder of this name may hold what was planned under it before.
            check_same_run(folder, run)
            record = read_record(name, run, folder)
            if run.task.name is not None and RIGHT_ANSWERS not in record.metrics:
                raise ValueError(
                    f"{folder.path} has ended without a {folder.result.name}; delete the folder to "
                    "run it again"
                )
        members.append(Labelled(run=run, folder=folder, record=record))
    return members


def _by_arm(runs: Iterable[RunRecord], condition: str) -> Records:
    records: dict[str, dict[str, dict[int, RunRecord]]] = {}
    for run in runs:
        if run.state == "ended" and condition in run.conditions:
            records.setdefault(run.board, {}).setdefault(run.arm, {})[run.seed] = run
    return records


def _board_of_study(
    study: Study, done: Done, members: Iterable[Labelled], before: StudyResult | None
) -> results.Board:
    """Return a board with what its study knows: rates, times, notes of arms."""
    arms = {arm.name: arm for arm in done.board.arms}
    places = {name: place for place, name in enumerate(arms)}
    members = sorted(members, key=lambda each: places[each.record.arm])
    made = board_of_runs(done.board.name, members, study.conditions, before, study.seeds)
    trained = _trained_by_hosts(members)

    def known(arm: results.Arm) -> results.Arm:
        return replace(
            arm,
            parameters=trained.get(arm.name, arm.parameters),
            rate=done.choices[arm.name].rate if arm.name in done.choices else None,
            note=_LOST if arm.name in done.lost else arms[arm.name].note,
        )

    conditions = (replace(each, arms=tuple(map(known, each.arms))) for each in made.conditions)
    return replace(
        made,
        conditions=tuple(conditions),
        shape=done.board.shape,
        tried=done.tried,
        steps=done.steps,
    )


def _trained_by_hosts(members: Iterable[Labelled]) -> dict[str, int]:
    """Return how many parameters each arm trains of a model of transformers."""
    return {
        arm: sum(p.numel() for p in load_host(each.run).parameters() if p.requires_grad)
        for arm, each in _of_arms(members).items()
        if each.run.host.model is not None
    }


def _of_arms(members: Iterable[Labelled]) -> dict[str, Labelled]:
    """Return a run of each arm: an ended one, of which can be read what the arm is, or any."""
    arms: dict[str, Labelled] = {}
    for each in members:
        arm = each.record.arm
        if arm not in arms or not arms[arm].folder.final.exists():
            arms[arm] = each
    return arms


def board_of_runs(
    name: str,
    members: Sequence[Labelled],
    conditions: Iterable[str],
    before: StudyResult | None,
    seeds: Sequence[int],
) -> results.Board:
    """Return a board of labelled runs; arms are in the order of their first runs."""
    looked_at = {
        condition.name: condition.looks
        for board in (before.boards if before else ())
        for condition in board.conditions
        if board.name == name
    }
    of_conditions = {
        condition: [each for each in members if condition in each.record.conditions]
        for condition in conditions
    }
    shown = [
        Condition(
            name=condition,
            arms=tuple(map(_arm, _of_arms(here).values())),
            looks=_looks(
                before, looked_at.get(condition, ()), [each.record for each in here], seeds
            ),
        )
        for condition, here in of_conditions.items()
    ]
    arms = _of_arms(next(iter(of_conditions.values())))
    first = next(iter(arms.values())).run
    ended = [each.record for each in members if each.record.state == "ended"]
    learned = to_dict(first)["task" if first.task.name else "data"]
    digests = filter(None, (record.about.get("data") for record in ended))
    validations = (record.validations[0] for record in ended if record.validations)
    starts = {each.val_loss for each in validations if each.step == 0}
    return results.Board(
        name=name,
        metric=metric_of(first),
        conditions=tuple(shown),
        preset=first.preset,
        data={**learned, "digest": next(digests, None)},
        costs=costs_of_runs({arm: (each.run, each.folder) for arm, each in arms.items()}),
        before=starts.pop() if len(starts) == 1 and first.host.model else None,
    )


def _arm(labelled: Labelled) -> results.Arm:
    run, sizes = labelled.run, None
    if run.host.model is None and labelled.record.conditions != (AS_RECORDED,):
        sizes = trained_fields(run, labelled.folder.final)
    return results.Arm(
        name=labelled.record.arm,
        steps=run.max_steps,
        parameters=parameters(run, sizes) if sizes else None,
        width_of_mlp=sizes["intermediate_size"] if sizes else None,
    )


def metrics_of(runs: Sequence[RunRecord]) -> dict[str, Metric]:
    """Return the metrics that runs have, with what a guess comes to where that is one number."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    chances = {run.solved.chance for run in runs if run.solved and run.metrics}
    metrics = {name: METRICS[name.partition(BY_LEVEL)[0]] for name in names}
    if RIGHT_ANSWERS in metrics and len(chances) == 1:
        metrics[RIGHT_ANSWERS] = replace(metrics[RIGHT_ANSWERS], chance=chances.pop())
    return metrics


def _with_rows(
    metrics: Mapping[str, Metric], study: Study, observed: Iterable[Observed]
) -> dict[str, Metric]:
    """Return the metrics of runs, of computed rows, and of what the paper alone has numbers of.

    What is computed of runs under a metric's name is better in the same direction.
    """
    metrics = dict(metrics)
    for number in study.papers:
        metrics.setdefault(number.quantity, Metric(is_share=number.is_share))
    for claim in study.claims:
        metrics.setdefault(claim.quantity, Metric())
    for each in observed:
        known = metrics.get(each.quantity, Metric())
        metrics[each.quantity] = replace(
            known,
            is_share=each.is_share,
            chance=max(filter(None, (known.chance, each.chance)), default=None),
            counted=each.counted,
        )
    return metrics


def _lost_notes(runs: Iterable[RunRecord]) -> list[str]:
    """Say which runs are in no mean."""
    lost: dict[str, list[str]] = {"Failed or not ended": [], "Diverged": []}
    for run in runs:
        if run.state not in ("ended", "diverged"):
            lost["Failed or not ended"].append(run.name)
        elif run.state == "diverged" and run.conditions:
            lost["Diverged"].append(run.name)
    return [f"{how}, and in no mean: {', '.join(names)}." for how, names in lost.items() if names]


def replaced_result(path: Path) -> StudyResult | None:
    """Return the result in a file that is to be written anew; None: there is none to be read."""
    try:
        return read_result(StudyResult, path) if path.exists() else None
    except ValueError as error:
        logger.warning("looks at the seeds of an earlier result are not counted: %s", error)
        return None


def _looks(
    before: StudyResult | None, looks: Looks, runs: Sequence[RunRecord], seeds: Sequence[int]
) -> Looks:
    """Return the looks at some runs, that at ``seeds`` last: each result of these runs with other
    seeds that this one replaces was a look, for which p-values pay."""
    now = {run.run_id for run in runs}
    if before is None or not any(run.run_id in now for run in before.runs if run.conditions):
        return further_looks((), seeds)
    first = (tuple(sorted(before.seeds)),) if before.seeds else ()
    return further_looks(looks or first, seeds)
