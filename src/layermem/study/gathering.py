"""Runs of a study -> its result: what they recorded, what was computed of them, what is missing."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from layermem.results import study as results
from layermem.results.study import (
    BY_LEVEL,
    METRICS,
    RIGHT_ANSWERS,
    Condition,
    Metric,
    Picture,
    Row,
    RunRecord,
    StudyResult,
)
from layermem.runs import RunFolder
from layermem.study.arm_costs import costs_of_arms
from layermem.study.conditions import parameters
from layermem.study.definition import Observed, Study, Trained
from layermem.study.looks import looks_at_claims, looks_at_runs
from layermem.study.planning import Done, Plan, trials
from layermem.study.recorded import RecordedRuns
from layermem.study.records import (
    check_comparable,
    check_test_problems,
    read_record,
    run_state,
)
from layermem.study.run_folders import trained_on
from layermem.train.host_models import load_host
from layermem.train.run_config import check_same_run


def gather(
    study: Study,
    done: Mapping[str, Done],
    recorded: RecordedRuns,
    before: StudyResult | None,
    folder: Path,
) -> StudyResult:
    """Return what came of a study whose runs are trained, as far as they could be.

    ``before``: the result that is replaced. ``folder``: where this one lies, and what is computed.
    """
    boards, runs = [], list[RunRecord]()
    for of_board in done.values():
        of_trials = _read(trials(of_board.board), {}, recorded)
        counting = _read(of_board.counting, of_board.by_condition, recorded)
        check_comparable(
            RunFolder(run.folder) for run in (*of_trials, *counting) if run.state == "ended"
        )
        check_test_problems(counting)
        of_trials = [replace(run, validations=(), solved=None, about={}) for run in of_trials]
        boards.append(_board(study, of_board, counting, before))
        runs += [*of_trials, *counting]
    trained = Trained(seeds=study.seeds, records=_by_arm(runs, study.conditions[0]), out=folder)
    seen = list(study.observe(trained) if study.observe else ())
    observed = [each for each in seen if isinstance(each, Observed)]
    rows = tuple(Row(metric=o.quantity, arm=o.arm, by_seed=dict(o.by_seed)) for o in observed)
    return StudyResult(
        command="",
        name=study.name,
        title=study.title,
        seeds=study.seeds,
        boards=tuple(boards),
        metrics={**metrics_of(runs), **_metrics_of_rows(study, observed)},
        rows=rows,
        runs=tuple(runs),
        scale=study.scale,
        claim=study.claim,
        papers=study.papers,
        claims=study.claims,
        drawings=study.drawings,
        pictures=tuple(each for each in seen if isinstance(each, Picture)),
        looks=looks_at_claims(before, runs, study.seeds) if study.claims else (),
        notes=(*study.notes, *_lost_notes(runs)),
        missing=study.missing,
    )


def _read(plan: Plan, by_condition: Mapping[str, Plan], recorded: RecordedRuns) -> list[RunRecord]:
    """Return what planned runs recorded, wherever they lie and stand."""
    records = []
    for name, planned in plan.items():
        folder = recorded.folder_of(name, planned.run)
        state, note = run_state(folder, planned.run)
        record = RunRecord(
            name=name,
            run_id=planned.run.id,
            folder=str(folder.path),
            state=state,
            note=note,
            seed=planned.run.seed,
            max_steps=planned.run.max_steps,
        )
        if state == "ended":
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


def _by_arm(
    runs: Iterable[RunRecord], condition: str
) -> dict[str, dict[str, dict[int, RunRecord]]]:
    records: dict[str, dict[str, dict[int, RunRecord]]] = {}
    for run in runs:
        if run.state == "ended" and condition in run.conditions:
            records.setdefault(run.board, {}).setdefault(run.arm, {})[run.seed] = run
    return records


def _board(
    study: Study, done: Done, counting: list[RunRecord], before: StudyResult | None
) -> results.Board:
    board, base = done.board, done.board.base
    conditions = []
    trained = _trained_by_hosts(done)
    for name, plan in done.by_condition.items():
        runs = [run for run in counting if name in run.conditions]
        looks = looks_at_runs(before, name, runs, study.seeds)
        arms = _arms(done, plan, trained)
        conditions.append(Condition(name=name, arms=arms, looks=looks))
    ended = [run for run in counting if run.state == "ended"]
    first = {run.arm: run for run in reversed(ended)}
    planned = next(iter(done.by_condition.values()))
    run_of_arm = {
        arm.name: (planned[first[arm.name].name].run, RunFolder(first[arm.name].folder))
        for arm in board.arms
        if arm.name in first and first[arm.name].name in planned
    }
    digests = (run.about.get("data") for run in ended)
    starts = {run.validations[0].val_loss for run in ended if _starts(run)}
    return results.Board(
        name=board.name,
        metric=board.metric,
        conditions=tuple(conditions),
        preset=base.preset,
        shape=board.shape,
        data={**trained_on(base), "digest": next(filter(None, digests), None)},
        tried=done.tried,
        steps=done.measured.steps,
        memory=done.measured.memory,
        costs=costs_of_arms(run_of_arm),
        before=starts.pop() if len(starts) == 1 and base.host.model else None,
    )


def _starts(run: RunRecord) -> bool:
    return bool(run.validations) and run.validations[0].step == 0


def _arms(done: Done, plan: Plan, trained: Mapping[str, int]) -> tuple[results.Arm, ...]:
    """Return the arms of a plan; ``trained``: parameters that those of models of transformers
    train."""
    runs = {planned.arm: planned.run for planned in plan.values()}
    arms = []
    for arm in done.board.arms:
        run, choice = runs[arm.name], done.choices.get(arm.name)
        lost = "diverged at every learning rate that was tried" if arm.name in done.lost else ""
        is_host = run.host.model is not None
        # A lost arm's run may have no model to start from, whose sizes are not known then.
        is_sized = not (is_host or (lost and run.model.pretrained))
        arms.append(
            results.Arm(
                name=arm.name,
                steps=run.max_steps,
                parameters=parameters(run) if is_sized else trained.get(arm.name),
                width_of_mlp=run.model.intermediate_size if is_sized else None,
                rate=choice.rate if choice else None,
                note=lost or arm.note,
            )
        )
    return tuple(arms)


def _trained_by_hosts(done: Done) -> dict[str, int]:
    """Return how many parameters each arm trains of a model of transformers, on text or a task."""
    runs = {planned.arm: planned.run for planned in next(iter(done.by_condition.values())).values()}
    return {
        arm: sum(p.numel() for p in load_host(run).parameters() if p.requires_grad)
        for arm, run in runs.items()
        if run.host.model is not None and run.records.source is None
    }


def metrics_of(runs: Iterable[RunRecord]) -> dict[str, Metric]:
    """Return the metrics that runs have, with what a guess comes to where that is one number."""
    runs = list(runs)
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    chances = {run.solved.chance for run in runs if run.solved and run.metrics}
    found = {name: METRICS[name.partition(BY_LEVEL)[0]] for name in names}
    if RIGHT_ANSWERS in found and len(chances) == 1:
        found[RIGHT_ANSWERS] = replace(found[RIGHT_ANSWERS], chance=chances.pop())
    return found


def _metrics_of_rows(study: Study, observed: Iterable[Observed]) -> dict[str, Metric]:
    """Return those of what was computed, and of what the paper prints alone."""
    found = {number.quantity: Metric(is_share=number.is_share) for number in study.papers}
    for claim in study.claims:
        found.setdefault(claim.quantity, Metric())
    for each in observed:
        known = found.get(each.quantity, Metric()).chance
        chance = max(filter(None, (known, each.chance)), default=None)
        found[each.quantity] = Metric(is_share=each.is_share, chance=chance, counted=each.counted)
    return found


def _lost_notes(runs: Iterable[RunRecord]) -> list[str]:
    """Say which runs are in no mean."""
    runs = list(runs)
    lost = [run.name for run in runs if run.state not in ("ended", "diverged")]
    diverged = [run.name for run in runs if run.state == "diverged" and run.conditions]
    notes = [f"Failed or not ended, and in no mean: {', '.join(lost)}."] if lost else []
    return notes + ([f"Diverged, and in no mean: {', '.join(diverged)}."] if diverged else [])
