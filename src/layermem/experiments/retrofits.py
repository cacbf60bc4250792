"""Does layer memory pay on a given model? Four ways of going on training it, on the same data.

    plain      all weights, no memory
    lora       LoRA on keys and values, no memory, as many parameters as the routers have
    routers    memory, its routers alone
    all        memory, all weights; routers at 100 times the rate of the others, at most the
               highest rate that routers alone try

Each takes the learning rate with the lowest validation loss on a seed kept for that, and meets the
others at equal tokens and at equal training time, seed by seed. Memory starts as the identity, so
that all start from one loss.

    out/rates                    every way with every learning rate
    out/WAY-lrRATE-sSEED         the runs at equal tokens
    out/time/WAY-lrRATE-sSEED    those of another length at equal training time

It does not know: how runs are trained, tables, pages.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from layermem.config import Run
from layermem.data.tokenizers import load_tokenizer
from layermem.efficiency.measuring import Shape, step_of
from layermem.experiments.arms import CHOOSING_SEED
from layermem.experiments.looks import Looks, looks_at_board, replaced_result
from layermem.experiments.many_runs import train_missing
from layermem.experiments.records import (
    check_comparable,
    read_divergence,
    read_metrics,
    read_record,
)
from layermem.experiments.standings import standings
from layermem.experiments.step_memory import measured_memory
from layermem.experiments.step_times import measured_steps, shape_of
from layermem.number_ranges import above, between, check_numbers, number
from layermem.results.arena import Condition, MeasuredMemory, MeasuredSteps, Ranking
from layermem.results.artefact import RunState, State
from layermem.results.files import to_json
from layermem.results.retrofit import RetrofitResult, RetrofitTrial
from layermem.results.run_record import LOSS, RIGHT_ANSWERS
from layermem.runs import RunFolder, write_atomically
from layermem.tasks.registry import vocabulary_and_length
from layermem.train.earlier_stages import check_earlier_stages
from layermem.train.host_models import load_host
from layermem.train.learning import prepare_learning

WAYS = ("plain", "lora", "routers", "all")
"""The ways; the others are compared with the first."""
ROUTER_RATIO = 100
"""Learning rate of routers over that of other weights, where both are trained."""
_ROUNDS = 9


@dataclass(frozen=True, kw_only=True)
class RetrofitStudy:
    """What is compared."""

    base: Run
    """A run that trains the model with memory; ways, rates and seeds are put into it."""
    rates: tuple[float, ...] = field(metadata=above(0))
    """Learning rates that every way tries but routers."""
    router_rates: tuple[float, ...] = field(metadata=above(0))
    """Learning rates that routers alone try."""
    seeds: int = number(5, between(1, CHOOSING_SEED))
    """Seeds, from 0 on."""

    def __post_init__(self) -> None:
        for name, rates in (("--rates", self.rates), ("--router-rates", self.router_rates)):
            shown = " ".join(f"{rate:g}" for rate in rates) or "none"
            if not rates or len(set(rates)) < len(rates):
                raise ValueError(f"{name} must be given and differ, got {shown}")
        check_numbers(self, "--")
        if self.base.host.memory == "none":
            raise ValueError("--memory none leaves nothing to compare: full, last or first")

    def rates_of(self, way: str) -> tuple[float, ...]:
        """Return what a way tries."""
        return self.router_rates if way == "routers" else self.rates

    def run(self, way: str, rate: float, seed: int) -> Run:
        """Return one run."""
        host = self.base.host
        changes = {
            "plain": replace(host, memory="none", window=None, train="all"),
            "lora": replace(host, memory="none", window=None, train="lora"),
            "routers": replace(host, train="routers"),
            "all": replace(host, train="all"),
        }
        optim = replace(self.base.optim, lr=rate, router_lr=None)
        if way == "routers":
            optim = replace(self.base.optim, router_lr=rate)
        elif way == "all":
            # 100 times 1e-3 is more than routers alone can use, and was seen to be worse.
            highest = max(self.router_rates)
            optim = replace(optim, router_lr=min(ROUTER_RATIO * rate, highest))
        return replace(self.base, host=changes[way], optim=optim, seed=seed)


def compare_retrofits(
    study: RetrofitStudy, out: Path, jobs: int = 1, command: str = ""
) -> RetrofitResult:
    """Train what is missing, rank, and write retrofit.json into ``out``."""
    # What a run needs and cannot load is said once, before a run of each way and rate has failed of
    # it: tokenizer and data, which are the same for all, and the model of each way.
    firsts = [study.run(way, study.rates_of(way)[0], CHOOSING_SEED) for way in WAYS]
    check_earlier_stages(firsts[0])
    prepare_learning(firsts[0])
    for run in firsts:
        load_host(run)
    trials = _try_rates(study, out, jobs)
    rates = {trial.arm: trial.rate for trial in trials if trial.chosen}
    steps, trained = _measured_steps(study, rates, out)
    peaks = _measured_memory(study, rates, out / "memory.json")
    seeds = tuple(range(study.seeds))
    runs: dict[str, Run] = {}
    rankings: list[Ranking] = []
    before = replaced_result(RetrofitResult, out / "retrofit.json")
    conditions: tuple[Condition, ...] = ("tokens", "time")
    for condition in conditions:
        planned = _planned(study, rates, steps if condition == "time" else None)
        train_missing(planned, out, jobs, may_diverge=True)
        looks = looks_at_board(before, str(study.base.host.model), planned.values(), seeds)
        rankings.append(_rank(study, condition, planned, out, trained, looks))
        runs |= planned
    tried = [f"rates/{trial.arm}-lr{trial.rate:g}" for trial in trials]
    check_comparable([RunFolder(out / name) for name in (*tried, *runs)])
    first = RunFolder(out / next(iter(runs)))
    host = study.base.host
    result = RetrofitResult(
        command=command,
        model=str(host.model),
        memory=host.memory if host.window is None else f"{host.memory}, window {host.window}",
        before=next(row["val_loss"] for row in first.rows() if "val_loss" in row),
        seeds=seeds,
        rankings=tuple(rankings),
        trained=trained,
        trials=tuple(trials),
        steps=steps,
        peaks=peaks,
        runs=tuple(_state(name, run, RunFolder(out / name)) for name, run in runs.items()),
    )
    write_atomically(out / "retrofit.json", to_json(result))
    return result


def _try_rates(study: RetrofitStudy, out: Path, jobs: int) -> list[RetrofitTrial]:
    keys = {f"{way}-lr{rate:g}": (way, rate) for way in WAYS for rate in study.rates_of(way)}
    runs = {name: study.run(*key, CHOOSING_SEED) for name, key in keys.items()}
    folders = train_missing(runs, out / "rates", jobs, may_diverge=True)
    check_comparable(folders.values())
    losses: dict[str, dict[float, float]] = {way: {} for way in WAYS}
    for name, folder in folders.items():
        way, rate = keys[name]
        if read_divergence(folder, runs[name].id) is None:
            losses[way][rate] = read_metrics(folder, runs[name])[LOSS].value
    for way, by_rate in losses.items():
        if not by_rate:
            raise RuntimeError(f"{way} diverged at every learning rate; try lower ones")
    best = {way: min(by_rate, key=lambda r: by_rate[r]) for way, by_rate in losses.items()}
    return [
        RetrofitTrial(arm=way, rate=rate, loss=losses[way].get(rate), chosen=rate == best[way])
        for way, rate in keys.values()
    ]


def _planned(
    study: RetrofitStudy, rates: Mapping[str, float], steps: MeasuredSteps | None
) -> dict[str, Run]:
    """Return the runs of a condition by name; ``steps``: equal training time is asked for."""
    planned = {}
    for way in WAYS:
        for seed in range(study.seeds):
            run, name = study.run(way, rates[way], seed), f"{way}-lr{rates[way]:g}-s{seed}"
            if steps is not None:
                count = max(1, round(run.max_steps / steps.ratios[way]))
                if count != run.max_steps:
                    run, name = replace(run, max_steps=count), f"time/{name}"
            planned[name] = run
    return planned


def _measured_steps(
    study: RetrofitStudy, rates: Mapping[str, float], out: Path
) -> tuple[MeasuredSteps, dict[str, int]]:
    """Return how long a step of each way takes, and the number of parameters that each trains."""
    models = {way: load_host(study.run(way, rates[way], 0)) for way in WAYS}
    trained = {
        way: sum(p.numel() for p in model.parameters() if p.requires_grad)
        for way, model in models.items()
    }

    def prepare(shape: Shape) -> dict[str, Callable[[], None]]:
        return {way: step_of(model, shape) for way, model in models.items()}

    steps = measured_steps(
        out / "steps.json", study.base, WAYS, _tokens(study.base), prepare, out / "time"
    )
    return steps, trained


def _measured_memory(
    study: RetrofitStudy, rates: Mapping[str, float], file: Path
) -> MeasuredMemory:
    steps = {way: partial(_make_step, study.run(way, rates[way], 0)) for way in WAYS}
    return measured_memory(file, study.base, steps, shape_of(study.base, _tokens(study.base)))


def _make_step(run: Run, shape: Shape) -> Callable[[], None]:
    return step_of(load_host(run), shape)


def _tokens(run: Run) -> int:
    """Return the tokens of a sequence; of a task, the mean over its problems."""
    if run.task.name is None:
        return run.data.block_size
    tokenizer = load_tokenizer(str(run.host.model))
    return max(2, round(vocabulary_and_length(run.task, tokenizer)[1]))


def _rank(
    study: RetrofitStudy,
    condition: Condition,
    planned: Mapping[str, Run],
    out: Path,
    trained: Mapping[str, int],
    looks: Looks,
) -> Ranking:
    metric = RIGHT_ANSWERS if study.base.task.name else LOSS
    values: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    lengths: dict[str, int] = {}
    for name, run in planned.items():
        way = Path(name).name.partition("-")[0]
        lengths[way] = run.max_steps
        folder = RunFolder(out / name)
        if read_divergence(folder, run.id) is not None:
            continue
        value = read_metrics(folder, run)[metric].value
        if not math.isfinite(value):
            raise ValueError(f"{folder.path} has a {metric} that is not finite")
        values[way][run.seed] = value
    return Ranking(
        board=str(study.base.host.model),
        condition=condition,
        metric=metric,
        is_share=metric == RIGHT_ANSWERS,
        first=WAYS[0],
        standings=standings(
            values,
            tuple(range(study.seeds)),
            {way: (lengths[way], 0, trained[way]) for way in WAYS},
            higher_is_better=metric == RIGHT_ANSWERS,
            looks=len(looks),
        ),
        looks=looks,
    )


def _state(name: str, run: Run, folder: RunFolder) -> RunState:
    record = read_record(name, run, folder)
    state: State = "diverged" if record.diverged else "ended" if record.ended else "begun"
    note = record.diverged.message if record.diverged else ""
    return RunState(name=name, run_id=run.id, folder=str(folder.path), state=state, note=note)
