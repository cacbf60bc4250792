"""The arena: variants on the same boards, ranked at equal tokens, training time and parameters.

    equal tokens       the board's run, each arm at the learning rate that it took on a kept seed
    equal time         an arm whose step takes longer than the first arm's has fewer of them, in a
                       schedule of its own
    equal parameters   an arm with more parameters than the first has a narrower mlp

Learning rates are chosen at equal tokens, and kept. An arm that diverged at every one of them is
not trained further, and has no rank.

It does not know: how runs are trained, tables, pages.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from layermem.config import Run
from layermem.efficiency.measuring import ModelSpec, Shape, make_training_step
from layermem.experiments.arena_boards import at_equal_parameters, open_boards, parameters
from layermem.experiments.arena_shapes import shape_rankings
from layermem.experiments.arms import CHOOSING_SEED, parse_arms
from layermem.experiments.learning_rates import chosen_of
from layermem.experiments.looks import Looks, looks_at_board, replaced_result
from layermem.experiments.model_sizes import model_sizes
from layermem.experiments.reproduction.artefact import Study
from layermem.experiments.reproduction.estimates import measure_speed, run_cost
from layermem.experiments.reproduction.plans import PlannedRun, counting_runs, trials
from layermem.experiments.reproduction.recorded import RecordedRuns
from layermem.experiments.reproduction.training import (
    Records,
    read_records,
    state_of,
    train_planned,
    tried_rates_of,
)
from layermem.experiments.standings import standings
from layermem.experiments.step_memory import measured_memory
from layermem.experiments.step_times import measured_steps, shape_of
from layermem.number_ranges import above, between
from layermem.results.arena import (
    ArenaResult,
    Condition,
    MeasuredMemory,
    MeasuredSteps,
    Ranking,
)
from layermem.results.files import to_json
from layermem.results.learning_rates import TriedRates
from layermem.results.run_record import LOSS, RIGHT_ANSWERS
from layermem.runs import write_atomically

CONDITIONS: tuple[Condition, ...] = ("tokens", "time", "parameters")
_SAME_TIME = 0.01
# File systems take 255.
_LONGEST_NAME = 250


@dataclass(frozen=True, kw_only=True)
class ArenaOptions:
    """What meets in the arena."""

    boards: tuple[str, ...]
    """Names of boards, as ``arena_boards`` has them."""
    variants: str
    """Arms; the first is what the others are compared with."""
    rates: tuple[float, ...] = field(metadata=above(0))
    """Learning rates that are tried with every arm."""
    seeds: int = field(metadata=between(1, CHOOSING_SEED))
    """Seeds, from 0 on."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")
        if not self.boards or len(set(self.boards)) < len(self.boards):
            raise ValueError(f"--board needs different boards, got {', '.join(self.boards)}")
        if len(parse_arms(self.variants)) < 2:
            raise ValueError(f"--variants needs two arms at least, got {self.variants}")


def studies(options: ArenaOptions) -> list[Study]:
    """Return the study of each board: its runs at equal tokens."""
    arms = tuple(parse_arms(options.variants))
    found = [
        Study(name=name, base=base, arms=arms, rates=options.rates)
        for name, base in open_boards(options.boards).items()
    ]
    _check_equal_parameters(found)
    return found


def _check_equal_parameters(found: Sequence[Study]) -> None:
    """Raise where an arm cannot have the first one's parameters on a board: before any training."""
    wrong = []
    for study in found:
        for planned in counting_runs(study, (0,), {}, lambda name, run: Path(name)).values():
            try:
                at_equal_parameters(planned.run, study.base)
            except ValueError as error:
                wrong.append(str(error))
    if wrong:
        raise ValueError("; ".join(wrong))


def result_folder(options: ArenaOptions, out: Path) -> Path:
    """Return where the result is written: arenas of other boards do not write over it."""
    name = "+".join(open_boards(options.boards))
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError(
            f"the result of {len(options.boards)} boards would have a folder whose name is longer "
            f"than {_LONGEST_NAME} bytes; name fewer of them"
        )
    return out / "arena" / name


