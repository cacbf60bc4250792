"""A study -> its runs by name: those that choose learning rates, and those that count.

BOARD/rates/ARM-lrRATE-s1000    every arm with every rate
BOARD/ARM-lrRATE-sSEED          every arm with the rate it chose and every seed
BOARD/CONDITION/ARM-...         those of them that a condition makes other runs

A condition is a function from a run to a run. Each run says by its labels where it belongs.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from layermem.models.registry import lookup
from layermem_bench.config.counting import count_parameters
from layermem_bench.config.parts import Labels
from layermem_bench.config.run import Run
from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.studies.definition import CHOOSING_SEED, Arm, Board, Study
from layermem_bench.studies.records import RecordedRuns, check_comparable
from layermem_bench.studies.result import LOSS, MeasuredSteps, TriedRates

TOLERANCE = 0.005
"""Share within which parameters are equal."""
# A difference in time that timing steps again would make as well.
_SAME_TIME = 0.01


Plan = dict[str, Run]
"""Runs by the names of their folders."""
Choices = Mapping[str, float]
"""The learning rate that each arm chose; one that is not named takes the board's."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A board whose rates are chosen."""

    board: Board
    tried: tuple[TriedRates, ...]
    choices: Choices
    lost: frozenset[str]
    """Arms that diverged at every learning rate."""
    runs: Plan
    """The runs that count, of all arms; those of lost ones are not trained."""
    steps: MeasuredSteps | None

    def trained(self) -> Plan:
        """Return the runs that count of arms that are not lost."""
        return {name: run for name, run in self.runs.items() if run.labels.arm not in self.lost}


def plan_of(
    study: Study,
    board: Board,
    recorded: RecordedRuns,
    done: Mapping[str, Done],
    steps: MeasuredSteps | None,
    *,
    is_tried: bool = True,
) -> Done:
    """Return a board's runs that count. ``done``: the boards before it; ``is_tried``: whether its
    trials are recorded, without which every arm has the board's rate."""
    tried, choices, lost = choose(board, recorded) if is_tried else ((), {}, frozenset[str]())
    before = done[board.starts_from.name] if board.starts_from else None
    at_tokens = counting_runs(
        board, study.seeds, choices, recorded.path_of, before.choices if before else None
    )
    return Done(
        board=board,
        tried=tried,
        choices=choices,
        lost=lost | (before.lost if before else frozenset()),
        runs=at_conditions(study.conditions, at_tokens, board, steps),
        steps=steps,
    )


def stages(boards: Iterable[Board]) -> list[list[Board]]:
    """Return the boards in the order of training: those that others start from come first."""
    boards = list(boards)
    first = {board.starts_from.name: board.starts_from for board in boards if board.starts_from}
    return [list(stage) for stage in (first.values(), boards) if stage]


def trials(board: Board) -> Plan:
    """Return the runs that choose a board's learning rates; an arm with one rate needs none."""
    plan: Plan = {}
    for arm in board.arms:
        rates = rates_of(board, arm)
        for rate in rates if len(rates) > 1 else ():
            _add_run(plan, f"{board.name}/rates", board, arm, rate, CHOOSING_SEED)
    return plan


def rates_of(board: Board, arm: Arm) -> list[float]:
    """Return the learning rates that an arm tries."""
    return list(dict.fromkeys(board.rates if arm.rates is None else arm.rates))


def counting_runs(
    board: Board,
    seeds: Sequence[int],
    choices: Choices,
    path_of: Callable[[str, Run], Path],
    choices_before: Choices | None = None,
) -> Plan:
    """Return the runs that count at equal tokens.

    ``path_of``: where a named run lies or would lie, for a board that starts from another, whose
    arms made the ``choices_before``.
    """
    plan: Plan = {}
    for seed in seeds:
        for arm in board.arms:
            _add_run(plan, board.name, board, arm, choices.get(arm.name), seed)
    if board.starts_from is None:
        return plan
    before = counting_runs(board.starts_from, seeds, choices_before or {}, path_of)
    starts = {
        (run.labels.arm, run.seed): str(path_of(name, run) / "final")
        for name, run in before.items()
    }
    for name, run in plan.items():
        if pretrained := starts.get((run.labels.arm, run.seed)):
            plan[name] = replace(run, model=replace(run.model, pretrained=pretrained))
    return plan


def at_conditions(
    conditions: Iterable[str], at_tokens: Plan, board: Board, steps: MeasuredSteps | None
) -> Plan:
    """Return the runs of some conditions, each labelled with all conditions it counts under; those
    that a condition does not change are those at equal tokens."""
    ratios = steps.ratios if steps else {}
    changes: dict[str, Callable[[Run], Run]] = {
        "tokens": lambda run: run,
        "time": lambda run: at_equal_time(run, ratios.get(run.labels.arm, 1.0)),
        "parameters": lambda run: at_equal_parameters(run, board.base),
    }
    plan: Plan = {}
    # Seed by seed, so that all arms of a seed have trained early, under every condition.
    for (name, run), condition in product(at_tokens.items(), conditions):
        changed = changes[condition](run)
        if changed != run:
            name = f"{board.name}/{condition}/{name.rpartition('/')[2]}"
        labels = plan.get(name, changed).labels
        labels = replace(labels, conditions=(*labels.conditions, condition))
        plan[name] = replace(changed, labels=labels)
    return plan


