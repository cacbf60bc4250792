"""Numbers of ended runs: losses, perplexities, right answers, FLOPs or tokens to a loss."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from layermem_bench.paper.artefact import Observing
from layermem_bench.results.study import LOSS, RIGHT_ANSWERS, RunRecord, Validation
from layermem_bench.study.definition import Observed


def losses(trained: Observing, study: str, quantity: str = LOSS) -> Iterator[Observed]:
    """Yield the last validation loss of each arm."""
    yield from _of_records(trained, study, quantity, lambda r: r.metrics[LOSS])


def perplexities(trained: Observing, study: str, quantity: str) -> Iterator[Observed]:
    """Yield the exponential of the last validation loss of each arm."""
    yield from _of_records(trained, study, quantity, lambda r: math.exp(r.metrics[LOSS]))


def lower_perplexity(
    trained: Observing, study: str, arm: str, quantity: str, against: str = "plain"
) -> Iterator[Observed]:
    """Yield by which share an arm's last perplexity is below another's, seed by seed."""
    records = trained.records.get(study, {})
    ours, theirs = records.get(arm, {}), records.get(against, {})
    by_seed = {
        seed: 1 - math.exp(ours[seed].metrics[LOSS] - theirs[seed].metrics[LOSS])
        for seed in ours
        if seed in theirs
    }
    yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True)


def right_answers(trained: Observing, study: str, quantity: str) -> Iterator[Observed]:
    """Yield the share of test problems that each arm solves, with a guess's."""
    chances = {
        record.solved.chance
        for runs in trained.records.get(study, {}).values()
        for record in runs.values()
        if record.solved
    }
    for arm, runs in trained.records.get(study, {}).items():
        by_seed = {seed: record.metrics[RIGHT_ANSWERS] for seed, record in runs.items()}
        # Problems of one study are the same, and so is what a guess at them comes to.
        chance = min(chances) if len(chances) == 1 else None
        yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True, chance=chance)


def saved(
    trained: Observing, study: str, arm: str, across: str, quantity: str, against: str = "plain"
) -> Iterator[Observed]:
    """Yield which share of tokens or FLOPs an arm saves on the way to a validation loss.

    The loss is the higher one of the two arms' last, seed by seed, so that both reach it, whichever
    is better; where it is reached is interpolated between validations. ``across``: "flops" or
    "tokens". The share is below 0 where the arm needs more than the other.
    """
    records = trained.records.get(study, {})
    _check_validated_alike([*records.get(arm, {}).values(), *records.get(against, {}).values()])
    by_seed = {}
    for seed in records.get(arm, {}):
        if seed not in records.get(against, {}):
            continue
        curves = [records[name][seed].validations for name in (arm, against)]
        target = max(curve[-1].val_loss for curve in curves)
        ours, theirs = (_reached(curve, across, target) for curve in curves)
        by_seed[seed] = 1 - ours / theirs
    yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True)
    # What it is compared with saves nothing against itself.
    yield Observed(
        quantity=quantity, arm=against, by_seed=dict.fromkeys(by_seed, 0.0), is_share=True
    )


def _check_validated_alike(records: Sequence[RunRecord]) -> None:
    """Raise where curves were recorded at other steps, or at one: a loss is then reached elsewhere.

    How often a run is validated makes it no other run, but it makes its curve another.
    """
    by_steps = {tuple(v.step for v in record.validations): record.folder for record in records}
    if len(by_steps) > 1 or any(len(steps) < 2 for steps in by_steps):
        counts = ", ".join(f"{folder} at {len(steps)}" for steps, folder in by_steps.items())
        raise ValueError(
            f"the curves need validations at the same steps, two or more of them ({counts}): train "
            "these runs in another --out with one --eval-every"
        )


def _reached(curve: Sequence[Validation], across: str, target: float) -> float:
    """Return how many tokens or FLOPs a curve needs to first be at a loss or below it."""
    points = [(getattr(validation, across), validation.val_loss) for validation in curve]
    before: tuple[float, float] | None = None
    for at, loss in points:
        if loss <= target:
            if before is None:
                return float(at)
            share = (before[1] - target) / (before[1] - loss)
            return float(before[0] + share * (at - before[0]))
        before = at, loss
    raise ValueError(f"no validation is at {target} or below")


def _of_records(
    trained: Observing,
    study: str,
    quantity: str,
    value: Callable[[RunRecord], float],
) -> Iterator[Observed]:
    for arm, runs in trained.records.get(study, {}).items():
        by_seed: Mapping[int, float] = {seed: value(record) for seed, record in runs.items()}
        yield Observed(quantity=quantity, arm=arm, by_seed=by_seed)
