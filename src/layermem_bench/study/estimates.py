"""What a study would train, and about how long it would take here.

Hours are steps times the seconds of a step, which is timed, or extrapolated from a smaller model's.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from layermem.models.registry import lookup
from layermem_bench.config.labels import Labels
from layermem_bench.config.micro_batches import sequences_at_once
from layermem_bench.config.precision import uses_bfloat16
from layermem_bench.config.run import Model, Run
from layermem_bench.data.sources import open_source
from layermem_bench.efficiency.costs import cost
from layermem_bench.efficiency.measuring import Shape
from layermem_bench.efficiency.model_sizes import model_sizes, unknown_size
from layermem_bench.results.costs import Cost
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import MeasuredSteps, RunRecord
from layermem_bench.study import planning
from layermem_bench.study.boards import board_of_one
from layermem_bench.study.carrying_out import check_conditions
from layermem_bench.study.definition import Board, Study
from layermem_bench.study.records import RecordedRuns, check_usable, standing
from layermem_bench.study.steps import STEPS, read_steps, shape_of, time_steps

Basis = Literal["timed", "extrapolated"]
UNCERTAINTY: Mapping[Basis, str] = {
    "timed": "steps of each arm, timed now: within a factor of 2 on a machine without other work",
    "extrapolated": "steps of a smaller model, timed now, and FLOPs: within a factor of 10",
}
"""What an estimate is from, and how wrong it may be."""
# Seconds of a run's process until its first step: imports, above all.
_START = 8.0
_ROUNDS = 2
# FLOPs of the timed steps of a board, and bytes of weights, gradients and optimiser, at most.
_MOST_FLOPS = {"cpu": 1e12, "cuda": 1e16}
_MOST_BYTES = {"cpu": 2e9, "cuda": 6e10}
_REFERENCE = Run(
    variant="plain",
    model=Model(hidden_size=512, intermediate_size=2048, num_hidden_layers=4, vocab_size=1000),
)
logger = logging.getLogger(__name__)
Planned = dict[str, tuple[planning.PlannedRun, RunRecord]]
"""Name to planned run, and where it stands."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the runs of one board would take: those that choose learning rates (trials), and those
    that count. FLOPs are in closed form; there are none of models of transformers."""

    board: str
    trials: int
    counting: int
    recorded: int
    """Those of all that need not be run."""
    failed: int
    """Those whose last attempt failed."""
    parameters: int | None
    """Trainable parameters of the largest model; None: of models of transformers."""
    tokens: float
    flops: float | None
    hours: float
    """Hours of one thread, or of the GPU, of the runs that are still to come."""
    basis: Basis


def is_recorded(state: RunRecord) -> bool:
    """Return whether a run need not be trained."""
    return state.state in ("ended", "diverged")


def planned_states(study: Study, recorded: RecordedRuns) -> Planned:
    """Return every planned run and where it stands.

    Runs that count are known once learning rates are chosen, and those of equal time once steps are
    measured; before that they are those at equal tokens, and not recorded.
    """
    planned: Planned = {}
    choices: dict[str, planning.Choices] = {}
    for stage in planning.stages(study.boards):
        for board in stage:
            of_trials = {
                n: (p, _state(n, p.run, recorded)) for n, p in planning.trials(board).items()
            }
            planned |= of_trials
            known = all(is_recorded(state) for _, state in of_trials.values())
            choices[board.name] = _choices(board, recorded) if known else {}
            known = known and (not of_trials or bool(choices[board.name]))
            before = choices.get(board.starts_from.name) if board.starts_from else None
            runs = planning.counting_runs(
                board, study.seeds, choices[board.name], recorded.path_of, before
            )
            measured = _measured(board, recorded.out)
            timed = measured.ratios if measured else {board.arms[0].name}
            for condition, (name, run) in product(study.conditions, runs.items()):
                # Without measured times, the runs of an arm are not known yet.
                is_unmeasured = condition == "time" and run.arm not in timed
                steps = None if is_unmeasured else measured
                ((name, each),) = planning.at_condition(
                    condition, {name: run}, board, steps
                ).items()
                if known and not is_unmeasured:
                    planned[name] = each, _state(name, each.run, recorded)
                else:
                    # A run that a condition does not change is one with that at equal tokens.
                    key = f"{name} ({condition})" if is_unmeasured else name
                    planned[key] = each, _unknown(name, recorded.out / name)
    return planned


def _measured(board: Board, out: Path) -> MeasuredSteps | None:
    """Return the recorded times of a board's steps; refuse what the study itself would refuse."""
    file = out / board.name / STEPS
    if not file.exists():
        return None
    arms = {arm.name: arm.change(board.base) for arm in board.arms}
    return read_steps(file, board.base, arms, out / board.name / "time")


def _choices(board: Board, recorded: RecordedRuns) -> planning.Choices:
    """Return each arm's choice; empty where not all could be read."""
    try:
        return planning.choices_of(board, planning.read_trials(board, recorded))[0]
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        # One board of many: the others are listed all the same.
        logger.warning("%s chose no learning rates: %s", board.name, error)
        return {}


def _state(name: str, run: Run, recorded: RecordedRuns) -> RunRecord:
    """Return where a run stands; one whose record cannot be read counts as failed."""
    folder = recorded.folder_of(name, run)
    try:
        return standing(name, run, folder)
    except (ValueError, KeyError, TypeError) as error:
        record = _unknown(name, folder.path)
        return replace(record, run_id=run.id, state="failed", note=str(error))


def _unknown(name: str, folder: Path) -> RunRecord:
    return RunRecord(name=name, run_id="", folder=str(folder), state="not begun")


