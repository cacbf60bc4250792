"""Folders -> the labelled runs below them -> a result like that of a study, or one long table.

Runs without a label (trained alone, or before there were labels) are on the board PRESET (DATA),
and their arm is the variant with its options.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from layermem_base.files import write_atomically
from layermem_bench.config.labels import Labels
from layermem_bench.config.result_files import to_json
from layermem_bench.config.run import Run
from layermem_bench.run.folder import RunFolder, recorded_run, unique_names
from layermem_bench.studies.boards import options_of, way_of
from layermem_bench.studies.definition import ALL_CONDITIONS, CHOOSING_SEED
from layermem_bench.studies.gathering import (
    AS_RECORDED,
    RESULT,
    Labelled,
    board_of_runs,
    metrics_of,
    replaced_result,
)
from layermem_bench.studies.records import check_comparable, naming_damage, read_record, run_folders
from layermem_bench.studies.result import Board, StudyResult

logger = logging.getLogger(__name__)
Runs: TypeAlias = Mapping[str, tuple[Run, RunFolder]]
"""Name to what was trained, with its labels, and where it is recorded."""
_CONDITIONS = (*ALL_CONDITIONS, AS_RECORDED)


def labels_of(run: Run) -> Labels:
    """Return the labels of a recorded run, with what stands for those that it does not have."""
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


def find_runs(paths: Iterable[Path]) -> dict[str, tuple[Run, RunFolder]]:
    """Return the labelled runs below these paths that count, by name: the folder's, longer where
    two are the same. Below a folder the plain decoder's come first."""
    folders: dict[Path, tuple[Run, RunFolder]] = {}
    for path in paths:
        below = []
        for folder in run_folders(path):
            with naming_damage(folder):
                run = recorded_run(folder)
            labelled = replace(run, labels=labels_of(run))
            # The seed of trials is in no table, whoever trained with it.
            if labelled.labels.conditions and run.seed != CHOOSING_SEED:
                below.append((labelled, folder))
        if not below:
            raise FileNotFoundError(f"{path}: there is no run (config.yaml) that counts")
        for run, folder in sorted(below, key=lambda each: each[0].labels.arm != "plain"):
            folders.setdefault(folder.path.resolve(), (run, folder))
    if not folders:
        raise ValueError("name at least one run folder")
    boards: dict[str, list[RunFolder]] = {}
    for run, folder in folders.values():
        boards.setdefault(run.labels.board, []).append(folder)
    for of_board in boards.values():
        check_comparable(of_board)
    names = unique_names([path.parts for path in folders])
    return dict(zip(names, folders.values(), strict=True))


def arms_of_same_seeds(runs: Runs) -> dict[str, tuple[str, ...]]:
    """Return each arm's runs in the order of seeds; none where boards or the arms' seeds differ."""
    labelled = {name: replace(run, labels=labels_of(run)) for name, (run, _) in runs.items()}
    seeds: dict[str, dict[int, str]] = {}
    for name, run in labelled.items():
        seeds.setdefault(run.labels.arm, {})[run.seed] = name
    alike = {tuple(sorted(by_seed)) for by_seed in seeds.values()}
    boards = {run.labels.board for run in labelled.values()}
    if len(runs) < 2 or len(boards) > 1:
        return {}
    if len(alike) > 1 or sum(map(len, seeds.values())) < len(runs):
        logger.warning("no means over seeds are shown: arms have different seeds, or one twice")
        return {}
    return {arm: tuple(by_seed[seed] for seed in sorted(by_seed)) for arm, by_seed in seeds.items()}


def gather_runs(
    paths: Sequence[Path], out: Path | None = None, *, against: str | None = None, command: str = ""
) -> StudyResult:
    """Return what the runs below some folders recorded; write it into ``out``, if that is given.

    ``against``: the arm that the others are compared with; None: the first run's.
    """
    before = replaced_result(out / RESULT) if out else None
    members = [
        Labelled(run=run, folder=folder, record=read_record(name, run, folder))
        for name, (run, folder) in find_runs(paths).items()
    ]
    arms = list(dict.fromkeys(each.record.arm for each in members))
    if against not in (None, *arms):
        raise ValueError(f"no arm is called {against!r}; there are {', '.join(arms)}")
    if against is not None:
        members.sort(key=lambda each: each.record.arm != against)
    boards: dict[str, list[Labelled]] = {}
    for each in members:
        boards.setdefault(each.record.board, []).append(each)
    records = [each.record for each in members]
    result = StudyResult(
        command=command,
        name="report",
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        seeds=(),
        boards=tuple(_board(name, of_board, before) for name, of_board in boards.items()),
        metrics=metrics_of(records),
        runs=tuple(records),
    )
    if out:
        write_atomically(out / RESULT, to_json(result))
    return result


def _board(name: str, members: Sequence[Labelled], before: StudyResult | None) -> Board:
    names: dict[tuple[str, str, int], str] = {}
    for record in (each.record for each in members):
        for condition in record.conditions:
            place = condition, record.arm, record.seed
            if (other := names.setdefault(place, record.name)) != record.name:
                raise ValueError(
                    f"{other} and {record.name} are both seed {record.seed} of {record.arm} on "
                    f"{name}: name one, or train one again with another --labels.arm"
                )
    there = {condition for condition, _, _ in names}
    seeds = sorted({each.record.seed for each in members if each.record.state == "ended"})
    conditions = [each for each in _CONDITIONS if each in there]
    return board_of_runs(name, members, conditions, before, seeds)
