"""Runs of a study -> its result: what they recorded, what was computed of them, what is missing.

More seeds than those of an earlier result of the same runs are another look, for which p-values
pay (``intervals.price_of_looks``). Looked for are the result that is replaced and the studies whose
results lie beside the runs.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from layermem_bench.results import study as results
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import further_looks
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import (
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
from layermem_bench.study.costs import costs_of_arms, model_fields
from layermem_bench.study.definition import Observed, Records, Study, Trained
from layermem_bench.study.planning import Done, Plan, parameters, trials
from layermem_bench.study.records import (
    RecordedRuns,
    check_comparable,
    check_same_text,
    check_test_problems,
    read_record,
    standing,
    trained_on,
)
from layermem_bench.train.host_models import load_host
from layermem_bench.train.run_config import check_same_run

logger = logging.getLogger(__name__)
RESULT = "study.json"
"""File of a result in its folder."""
STUDIES = "studies"
"""Folder of the results of studies, beside the runs of their boards."""
# A run's folder is OUT/BOARD/RUN or OUT/BOARD/CONDITION/RUN.
_RUN_IS_BELOW = 3


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
        of_trials = _read(trials(of_board.board), {}, recorded)
        counting = _read(of_board.counting, of_board.by_condition, recorded)
        check_comparable(
            RunFolder(run.folder) for run in (*of_trials, *counting) if run.state == "ended"
        )
        check_test_problems(counting)
        of_trials = [replace(run, validations=(), solved=None, about={}) for run in of_trials]
        boards.append(_board(study, of_board, counting, earlier_results(before, counting)))
        runs += [*of_trials, *counting]
    trained = Trained(seeds=study.seeds, records=_by_arm(runs, study.conditions[0]), out=folder)
    seen = list(study.observe(trained) if study.observe else ())
    observed = [each for each in seen if isinstance(each, Observed)]
    of_paper: dict[str, Any] = {each.name: getattr(study, each.name) for each in fields(OfPaper)}
    of_paper["notes"] = (*study.notes, *_lost_notes(runs))
    compared = [run for run in runs if run.conditions]
    earlier = earlier_results(before, compared)
    # Boards are compared too: shapes, and by claims.
    check_same_text(compared)
    looks = looks_at_runs(earlier, compared, study.seeds, planned=True)
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


def _read(plan: Plan, by_condition: Mapping[str, Plan], recorded: RecordedRuns) -> list[RunRecord]:
    """Return what planned runs recorded, wherever they lie and stand."""
    records = []
    for name, planned in plan.items():
        folder = recorded.folder_of(name, planned.run)
        record = standing(name, planned.run, folder)
        if record.state == "ended":
            # A folder of this name may hold what was planned under it before.
            check_same_run(folder, planned.run)
            record = read_record(name, planned.run, folder)
            if planned.run.task.name is not None and RIGHT_ANSWERS not in record.metrics:
                raise ValueError(
                    f"{folder.path} has ended without a {folder.result.name}; delete the folder to "
                    "run it again"
                )
        conditions = tuple(each for each, runs in by_condition.items() if name in runs)
        records.append(replace(record, board=planned.board, arm=planned.arm, conditions=conditions))
    return records


def _by_arm(runs: Iterable[RunRecord], condition: str) -> Records:
    records: dict[str, dict[str, dict[int, RunRecord]]] = {}
    for run in runs:
        if run.state == "ended" and condition in run.conditions:
            records.setdefault(run.board, {}).setdefault(run.arm, {})[run.seed] = run
    return records


def _board(
    study: Study, done: Done, counting: list[RunRecord], earlier: Sequence[StudyResult]
) -> results.Board:
    board, base = done.board, done.board.base
    trained = _trained_by_hosts(done)
    ended = [run for run in counting if run.state == "ended"]
    folders = {run.name: RunFolder(run.folder) for run in ended}
    conditions = tuple(
        Condition(
            name=name,
            arms=_arms(done, plan, trained, folders),
            looks=looks_at_runs(
                earlier,
                [run for run in counting if name in run.conditions],
                study.seeds,
                planned=True,
            ),
        )
        for name, plan in done.by_condition.items()
    )
    first = {run.arm: run for run in reversed(ended)}
    planned = next(iter(done.by_condition.values()))
    run_of_arm = {
        arm.name: (planned[run.name].run, folders[run.name])
        for arm in board.arms
        if (run := first.get(arm.name)) and run.name in planned
    }
    digests = (run.about.get("data") for run in ended)
    firsts = (run.validations[0] for run in ended if run.validations)
    starts = {each.val_loss for each in firsts if each.step == 0}
    return results.Board(
        name=board.name,
        metric=board.metric,
        conditions=conditions,
        preset=base.preset,
        shape=board.shape,
        data={**trained_on(base), "digest": next(filter(None, digests), None)},
        tried=done.tried,
        steps=done.steps,
        memory=done.memory,
        costs=costs_of_arms(run_of_arm),
        before=starts.pop() if len(starts) == 1 and base.host.model else None,
    )


def _arms(
    done: Done, plan: Plan, trained: Mapping[str, int], folders: Mapping[str, RunFolder]
) -> tuple[results.Arm, ...]:
    """Return the arms of a plan; ``trained``: the parameters of arms of transformers' models.

    ``folders`` are those of runs that have ended, by name.
    """
    runs = {planned.arm: planned.run for planned in plan.values()}
    ended = {planned.arm: folders[name] for name, planned in plan.items() if name in folders}
    arms = []
    for arm in done.board.arms:
        run, choice = runs[arm.name], done.choices.get(arm.name)
        lost = "diverged at every learning rate that was tried" if arm.name in done.lost else ""
        fields = model_fields(run, ended.get(arm.name)) if run.host.model is None else None
        arms.append(
            results.Arm(
                name=arm.name,
                steps=run.max_steps,
                parameters=parameters(run, fields) if fields else trained.get(arm.name),
                width_of_mlp=fields["intermediate_size"] if fields else None,
                rate=choice.rate if choice else None,
                note=lost or arm.note,
            )
        )
    return tuple(arms)


def _trained_by_hosts(done: Done) -> dict[str, int]:
    """Return how many parameters each arm trains of a model of transformers, on text or a task."""
    runs = {each.arm: each.run for each in next(iter(done.by_condition.values())).values()}
    return {
        arm: sum(p.numel() for p in load_host(run).parameters() if p.requires_grad)
        for arm, run in runs.items()
        if run.host.model is not None
    }


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
        return read_result(StudyResult, path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("looks at the seeds of an earlier result are not counted: %s", error)
        return None


def earlier_results(
    before: StudyResult | None, runs: Iterable[RunRecord]
) -> tuple[StudyResult, ...]:
    """Return what was computed of runs before: ``before``, and the results of studies that lie in
    the folders that hold the runs."""
    ended = {Path(run.folder) for run in runs if run.state == "ended"}
    # Named by a link, a run lies beside what is beside it and beside the link.
    folders = {place for folder in ended for place in (folder.absolute(), folder.resolve())}
    parents = {parent for folder in folders for parent in folder.parents[:_RUN_IS_BELOW]}
    files = sorted({file for parent in parents for file in parent.glob(f"{STUDIES}/**/{RESULT}")})
    beside = (replaced_result(file) for file in files)
    return tuple(each for each in (before, *beside) if each is not None)


def looks_at_runs(
    results: Iterable[StudyResult],
    runs: Sequence[RunRecord],
    seeds: Sequence[int],
    *,
    planned: bool = False,
) -> Looks:
    """Return the looks at the runs of one table, that at ``seeds`` last.

    ``results``: what was computed before, in which runs are found by what they are, not by the
    names of boards; the table counts that has most looks at ``runs``. It is another look where an
    arm has got seeds, also if all arms together have no new one; not where ``seeds`` are
    ``planned``, of which one that failed was tried again.
    """
    found = [further_looks((), seeds)]
    for result in results:
        for board in result.boards:
            for condition in board.conditions:
                seen = result.of(board.name, condition.name)
                if _were_compared(seen, runs):
                    found.append(_looks_after(condition, seen, runs, seeds, planned))
    return max(found, key=len)


def _looks_after(
    condition: Condition,
    seen: Sequence[RunRecord],
    runs: Sequence[RunRecord],
    seeds: Sequence[int],
    planned: bool,
) -> Looks:
    """Return the looks at runs of which ``seen`` were looked at under a condition."""
    now = tuple(sorted(seeds))
    ended = tuple(sorted({run.seed for run in seen if run.state == "ended"}))
    looks = condition.looks or (ended,)
    # Seeds that were planned and have not ended were not seen.
    if now not in (looks[-1], ended):
        return further_looks(looks, now)
    return (*looks, now) if not planned and _an_arm_has_grown(seen, runs) else looks


def _an_arm_has_grown(before: Iterable[RunRecord], now: Iterable[RunRecord]) -> bool:
    """Return whether an arm that had ended runs has further ones."""
    of_arms = []
    for runs in (before, now):
        by_arm: dict[str, set[str]] = {}
        for run in runs:
            if run.state == "ended":
                by_arm.setdefault(run.arm, set()).add(run.run_id)
        of_arms.append(list(by_arm.values()))
    return any(a & b and b - a for a, b in product(*of_arms))


def _were_compared(seen: Iterable[RunRecord], runs: Sequence[RunRecord]) -> bool:
    """Return whether of ``runs`` two arms, or the only one, have ended runs that were ``seen``."""
    ended = {run.run_id: run.arm for run in runs if run.state == "ended"}
    both = {ended[run.run_id] for run in seen if run.state == "ended" and run.run_id in ended}
    return len(both) >= min(2, len(set(ended.values()))) > 0