def estimate(study: Study, out: Path, runs: Sequence[Path] = ()) -> list[Estimate]:
    """Return what each board would take; what carrying the study out would refuse is refused."""
    check_conditions(study)
    planned = planned_states(study, RecordedRuns(out, runs))
    for each, state in planned.values():
        # It has no id as long as it is not known which run it is.
        if state.run_id:
            check_usable(RunFolder(state.folder), each.run)
    boards = {board.name: board for stage in planning.stages(study.boards) for board in stage}
    return [
        _estimate(board, [pair for pair in planned.values() if pair[0].board == name])
        for name, board in boards.items()
    ]


def check_can_begin(run: Run) -> None:
    """Raise where a run would be refused here before its first step, as far as nothing has to be
    prepared or fetched for it."""
    if run.compute.tensor == run.compute.replicas == 1:
        sequences_at_once(run, int(os.environ.get("WORLD_SIZE", "1")))
    if run.task.name or run.records.source is not None:
        return
    for source in filter(None, (*run.data.shares(), run.data.validation)):
        open_source(source)


def estimate_run(run: Run) -> Estimate:
    """Return what one run would take; what training it would refuse is refused."""
    check_can_begin(run)
    board = board_of_one(run)
    planned = planning.PlannedRun(
        run=replace(run, labels=Labels(board=board.name, arm=run.variant))
    )
    state = RunRecord(name=run.preset, run_id=run.id, folder="", state="not begun")
    return _estimate(board, [(planned, state)])


def _estimate(board: Board, members: Sequence[tuple[planning.PlannedRun, RunRecord]]) -> Estimate:
    # The first of an arm are at equal tokens; those at equal parameters have other models.
    arms: dict[str, Run] = {}
    for planned, _ in members:
        arms.setdefault(planned.arm, planned.run)
    logger.info("timing steps of %d arms of %s", len(arms), board.name)
    seconds, basis = _seconds_of_steps(arms)
    missing = [planned for planned, state in members if not is_recorded(state)]
    of_ours = board.base.host.model is None
    for name in filter(None, {unknown_size(run) for run in arms.values()}):
        logger.warning("%s is not on this machine: its sizes are guessed, and so are costs", name)
    models = {(planned.run.variant, planned.run.model): planned.run for planned, _ in members}
    costs = {model: _cost(run) for model, run in models.items()} if of_ours else {}
    return Estimate(
        board=board.name,
        trials=sum(planned.trial is not None for planned, _ in members),
        counting=sum(planned.trial is None for planned, _ in members),
        recorded=len(members) - len(missing),
        failed=sum(state.state == "failed" for _, state in members),
        parameters=max(each.parameters for each in costs.values()) if costs else None,
        tokens=sum(
            _sequences(planned.run) * shape_of(planned.run).tokens for planned, _ in members
        ),
        flops=sum(
            _sequences(planned.run) * costs[planned.run.variant, planned.run.model].training
            for planned, _ in members
        )
        if costs
        else None,
        hours=sum(_seconds(p.run, seconds[p.arm]) for p in missing) / 3600,
        basis=basis,
    )


def _sequences(run: Run) -> int:
    return run.max_steps * run.optim.batch_size


def _cost(run: Run) -> Cost:
    """Return what a sequence of mean length costs in closed form."""
    fields, length = model_sizes(run)
    entry = lookup(run.variant)
    config = entry.config(**fields | run.model.variant_fields())
    tokens = max(1, round(length))
    whole, share = cost(config, entry.variant, tokens), length / tokens
    return replace(whole, forward=share * whole.forward, training=share * whole.training)


def _seconds(run: Run, of_a_sequence: float) -> float:
    """Return the seconds of a whole run, by those of a training step on one sequence."""
    validations = run.max_steps // run.eval_every + 1
    sequences = run.task.validation if run.task.name else run.eval_blocks or 0
    # A forward is a third of a step.
    return _START + of_a_sequence * (_sequences(run) + validations * sequences / 3)


def _seconds_of_steps(arms: Mapping[str, Run]) -> tuple[dict[str, float], Basis]:
    """Return the seconds of a training step of each arm on one sequence, and what they are from."""
    first = next(iter(arms.values()))
    shape = shape_of(first)
    if first.host.model is None:
        costs = {arm: _cost(run) for arm, run in arms.items()}
        sequences = shape.batch * min(shape.micro_batches, 2)
        flops = (1 + _ROUNDS) * sequences * sum(each.training for each in costs.values())
        largest = 16 * max(each.parameters for each in costs.values())
        if flops > _MOST_FLOPS[shape.device] or largest > _MOST_BYTES[shape.device]:
            return _extrapolated(costs, shape.device), "extrapolated"
    times = time_steps(arms, shape, _ROUNDS)
    # The shorter of the rounds: the other was disturbed.
    sequences = shape.batch * shape.micro_batches
    return {arm: min(of_arm) / sequences for arm, of_arm in times.items()}, "timed"


def _extrapolated(costs: Mapping[str, Cost], on: str) -> dict[str, float]:
    """Return the seconds of a step on one sequence, by FLOPs and a smaller model's speed."""
    shape = Shape(
        batch=1 if on == "cpu" else 64,
        tokens=256,
        device=on,
        precision="bfloat16" if uses_bfloat16("auto") else "float32",
    )
    config = lookup("plain").config(**_REFERENCE.model.sizes())
    flops = shape.batch * cost(config, None, shape.tokens).training
    speed = flops / min(time_steps({"plain": _REFERENCE}, shape, _ROUNDS)["plain"])
    return {arm: each.training / speed for arm, each in costs.items()}
