"""Numbers of ended runs: losses, perplexities, right answers, FLOPs or tokens to a loss."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from layermem_bench.paper.artefact import Observing
from layermem_bench.results.study import LOSS, RIGHT_ANSWERS, RunRecord, Validation
from layermem_bench.study.definition import Observed


def losses(trained: Observing, study: str, quantity: str = LOSS) -> Iterator[Observed]:
    """Yield the last validation loss of each arm."""
    for arm, runs in trained.records.get(study, {}).items():
        by_seed = {seed: record.metrics[LOSS] for seed, record in runs.items()}
        yield Observed(quantity=quantity, arm=arm, by_seed=by_seed)


def perplexities(trained: Observing, study: str, quantity: str) -> Iterator[Observed]:
    """Yield the exponential of the last validation loss of each arm."""
    for of_arm in losses(trained, study, quantity):
        by_seed = {seed: math.exp(loss) for seed, loss in of_arm.by_seed.items()}
        yield replace(of_arm, by_seed=by_seed)


def lower_perplexity(trained: Observing, study: str, arm: str, quantity: str) -> Iterator[Observed]:
    """Yield by which share an arm's last perplexity is below the plain decoder's."""
    by_seed = {
        seed: 1 - math.exp(ours.metrics[LOSS] - theirs.metrics[LOSS])
        for seed, (ours, theirs) in _pairs(trained, study, arm).items()
    }
    yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True)


def right_answers(trained: Observing, study: str, quantity: str) -> Iterator[Observed]:
    """Yield the share of test problems that each arm solves, with a guess's."""
    of_arms = trained.records.get(study, {})
    chances = {r.solved.chance for runs in of_arms.values() for r in runs.values() if r.solved}
    # Problems of one study are the same, and so is what a guess at them comes to.
    chance = min(chances) if len(chances) == 1 else None
    for arm, runs in of_arms.items():
        by_seed = {seed: record.metrics[RIGHT_ANSWERS] for seed, record in runs.items()}
        yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True, chance=chance)


def saved(
    trained: Observing, study: str, arm: str, across: str, quantity: str
) -> Iterator[Observed]:
    """Yield which share of tokens or FLOPs an arm saves on the way to a validation loss.

    The loss is the higher one of its and the plain decoder's last, seed by seed, so that both reach
    it, whichever is better. ``across``: "flops" or "tokens". The share is below 0 where the arm
    needs more than the plain decoder.
    """
    records = trained.records.get(study, {})
    _check_validated_alike([r for each in (arm, "plain") for r in records.get(each, {}).values()])
    by_seed = {}
    for seed, pair in _pairs(trained, study, arm).items():
        target = max(record.validations[-1].val_loss for record in pair)
        ours, theirs = (_reached(record.validations, across, target) for record in pair)
        by_seed[seed] = 1 - ours / theirs
    yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True)
    # The plain decoder saves nothing against itself.
    none = dict.fromkeys(by_seed, 0.0)
    yield Observed(quantity=quantity, arm="plain", by_seed=none, is_share=True)


def _pairs(trained: Observing, study: str, arm: str) -> dict[int, tuple[RunRecord, RunRecord]]:
    """Return an arm's run and the plain decoder's by seed, of the seeds that both have."""
    records = trained.records.get(study, {})
    ours, plain = records.get(arm, {}), records.get("plain", {})
    return {seed: (run, plain[seed]) for seed, run in ours.items() if seed in plain}


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
    """Return the tokens or FLOPs at which a curve is first at a loss, or interpolated, below it."""
    points = [(float(getattr(each, across)), each.val_loss) for each in curve]
    first = next(i for i, (_, loss) in enumerate(points) if loss <= target)
    at, loss = points[first]
    if first == 0:
        return at
    at_before, loss_before = points[first - 1]
    return at_before + (loss_before - target) / (loss_before - loss) * (at - at_before)
