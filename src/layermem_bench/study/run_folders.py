"""Run folders that are named one by one -> boards and arms -> a result like that of a study.

Runs that were trained and validated on the same data form a board. On a board, runs that differ in
the seed alone form an arm, such as "lime:lr=0.01".
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from layermem_base.files import write_atomically
from layermem_bench.config.host import VARIANT
from layermem_bench.config.run import Run
from layermem_bench.config.run_identity import identity
from layermem_bench.results.files import to_json
from layermem_bench.results.run_folder import ERRORS, RunFolder, recorded_run, unique_names
from layermem_bench.results.study import (
    LOSS,
    RIGHT_ANSWERS,
    Arm,
    Board,
    Condition,
    RunRecord,
    StudyResult,
)
from layermem_bench.study.costs import costs_of_arms
from layermem_bench.study.definition import CHOOSING_SEED
from layermem_bench.study.gathering import (
    RESULT,
    earlier_results,
    looks_at_runs,
    metrics_of,
    replaced_result,
)
from layermem_bench.study.hosts import way_of
from layermem_bench.study.recipe import without_recipe
from layermem_bench.study.records import (
    check_comparable,
    check_same_starts,
    check_test_problems,
    data_of_config,
    naming_damage,
    read_record,
    recorded_about,
    trained_on,
)
from layermem_bench.train.setup import own_options

logger = logging.getLogger(__name__)
Runs: TypeAlias = Mapping[str, tuple[Run, RunFolder]]
"""Name to what was trained, and where it is recorded."""
# Parts of a run that do not tell arms apart, or do so in another way (the variant, options).
_NOT_IN_ARM_NAMES = ("variant", "seed", "data", "task", "records")
_RATES = ("optim.lr", "optim.router_lr")


def find_runs(paths: Iterable[Path]) -> dict[str, tuple[Run, RunFolder]]:
    """Return the runs at these paths by name: the folder's, longer where two are the same."""
    folders: dict[Path, RunFolder] = {}
    for path in paths:
        for folder in _runs_at(path):
            folders.setdefault(folder.path.resolve(), folder)
    if not folders:
        raise ValueError("name at least one run folder")
    names = unique_names([path.parts for path in folders])
    runs: dict[str, tuple[Run, RunFolder]] = {}
    by_id: dict[str, Path] = {}
    for name, folder in zip(names, folders.values(), strict=True):
        run = _recorded_run(folder)
        if by_id.setdefault(run.id, folder.path) != folder.path:
            raise ValueError(f"{by_id[run.id]} and {folder.path} are one run, {run.id}; name one")
        runs[name] = run, folder
    return runs


def group_by_data(runs: Runs) -> list[list[str]]:
    """Return the names of the runs of each board.

    Runs of one config that recorded different data are not compared.
    """
    by_config: dict[str, list[str]] = {}
    for name, (run, _) in runs.items():
        by_config.setdefault(data_of_config(run), []).append(name)
    settings: list[list[str]] = []
    for names in by_config.values():
        digests = {name: recorded_about(runs[name][1]).get("data") for name in names}
        first_with = {digest: name for name, digest in reversed(digests.items()) if digest}
        if len(first_with) < 2:
            # A run that has not recorded its data stays with the others.
            settings.append(names)
            continue
        logger.warning(
            "%s were trained on different data under the same config: what lies there has changed "
            "between them, so they are not compared",
            " and ".join(reversed(first_with.values())),
        )
        for digest in dict.fromkeys(digests.values()):
            settings.append([name for name, other in digests.items() if other == digest])
    return settings


def find_comparable(paths: Iterable[Path]) -> dict[str, tuple[Run, RunFolder]]:
    """Return the runs at these paths by name; raise where their losses may not be compared."""
    runs = find_runs(paths)
    settings = [{name: runs[name] for name in names} for names in group_by_data(runs)]
    if len(settings) > 1:
        named = (
            f"{', '.join(setting)} on {name}"
            for setting, name in zip(settings, _names(settings), strict=True)
        )
        raise ValueError(
            "runs of different data or tokenizers are not drawn on one axis: "
            f"{'; '.join(named)}. Draw them one by one, or leave --figure out for a page"
        )
    by_arm: dict[str, list[RunFolder]] = {}
    for name, arm in name_arms(runs).items():
        by_arm.setdefault(arm, []).append(runs[name][1])
    for folders in by_arm.values():
        check_comparable(folders, of_one_board=True)
    check_same_starts(folder for _, folder in runs.values())
    return runs