def compete(
    options: ArenaOptions, out: Path, runs: Sequence[Path] = (), jobs: int = 1, command: str = ""
) -> tuple[ArenaResult, str | None]:
    """Train what is missing and rank; return the result, and what failed (None: nothing)."""
    recorded, seeds, folder = RecordedRuns(out, runs), _seeds(options), result_folder(options, out)
    before = replaced_result(ArenaResult, folder / "arena.json")
    rankings: list[Ranking] = []
    tried: dict[str, tuple[TriedRates, ...]] = {}
    steps: dict[str, MeasuredSteps] = {}
    memory: dict[str, MeasuredMemory] = {}
    failures: list[str] = []
    planned_runs: dict[str, PlannedRun] = {}
    for study in studies(options):
        # First, as steps that cannot be compared with are refused before hours of training.
        measured = out / "arena" / study.name
        steps[study.name] = _measured_steps(
            study, measured / "steps.json", out / study.name / "time"
        )
        memory[study.name] = _measured_memory(study, measured / "memory.json")
        attempts = trials(study)
        if failure := train_planned(attempts, recorded, jobs):
            raise RuntimeError(failure)
        tried[study.name] = tried_rates_of(study, recorded, may_diverge=True)
        rates, lost = chosen_of(tried[study.name]), _arms_without_rate(tried[study.name])
        if len(lost) == len(study.arms):
            raise RuntimeError(
                f"every arm diverged at every learning rate on {study.name}; try lower ones"
            )
        at_equal_tokens = counting_runs(study, seeds, rates, recorded.path_of)
        by_condition = {
            condition: at_condition(study, at_equal_tokens, condition, steps[study.name])
            for condition in CONDITIONS
        }
        counting = {
            name: run
            for planned in by_condition.values()
            for name, run in planned.items()
            if run.arm not in lost
        }
        if failure := train_planned(counting, recorded, jobs):
            failures.append(failure)
        for condition, planned in by_condition.items():
            of_condition = {name: run for name, run in planned.items() if name in counting}
            records = read_records(attempts | of_condition, recorded)
            of_plan = [each.run for each in planned.values()]
            looks = looks_at_board(before, study.name, of_plan, seeds)
            rankings.append(rank(study, condition, planned, records, looks, lost))
        planned_runs |= attempts | counting
    result = ArenaResult(
        command=command,
        seeds=seeds,
        rankings=tuple(rankings),
        shapes=tuple(shape_rankings(options.boards, rankings, seeds)),
        rates={board: chosen_of(of_board) for board, of_board in tried.items()},
        tried=tried,
        steps=steps,
        memory=memory,
        runs=tuple(state_of(name, planned, recorded) for name, planned in planned_runs.items()),
    )
    write_atomically(folder / "arena.json", to_json(result))
    return result, "; ".join(failures) or None


def _arms_without_rate(tried: Sequence[TriedRates]) -> tuple[str, ...]:
    """Return the arms that diverged at every learning rate."""
    return tuple(of_arm.arm for of_arm in tried if of_arm.chosen is None)


def _seeds(options: ArenaOptions) -> tuple[int, ...]:
    if options.seeds > CHOOSING_SEED:
        raise ValueError(f"seed {CHOOSING_SEED} is kept for choosing learning rates")
    return tuple(range(options.seeds))


def at_condition(
    study: Study,
    at_equal_tokens: Mapping[str, PlannedRun],
    condition: Condition,
    steps: MeasuredSteps,
) -> dict[str, PlannedRun]:
    """Return the runs of a condition; those that it does not change are those at equal tokens."""
    planned = {}
    for name, before in at_equal_tokens.items():
        run = before.run
        if condition == "time":
            run = _at_equal_time(run, steps.ratios[before.arm])
        elif condition == "parameters":
            run = at_equal_parameters(run, study.base)
        label = name if run == before.run else name.replace("/", f"/{condition}/", 1)
        planned[label] = replace(before, run=run)
    return planned


