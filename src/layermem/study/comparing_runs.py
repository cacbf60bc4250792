"""Run folders that were named one by one -> a result like that of a study."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layermem.results.files import to_json
from layermem.results.study import (
    LOSS,
    RIGHT_ANSWERS,
    Arm,
    Board,
    Condition,
    RunRecord,
    StudyResult,
)
from layermem.runs import write_atomically
from layermem.study.carrying_out import RESULT
from layermem.study.costs import costs_of_arms
from layermem.study.gathering import metrics_of
from layermem.study.looks import looks_at_runs, replaced_result
from layermem.study.records import check_test_problems, read_record, recorded_about
from layermem.study.run_folders import (
    Runs,
    find_runs,
    group_by_data,
    group_into_arms,
    trained_on,
)

AS_RECORDED = "recorded"
"""The condition of runs that are compared as they are."""


def compare_runs(
    paths: Sequence[Path], out: Path, *, against: str | None = None, command: str = ""
) -> StudyResult:
    """Gather what runs recorded; return it, and write it into ``out``.

    ``against``: the arm the others are compared with; None: the first run's.
    """
    runs = find_runs(paths)
    before = replaced_result(out / RESULT)
    settings = [{name: runs[name] for name in names} for names in group_by_data(runs)]
    names = _names(settings)
    boards: list[Board] = []
    records: list[RunRecord] = []
    for setting, name in zip(settings, names, strict=True):
        board, of_board = _compare(setting, name, against, before)
        boards.append(board)
        records += of_board
    arms = dict.fromkeys(arm.name for board in boards for arm in board.conditions[0].arms)
    if against is not None and against not in arms:
        raise ValueError(f"no arm is called {against!r}; there are {', '.join(arms)}")
    result = StudyResult(
        command=command,
        name="report",
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        seeds=(),
        boards=tuple(boards),
        metrics=metrics_of(records),
        runs=tuple(records),
    )
    write_atomically(out / RESULT, to_json(result))
    return result


def _compare(
    runs: Runs, name: str, against: str | None, before: StudyResult | None
) -> tuple[Board, list[RunRecord]]:
    """Return one board: its arms in the order of their runs, and what these recorded."""
    arms = group_into_arms(runs)
    if against in arms:
        arms = {against: arms.pop(against), **arms}
    records = []
    for arm, by_seed in arms.items():
        for seed in sorted(by_seed):
            record = read_record(by_seed[seed], *runs[by_seed[seed]])
            records.append(replace(record, board=name, arm=arm, conditions=(AS_RECORDED,)))
    check_test_problems(records)
    first, _ = next(iter(runs.values()))
    seeds = sorted({record.seed for record in records if record.state == "ended"})
    steps = {arm: runs[by[min(by)]][0].max_steps for arm, by in arms.items()}
    condition = Condition(
        name=AS_RECORDED,
        arms=tuple(Arm(name=arm, steps=steps[arm]) for arm in arms),
        looks=looks_at_runs(before, AS_RECORDED, records, seeds),
    )
    board = Board(
        name=name,
        metric=_metric(records),
        conditions=(condition,),
        preset=first.preset,
        data=_about(runs)[1],
        costs=costs_of_arms({arm: runs[by[min(by)]] for arm, by in arms.items()}),
    )
    return board, records


def _metric(records: Sequence[RunRecord]) -> str:
    """Return what arms are ranked by."""
    return RIGHT_ANSWERS if any(RIGHT_ANSWERS in each.metrics for each in records) else LOSS


def _about(runs: Runs) -> tuple[str, dict[str, Any]]:
    """Return what a setting is called, and what its runs were trained on."""
    first, _ = next(iter(runs.values()))
    digests = (recorded_about(folder).get("data") for _, folder in runs.values())
    data = {**trained_on(first), "digest": next(filter(None, digests), None)}
    presets = dict.fromkeys(run.preset for run, _ in runs.values())
    options = " ".join([first.task.name, *first.task.options]) if first.task.name else ""
    return f"{', '.join(presets)} ({options or data['source']})", data


def _names(settings: Sequence[Runs]) -> list[str]:
    """Return the names of settings, longer where two would be the same."""
    abouts = []
    for setting in settings:
        (name, data), (first, _) = _about(setting), next(iter(setting.values()))
        abouts.append((name, {**data, "eval_blocks": first.eval_blocks}))
    names = []
    for place, (name, data) in enumerate(abouts):
        same_name = [other for other_name, other in abouts if other_name == name]
        differing = [
            f"{key}={value}"
            for key, value in data.items()
            if any(other.get(key) != value for other in same_name)
        ]
        if alike := abouts[:place].count((name, data)):
            # They differ in what has no short name, as in the tokens of what they started from.
            differing.append(f"{alike + 1}")
        names.append(f"{name[:-1]}, {' '.join(differing)})" if differing else name)
    return names