def group_into_arms(runs: Runs) -> dict[str, dict[int, str]]:
    """Return each arm's runs by seed, in the order of the runs; all are of one board."""
    arms: dict[str, dict[int, str]] = {}
    for name, arm in name_arms(runs).items():
        by_seed, seed = arms.setdefault(arm, {}), runs[name][0].seed
        if seed in by_seed:
            raise ValueError(
                f"{by_seed[seed]} and {name} are both seed {seed} of {arm} (they differ in what "
                "came to the same, such as a precision); name one"
            )
        by_seed[seed] = name
    for arm, by_seed in arms.items():
        if len(by_seed) > 1 and CHOOSING_SEED in by_seed:
            # A mean with the run by which the arm's rate was chosen would be too good.
            left_out = by_seed.pop(CHOOSING_SEED)
            logger.warning(
                "%s is left out of %s: seed %d is that by which learning rates are chosen",
                *(left_out, arm, CHOOSING_SEED),
            )
        check_comparable((runs[name][1] for name in by_seed.values()), of_one_board=True)
    check_same_starts(folder for _, folder in runs.values())
    return arms


def arms_of_same_seeds(runs: Runs) -> dict[str, tuple[str, ...]]:
    """Return each arm's runs in the order of seeds; none where data or seeds of arms differ."""
    if len(runs) < 2 or len(group_by_data(runs)) > 1:
        return {}
    try:
        by_seed = group_into_arms(runs)
    except ValueError as error:
        # They can be compared one by one all the same.
        logger.warning("no means over seeds are shown: %s", error)
        return {}
    seeds = {arm: sorted(names) for arm, names in by_seed.items()}
    first, *others = seeds.values()
    if any(other != first for other in others):
        logger.warning(
            "no means over seeds are shown: the arms have different seeds (%s)",
            "; ".join(f"{arm} {', '.join(map(str, of_arm))}" for arm, of_arm in seeds.items()),
        )
        return {}
    return {arm: tuple(names[seed] for seed in first) for arm, names in by_seed.items()}


def _runs_at(path: Path) -> list[RunFolder]:
    """Return the run at a path, or the runs in the folders directly in it, plain first."""
    if RunFolder(path).config.exists():
        return [RunFolder(path)]
    if not path.is_dir():
        wrong = "is a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {wrong}; name a run folder")
    inner = [RunFolder(p) for p in sorted(path.iterdir()) if p.is_dir()]
    folders = [folder for folder in inner if folder.config.exists()]
    if not folders:
        raise ValueError(f"{path} is no run folder, and there is none in it (no config.yaml)")
    for folder in inner:
        if (folder.path / ERRORS).exists() and not folder.config.exists():
            logger.warning("%s is left out: it failed before its first step", folder.path)

    def is_variant(folder: RunFolder) -> bool:
        run = _recorded_run(folder)
        # A host that is trained as it is is plain too.
        return run.variant != "plain" and (run.host.memory, run.host.train) != ("none", "all")

    # The others are compared with what comes first.
    return sorted(folders, key=is_variant)


def _recorded_run(folder: RunFolder) -> Run:
    with naming_damage(folder):
        return recorded_run(folder)


def _with_recorded_precision(runs: Runs) -> dict[str, Run]:
    """Return the runs with "auto" replaced by the precision it came to.

    A run that ended before it recorded one has that of the others, if these have the same.
    """
    found: dict[str, Any] = {n: recorded_about(f).get("precision") for n, (_, f) in runs.items()}
    (only,) = kinds if len(kinds := {p for p in found.values() if p}) == 1 else (None,)
    for name, (run, _) in runs.items():
        asked = run.compute.precision
        found[name] = found[name] or (only if only and asked == "auto" else asked)
    return {
        name: replace(run, compute=replace(run.compute, precision=found[name]))
        for name, (run, _) in runs.items()
    }


def name_arms(given: Runs) -> dict[str, str]:
    """Return the name of each run's arm: its variant, and what else differs between the runs."""
    runs = _with_recorded_precision(given)
    fields = {name: _fields_of_arms(run) for name, run in runs.items()}
    differing = [
        key
        for key in sorted({key for values in fields.values() for key in values})
        if len({values.get(key) for values in fields.values()}) > 1
    ]
    arms = _name_by(differing, fields, runs)
    if any(run.variant != VARIANT for run in runs.values()):
        return arms
    # Ways of going on training a model often have a rate each, which need not be in their names.
    without_rates = _name_by([key for key in differing if key not in _RATES], fields, runs)
    return without_rates if len(set(without_rates.values())) == len(set(arms.values())) else arms