def _at_equal_time(run: Run, ratio: float) -> Run:
    """Return a run of so many fewer steps as each takes longer; its schedule is of that length.

    Up to ``_SAME_TIME`` longer is no more than timing steps again would differ by.
    """
    if ratio <= 1 + _SAME_TIME:
        return run
    return replace(run, max_steps=max(1, round(run.max_steps / ratio)))


def _measured_steps(study: Study, file: Path, runs: Path) -> MeasuredSteps:
    models, length = _models(study)

    def prepare(shape: Shape) -> dict[str, Callable[[], None]]:
        return {arm: make_training_step(model, shape) for arm, model in models.items()}

    return measured_steps(file, study.base, study.arms, length, prepare, runs)


def _measured_memory(study: Study, file: Path) -> MeasuredMemory:
    models, length = _models(study)
    steps = {arm: partial(make_training_step, model) for arm, model in models.items()}
    return measured_memory(file, study.base, steps, shape_of(study.base, length))


def _models(study: Study) -> tuple[dict[str, ModelSpec], int]:
    """Return the model of each arm at equal tokens, and the mean length of its sequences."""
    fields, length = model_sizes(study.base)
    models: dict[str, ModelSpec] = {}
    for arm, (variant, options) in parse_arms(",".join(study.arms)).items():
        model = replace(study.base.model, options=options)
        models[arm] = (variant, {**fields, **model.variant_fields()})
    return models, max(2, round(length))


def rank(
    study: Study,
    condition: Condition,
    planned: Mapping[str, PlannedRun],
    records: Records,
    looks: Looks,
    lost: Sequence[str] = (),
) -> Ranking:
    """Return the arms of one board under one condition, best first.

    ``looks``: the seeds of each look at these runs, this one last.
    ``lost``: arms that diverged at every learning rate. Their planned runs say only their sizes.
    """
    metric = RIGHT_ANSWERS if study.base.task.name else LOSS
    values: dict[str, dict[int, float]] = {arm: {} for arm in study.arms}
    for arm, by_seed in records.get(study.name, {}).items():
        for seed, record in by_seed.items():
            if metric not in record.metrics:
                raise ValueError(
                    f"{record.folder} has ended without its {metric}; delete it to run it again"
                )
            if not math.isfinite(record.metrics[metric].value):
                raise ValueError(f"{record.folder} has a {metric} that is not finite")
            values[arm][seed] = record.metrics[metric].value
    runs = {p.arm: p.run for p in planned.values()}
    return Ranking(
        board=study.name,
        condition=condition,
        metric=metric,
        is_share=metric == RIGHT_ANSWERS,
        first=study.arms[0],
        looks=looks,
        standings=standings(
            values,
            looks[-1],
            {
                arm: (r.max_steps, r.model.intermediate_size, parameters(r))
                for arm, r in runs.items()
            },
            higher_is_better=metric == RIGHT_ANSWERS,
            notes=dict.fromkeys(lost, "diverged at every learning rate that was tried"),
            looks=len(looks),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class EstimatedBoard:
    """What a board would cost here, at most."""

    board: str
    """The board."""
    trials: int
    """Runs that choose learning rates."""
    counting: int
    """Runs that count, under all conditions."""
    flops: float
    """FLOPs of all, each as at equal tokens."""
    hours: float
    """Hours of one thread, or the GPU."""


def estimate(options: ArenaOptions) -> list[EstimatedBoard]:
    """Return what each board would cost here, recorded runs included."""
    seeds, estimated = _seeds(options), []
    for study in studies(options):
        attempts = trials(study)
        counting = counting_runs(study, seeds, {}, lambda name, run: Path(name))
        sizes = model_sizes(study.base)
        by_arm = {p.arm: run_cost(p.run, sizes).flops for p in counting.values()}
        flops = sum(by_arm[p.arm] for p in attempts.values())
        flops += len(CONDITIONS) * sum(by_arm[p.arm] for p in counting.values())
        speed = measure_speed(study.base, sizes)
        estimated.append(
            EstimatedBoard(
                board=study.name,
                trials=len(attempts),
                counting=len(CONDITIONS) * len(counting),
                flops=flops,
                hours=flops / speed.flops_per_second / 3600,
            )
        )
    return estimated
