"""Recorded runs side by side: what each recorded, which are compared, what their arms cost.

It does not know: how runs are told apart, tables, figures, pages.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from layermem.experiments.arm_costs import costs_of_arms
from layermem.experiments.learning_rates import tried_rates, tried_with_decays
from layermem.experiments.looks import Looks, looks_at, replaced_result
from layermem.experiments.records import read_record, recorded_about
from layermem.experiments.run_folders import (
    Runs,
    find_runs,
    group_by_data,
    group_into_arms,
    trained_on,
)
from layermem.results.analysis import Analysis
from layermem.results.comparison import Comparison, ComparisonSetting
from layermem.results.costs import Costs
from layermem.results.eval import EvalResult
from layermem.results.files import Result, read_result, to_json
from layermem.results.minimal_pairs import MinimalPairsResult
from layermem.results.perplexity import PerplexityResult
from layermem.results.run_record import RunRecord
from layermem.runs import create_folder, write_atomically

_R = TypeVar("_R", bound=Result)


def compare_runs(
    paths: Sequence[Path],
    out: Path,
    *,
    against: str | None = None,
    analyses: Sequence[Path] = (),
    evaluations: Sequence[Path] = (),
    costs: Path | None = None,
    learning_rates: Mapping[str, Mapping[float, float]] | None = None,
    decays: Mapping[str, Mapping[float, Mapping[float, float]]] | None = None,
    command: str = "",
) -> Comparison:
    """Gather what runs recorded; return it, and write it to report.json in ``out``.

    ``against``: the arm the others are compared with; None: the first run's. ``analyses``,
    ``evaluations``, ``costs``: files that other commands wrote. ``learning_rates``: validation loss
    by arm and learning rate, where some were tried; ``decays``: by arm, weight decay and learning
    rate, where both were. ``command``: what asked for it.
    """
    _check_evaluations(evaluations)
    runs = find_runs(paths)
    settings = [{name: runs[name] for name in names} for names in group_by_data(runs)]
    before = replaced_result(Comparison, out / "report.json")
    compared = tuple(_compare(setting, against, before) for setting in settings)
    arms = dict.fromkeys(arm for setting in compared for arm in setting.arms)
    if against is not None and against not in arms:
        raise ValueError(f"no arm is called {against!r}; there are {', '.join(arms)}")
    records = {name: read_record(name, run, folder) for name, (run, folder) in runs.items()}
    for setting in settings:
        check_test_problems({name: records[name] for name in setting})
    comparison = Comparison(
        command=command,
        runs=records,
        settings=compared,
        learning_rates=(*tried_rates(learning_rates or {}), *tried_with_decays(decays or {})),
        analyses=tuple(read_result(Analysis, path) for path in analyses),
        costs=None if costs is None else read_result(Costs, costs),
        perplexities=_read_all(PerplexityResult, evaluations),
        minimal_pairs=_read_all(MinimalPairsResult, evaluations),
        evaluations=_read_all(EvalResult, evaluations),
    )
    create_folder(out)
    write_atomically(out / "report.json", to_json(comparison))
    return comparison


def _check_evaluations(paths: Sequence[Path]) -> None:
    """Raise where a path is no folder of an evaluation: it would be left out without a word."""
    names = [f"{kind.KIND}.json" for kind in (PerplexityResult, MinimalPairsResult, EvalResult)]
    for path in paths:
        if not any((path / name).exists() for name in names):
            raise FileNotFoundError(
                f"{path} holds none of {', '.join(names)}; give a folder that layermem perplexity, "
                "blimp or eval has written (--out)"
            )


def _read_all(kind: type[_R], folders: Sequence[Path]) -> tuple[_R, ...]:
    """Return the results of a kind in the folders that have one."""
    found = [folder for folder in folders if (folder / f"{kind.KIND}.json").exists()]
    return tuple(read_result(kind, folder) for folder in found)


def _compare(runs: Runs, against: str | None, before: Comparison | None) -> ComparisonSetting:
    """Return one setting: its arms in the order of their runs, and what they cost.

    ``before``: the comparison that is replaced.
    """
    arms = group_into_arms(runs)
    if against in arms:
        arms = {against: arms.pop(against), **arms}
    first, _ = next(iter(runs.values()))
    digests = (recorded_about(folder).get("data") for _, folder in runs.values())
    return ComparisonSetting(
        presets=tuple(dict.fromkeys(run.preset for run, _ in runs.values())),
        task=first.task.name,
        trained_on={
            **trained_on(first),
            "digest": next(filter(None, digests), None),
        },
        arms={arm: tuple(by[seed] for seed in sorted(by)) for arm, by in arms.items()},
        costs=costs_of_arms({arm: runs[by[min(by)]] for arm, by in arms.items()}),
        looks=_looks(runs, before),
    )


def _looks(runs: Runs, before: Comparison | None) -> Looks:
    """Return the looks at the runs of a setting that have ended, this one last."""
    now = {run.id: run.seed for run, folder in runs.values() if folder.final.exists()}
    if before is None:
        return looks_at((), (), now, {*now.values()})
    for setting in before.settings:
        of_setting = [before.runs[name] for names in setting.arms.values() for name in names]
        seen = {run.run_id: run.seed for run in of_setting if run.ended}
        if not now.keys().isdisjoint(seen):
            earlier = setting.looks or (tuple(sorted({*seen.values()})),)
            return looks_at(earlier, seen, now, {*now.values()})
    return looks_at((), (), now, {*now.values()})


def check_test_problems(records: Mapping[str, RunRecord]) -> None:
    """Raise where models of one setting solved different test problems."""
    solved = {name: record.solved for name, record in records.items() if record.solved}
    counts = {name: result.count for name, result in solved.items()}
    (first, count), *others = counts.items() or [("", 0)]
    for name, other in others:
        if other != count:
            raise ValueError(
                f"{first} solved {count} test problems and {name} {other}; their shares cannot be "
                "compared: name runs that were tested on the same problems"
            )
    by_digest = {result.problems: name for name, result in solved.items() if result.problems}
    if len(by_digest) > 1:
        raise ValueError(
            f"{' and '.join(by_digest.values())} solved different test problems, by their "
            "result.json; their shares cannot be compared: name runs that were tested on the same "
            "problems"
        )