def _name_by(
    differing: Sequence[str], fields: Mapping[str, Mapping[str, str]], runs: Mapping[str, Run]
) -> dict[str, str]:
    arms = {}
    for name, values in fields.items():
        run = runs[name]
        # What all runs have is not said, but for what makes a variant another one.
        all_have = "model.options" not in differing
        named = own_options(run.variant, run.model) if all_have else run.model.options
        variant, *options = without_recipe(
            way_of(run.host) if run.variant == VARIANT else run.variant, *named
        )
        parts = [
            ":".join(options)
            if key == "model.options"
            else f"{key.rpartition('.')[2]}={values[key]}"
            for key in dict.fromkeys(["model.options", *differing] if all_have else differing)
            if (options if key == "model.options" else values.get(key))
        ]
        arms[name] = ":".join([variant, *parts])
    return arms


def _fields_of_arms(run: Run) -> dict[str, str]:
    """Return the fields that may tell arms apart, by dotted name."""
    fields = identity(run).items()
    # What is not set is not said.
    flat = {
        k: "" if v is None else str(v)
        for k, v in fields
        if k.partition(".")[0] not in _NOT_IN_ARM_NAMES
    }
    flat["model.options"] = ":".join(run.model.options)
    if run.host.window is None:
        flat["host.window"] = ""
    if run.variant == VARIANT:
        # What the name of the way says.
        del flat["host.train"]
        if run.host.memory in ("full", "none"):
            flat["host.memory"] = ""
        apart = not run.host.shares_kv and run.host.train != "routers"
        flat["host.shares_kv"] = "False" if apart else ""
    return flat


AS_RECORDED = "recorded"
"""The condition of runs that are compared as they are."""


def compare_runs(
    paths: Sequence[Path],
    out: Path,
    *,
    against: str | None = None,
    command: str = "",
) -> StudyResult:
    """Gather what runs recorded; return it, and write it into ``out``.

    ``against``: the arm that the others are compared with; None: the first run's.
    """
    before = replaced_result(out / RESULT)
    result = gather_runs(paths, against=against, command=command, before=before)
    write_atomically(out / RESULT, to_json(result))
    return result


def gather_runs(
    paths: Sequence[Path],
    *,
    against: str | None = None,
    command: str = "",
    before: StudyResult | None = None,
) -> StudyResult:
    """Return what runs recorded, and write nothing; ``before``: what was recorded of them."""
    runs = find_runs(paths)
    settings = [{name: runs[name] for name in names} for names in group_by_data(runs)]
    boards: list[Board] = []
    records: list[RunRecord] = []
    for setting, name in zip(settings, _names(settings), strict=True):
        board, of_board = _compare(setting, name, against, before)
        boards.append(board)
        records += of_board
    arms = dict.fromkeys(arm.name for board in boards for arm in board.conditions[0].arms)
    if against is not None and against not in arms:
        raise ValueError(f"no arm is called {against!r}; there are {', '.join(arms)}")
    return StudyResult(
        command=command,
        name="report",
        title=" against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms side by side",
        seeds=(),
        boards=tuple(boards),
        metrics=metrics_of(records),
        runs=tuple(records),
    )


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
    first_of_arm = {arm: runs[by_seed[min(by_seed)]] for arm, by_seed in arms.items()}
    seeds = sorted({record.seed for record in records if record.state == "ended"})
    condition = Condition(
        name=AS_RECORDED,
        arms=tuple(Arm(name=arm, steps=run.max_steps) for arm, (run, _) in first_of_arm.items()),
        looks=looks_at_runs(earlier_results(before, records), records, seeds),
    )
    are_right = any(RIGHT_ANSWERS in record.metrics for record in records)
    board = Board(
        name=name,
        metric=RIGHT_ANSWERS if are_right else LOSS,
        conditions=(condition,),
        preset=first.preset,
        data=_about(runs)[1],
        costs=costs_of_arms(first_of_arm),
    )
    return board, records


def _about(runs: Runs) -> tuple[str, dict[str, Any]]:
    """Return what a board is called, and what its runs were trained on."""
    first, _ = next(iter(runs.values()))
    digests = (recorded_about(folder).get("data") for _, folder in runs.values())
    data = {**trained_on(first), "digest": next(filter(None, digests), None)}
    presets = dict.fromkeys(run.preset for run, _ in runs.values())
    options = " ".join([first.task.name, *first.task.options]) if first.task.name else ""
    return f"{', '.join(presets)} ({options or data['source']})", data


def _names(settings: Sequence[Runs]) -> list[str]:
    """Return the names of boards, longer where two would be the same."""
    abouts = []
    for setting in settings:
        first, _ = next(iter(setting.values()))
        name, data = _about(setting)
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
