"""Labelled runs -> a result: boards, conditions, arms and what they cost.

A study's runs are those that it planned, a report's those below some folders; both go the same way.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from layermem_base.files import write_atomically
from layermem_bench.config.parts import Labels
from layermem_bench.config.run import Run
from layermem_bench.config.typed_dicts import to_json
from layermem_bench.costs.closed_forms import costs_of_runs
from layermem_bench.costs.model_sizes import trained_fields
from layermem_bench.run.folder import RunFolder, recorded_run, unique_names
from layermem_bench.run.setup import load_host
from layermem_bench.studies.boards import options_of, way_of
from layermem_bench.studies.definition import ALL_CONDITIONS, Observed, Study, Trained, metric_of
from layermem_bench.studies.planning import Done, parameters, trials
from layermem_bench.studies.records import (
    Labelled,
    RecordedRuns,
    check_comparable,
    naming_damage,
    run_folders,
)
from layermem_bench.studies.result import (
    BY_LEVEL,
    METRICS,
    RIGHT_ANSWERS,
    Arm,
    Board,
    Condition,
    Metric,
    OfPaper,
    Picture,
    Row,
    RunRecord,
    StudyResult,
)

logger = logging.getLogger(__name__)
AS_RECORDED = "recorded"
"""The condition of runs that no study made: they are compared as they are."""
RESULT = "study.json"
"""File of a result in its folder."""
STUDIES = "studies"
"""Folder of the results of studies, beside the runs of their boards."""
_LOST = "diverged at every learning rate that was tried"
_CONDITIONS = (*ALL_CONDITIONS, AS_RECORDED)


def gather(
    study: Study,
    done: Mapping[str, Done],
    recorded: RecordedRuns,
    folder: Path,
) -> StudyResult:
    """Return what came of a study, whose result is written into ``folder``."""
    boards, runs = [], list[RunRecord]()
    ended: dict[str, dict[str, dict[int, RunRecord]]] = {}
    for of_board in done.values():
        plan = trials(of_board.board) | of_board.runs
        members = [recorded.read(name, run) for name, run in plan.items()]
        for record in (each.record for each in members):
            # Of a lost arm, those that tried a rate alone were trained.
            if not record.conditions or record.arm not in of_board.lost:
                runs.append(record)
            if record.state == "ended" and study.conditions[0] in record.conditions:
                ended.setdefault(record.board, {}).setdefault(record.arm, {})[record.seed] = record
        arms = [arm.name for arm in of_board.board.arms]
        members.sort(key=lambda each: arms.index(each.record.arm))
        boards.append(_board(members, study.conditions, of_board))
    asked = Trained(seeds=study.seeds, records=ended, out=folder)
    seen = list(study.observe(asked) if study.observe else ())
    observed = [each for each in seen if isinstance(each, Observed)]
    metrics = _metrics(runs, observed)
    for number in study.papers:
        metrics.setdefault(number.quantity, Metric(is_share=number.is_share))
    of_paper: dict[str, Any] = {each.name: getattr(study, each.name) for each in fields(OfPaper)}
    return StudyResult(
        command="",
        name=study.name,
        title=study.title,
        seeds=study.seeds,
        boards=tuple(boards),
        metrics=metrics,
        questions=study.questions,
        rows=tuple(Row(metric=o.quantity, arm=o.arm, by_seed=dict(o.by_seed)) for o in observed),
        runs=tuple(runs),
        pictures=tuple(each for each in seen if isinstance(each, Picture)),
        **of_paper,
    )


def find_runs(paths: Iterable[Path]) -> list[Labelled]:
    """Return the labelled runs below these paths that count, with what they recorded.

    A run's name is its folder's, longer where two are the same. Below a path the plain decoder's
    come first.
    """
    found: dict[Path, tuple[Run, RunFolder]] = {}
    for path in paths:
        below = []
        for folder in run_folders(path):
            with naming_damage(folder):
                run = recorded_run(folder)
            if (labels := labels_of(run)).conditions:
                below.append((replace(run, labels=labels), folder))
        if not below:
            raise FileNotFoundError(f"{path}: there is no run (config.yaml) that counts")
        for run, folder in sorted(below, key=lambda each: each[0].labels.arm != "plain"):
            found.setdefault(folder.path.resolve(), (run, folder))
    if not found:
        raise ValueError("name at least one run folder")
    names = unique_names([path.parts for path in found])
    return [Labelled.read(name, *each) for name, each in zip(names, found.values(), strict=True)]


def labels_of(run: Run) -> Labels:
    """Return the labels of a run. One without (trained alone) is on the board PRESET (DATA), and
    its arm is the variant with its options."""
    known = run.labels
    data = " ".join([run.task.name, *run.task.options]) if run.task.name else run.data.source
    variant, options = run.variant, run.model.options
    if run.host.model is not None:
        variant, options = way_of(run.host), options_of(run.host)
    return Labels(
        board=known.board or f"{run.preset} ({data})",
        conditions=known.conditions if known.board else (AS_RECORDED,),
        arm=known.arm or ":".join([variant, *options]),
    )


def arms_of_same_seeds(runs: Mapping[str, tuple[Run, RunFolder]]) -> dict[str, tuple[str, ...]]:
    """Return each arm's runs in the order of seeds; none where boards or the arms' seeds differ."""
    arms: dict[str, dict[int, str]] = {}
    for name, (run, _) in runs.items():
        arms.setdefault(labels_of(run).arm, {})[run.seed] = name
    boards = {labels_of(run).board for run, _ in runs.values()}
    seeds = {frozenset(of_arm) for of_arm in arms.values()}
    if len(runs) < 2 or len(boards) > 1:
        return {}
    if len(seeds) > 1 or sum(map(len, arms.values())) < len(runs):
        logger.warning("no means over seeds are shown: arms have different seeds, or one twice")
        return {}
    return {arm: tuple(of_arm[seed] for seed in sorted(of_arm)) for arm, of_arm in arms.items()}


def gather_runs(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    against: str | None = None,
    planned: bool = False,
    command: str = "",
) -> StudyResult:
    """Return what the runs below some folders recorded; write it into ``out``, if that is given.

    ``against``: the arm that the others are compared with; None: the first run's. ``planned``:
    whether these are all runs that were planned, so that differences are tested.
    """
    members = find_runs(paths)
    arms = list(dict.fromkeys(each.record.arm for each in members))
    if against not in (None, *arms):
        raise ValueError(f"no arm is called {against!r}; there are {', '.join(arms)}")
    if against is not None:
        members.sort(key=lambda each: each.record.arm != against)
    boards: dict[str, list[Labelled]] = {}
    for each in members:
        boards.setdefault(each.record.board, []).append(each)
    runs = [each.record for each in members]
    result = StudyResult(
        command=command,
        name="report",
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        seeds=(),
        boards=tuple(_board(each, _CONDITIONS) for each in boards.values()),
        metrics=_metrics(runs),
        runs=tuple(runs),
        untested="" if planned else "what was planned is not known (--planned)",
    )
    if out:
        write_atomically(out / RESULT, to_json(result))
    return result


def _board(
    members: Sequence[Labelled], conditions: Iterable[str], done: Done | None = None
) -> Board:
    """Return a board of labelled runs under those of the conditions that some count under.

    Arms are in the order of their first runs. ``done``: what a study knows of the board.
    """
    check_comparable(members)
    name = members[0].record.board
    ended = [each.record for each in members if each.record.state == "ended"]
    shown, by_condition = [], []
    for condition in conditions:
        if here := [each for each in members if condition in each.record.conditions]:
            arms = _of_arms(here)
            described = tuple(_arm(each, done) for each in arms.values())
            shown.append(Condition(name=condition, arms=described))
            by_condition.append(arms)
    arms = by_condition[0]
    first = next(iter(arms.values())).run
    starts = {each.val_loss for record in ended for each in record.validations if each.step == 0}
    return Board(
        name=name,
        metric=metric_of(first),
        conditions=tuple(shown),
        preset=first.preset,
        shape=done.board.shape if done else "",
        tried=done.tried if done else (),
        steps=done.steps if done else None,
        costs=costs_of_runs({arm: (each.run, each.folder) for arm, each in arms.items()}),
        before=starts.pop() if len(starts) == 1 and first.host.model else None,
    )


def _of_arms(members: Iterable[Labelled]) -> dict[str, Labelled]:
    """Return a run of each arm: an ended one, of which can be read what the arm is, or any; raise
    where two are one seed of it."""
    arms: dict[str, Labelled] = {}
    places: dict[tuple[str, int], str] = {}
    for each in members:
        arm, seed, name = each.record.arm, each.record.seed, each.record.name
        if (other := places.setdefault((arm, seed), name)) != name:
            raise ValueError(
                f"{other} and {name} are both seed {seed} of {arm} on {each.record.board}: name "
                "one, or train one again with another --labels.arm"
            )
        if arm not in arms or arms[arm].record.state != "ended":
            arms[arm] = each
    return arms


def _arm(labelled: Labelled, done: Done | None) -> Arm:
    """Return what an arm is, as its run and its study say."""
    run, arm, sizes, trained = labelled.run, labelled.record.arm, None, None
    if run.host.model is None and AS_RECORDED not in labelled.record.conditions:
        sizes = trained_fields(run, labelled.folder.final)
        trained = parameters(run, sizes) if sizes else None
    elif done:
        trained = sum(p.numel() for p in load_host(run).parameters() if p.requires_grad)
    notes = {each.name: each.note for each in done.board.arms} if done else {}
    return Arm(
        name=arm,
        steps=run.max_steps,
        parameters=trained,
        width_of_mlp=sizes["intermediate_size"] if sizes else None,
        rate=done.choices.get(arm) if done else None,
        note=_LOST if done and arm in done.lost else notes.get(arm, ""),
    )


def _metrics(runs: Sequence[RunRecord], observed: Iterable[Observed] = ()) -> dict[str, Metric]:
    """Return the metrics that runs have, with what a guess comes to where that is one number, and
    those of computed rows: under a metric's name they are better in the same direction."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    metrics = {name: METRICS[name.partition(BY_LEVEL)[0]] for name in names}
    chances = {run.solved.chance for run in runs if run.solved}
    if RIGHT_ANSWERS in metrics and len(chances) == 1:
        metrics[RIGHT_ANSWERS] = replace(metrics[RIGHT_ANSWERS], chance=chances.pop())
    for each in observed:
        known = metrics.get(each.quantity, Metric())
        chance = max(filter(None, (known.chance, each.chance)), default=None)
        metrics[each.quantity] = replace(
            known, is_share=each.is_share, chance=chance, counted=each.counted
        )
    return metrics


def write_table(results: Iterable[StudyResult], path: Path) -> int:
    """Write the long tables of some studies as one .csv or .parquet; return its number of rows."""
    import pyarrow
    from pyarrow import csv, parquet

    table = pyarrow.Table.from_pylist([row for each in results for row in each.long_table()])
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(table, str(path))
    return int(table.num_rows)