def _add_run(
    plan: Plan, folder: str, board: Board, arm: Arm, rate: float | None, seed: int
) -> None:
    """Add a board's run of an arm at a learning rate; raise where another has its name: one would
    stand for the other."""
    labels = Labels(board=board.name, arm=arm.name)
    run, at = replace(arm.change(board.base), seed=seed, labels=labels), ""
    if rate is not None:
        run, at = arm.with_rate(run, rate), f"-lr{rate:g}"
    name = f"{folder}/{name_in_folders(arm.name)}{at}-s{seed}"
    if name in plan:
        raise ValueError(
            f"{plan[name].labels.arm} and {arm.name} would have one folder, {name}: let arms and "
            "--rates differ in more than punctuation and the seventh digit"
        )
    plan[name] = run


def name_in_folders(arm: str) -> str:
    """Return what stands for an arm in the names of its runs' folders."""
    return re.sub(r"[^\w.=-]", "-", arm)


def at_equal_time(run: Run, ratio: float) -> Run:
    """Return a run of as many steps as take the time of the first arm's; ``ratio``: of a step's."""
    if abs(ratio - 1) <= _SAME_TIME:
        return run
    return replace(run, max_steps=max(1, round(run.max_steps / ratio)))


def at_equal_parameters(run: Run, base: Run) -> Run:
    """Return a run whose mlp is as wide as it takes to have the plain decoder's parameters."""
    if start := run.host.model or run.model.pretrained:
        raise ValueError(
            f"{start} has the sizes of its weights, so that there are no equal "
            "parameters: leave --conditions parameters out"
        )
    plain = plain_parameters(base)
    return run if abs(parameters(run) / plain - 1) <= TOLERANCE else with_parameters(run, plain)


def parameters(run: Run, fields: Mapping[str, Any] | None = None) -> int:
    """Return the trainable parameters of the model of a run of ours; ``fields``: its config's."""
    fields = fields or model_sizes(run)[0] | run.model.variant_fields()
    entry = lookup(run.variant)
    return count_parameters(entry.config(**fields), entry.variant)


def plain_parameters(run: Run) -> int:
    """Return the parameters of the plain decoder of a run's sizes."""
    return parameters(replace(run, variant="plain"))


def with_parameters(run: Run, target: int) -> Run:
    """Return a run whose mlp is as wide as it takes to have ``target`` parameters."""
    model, ours, width = run.model, parameters(run), run.model.intermediate_size
    wider = replace(run, model=replace(model, intermediate_size=width + 1))
    width -= round((ours - target) / (parameters(wider) - ours))
    if width >= 1:
        fitted = replace(run, model=replace(model, intermediate_size=width))
        if abs(parameters(fitted) / target - 1) <= TOLERANCE:
            return fitted
    shape = f"{model.num_hidden_layers}x{model.hidden_size}"
    raise ValueError(
        f"{run.variant} has {ours:,} parameters on {run.preset} at {shape}, and no width of the "
        f"mlp gives it {target:,} within {TOLERANCE:.1%}; leave it out, or take a larger board"
    )


def choose(
    board: Board, recorded: RecordedRuns
) -> tuple[tuple[TriedRates, ...], dict[str, float], frozenset[str]]:
    """Return what each arm of a board tried, the rate it takes, and the arms that diverged at every
    rate; all trials must be recorded."""
    plan = trials(board)
    members = [recorded.read(name, run) for name, run in plan.items()]
    check_comparable(members)
    losses: dict[str, list[float]] = {}
    for record in (each.record for each in members):
        # That a rate is too high for an arm, so that the run diverges, is a result.
        loss = math.inf if record.state == "diverged" else record.metrics[LOSS]
        losses.setdefault(record.arm, []).append(loss)
    rates = {arm.name: rates_of(board, arm) for arm in board.arms}
    tried = tuple(tried_rates(arm, rates[arm], of_arm) for arm, of_arm in losses.items())
    choices = {arm: of_arm[0] for arm, of_arm in rates.items() if len(of_arm) == 1}
    choices |= {each.arm: each.chosen for each in tried if each.chosen is not None}
    return tried, choices, frozenset(losses) - choices.keys()


def tried_rates(arm: str, rates: Sequence[float], losses: Sequence[float]) -> TriedRates:
    """Return what an arm tried, and its choice: the lowest finite loss."""
    finite = {rate: loss for rate, loss in zip(rates, losses, strict=True) if math.isfinite(loss)}
    return TriedRates(
        arm=arm,
        rates=tuple(rates),
        losses=tuple(finite.get(rate) for rate in rates),
        chosen=min(finite, key=lambda rate: finite[rate], default=None),
    )
