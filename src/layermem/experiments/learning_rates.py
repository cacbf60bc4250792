"""Which learning rate, and weight decay, is best by the losses of runs that tried them.

It does not know: which runs those are, how they are trained.
"""

import math
from collections.abc import Iterable, Mapping

from layermem.results.learning_rates import TriedRates


def best_learning_rate(losses: Mapping[float, float]) -> float:
    """Return the learning rate of the lowest loss; where a loss is not finite, it diverged."""
    finite = {rate: loss for rate, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise ValueError(f"no learning rate can be chosen: no loss is finite in {losses}")
    return min(finite, key=lambda rate: finite[rate])


def best_rate_and_decay(losses: Mapping[float, Mapping[float, float]]) -> tuple[float, float]:
    """Return the learning rate and the weight decay of the lowest loss, by decay and rate."""
    rates = {
        decay: best_learning_rate(by_rate)
        for decay, by_rate in losses.items()
        if any(map(math.isfinite, by_rate.values()))
    }
    if not rates:
        raise ValueError(f"no weight decay can be chosen: no loss is finite in {losses}")
    decay = min(rates, key=lambda decay: losses[decay][rates[decay]])
    return rates[decay], decay


def tried_rates(losses: Mapping[str, Mapping[float, float]]) -> tuple[TriedRates, ...]:
    """Return what each arm tried and chose, from validation losses by arm and learning rate."""
    return tuple(
        TriedRates(
            arm=arm,
            rates=tuple(by_rate),
            losses=_finite_or_none(by_rate.values()),
            chosen=best_learning_rate(by_rate)
            if any(map(math.isfinite, by_rate.values()))
            else None,
        )
        for arm, by_rate in losses.items()
    )


def chosen_of(tried: Iterable[TriedRates]) -> dict[str, float]:
    """Return the learning rate that each arm chose."""
    return {of_arm.arm: of_arm.chosen for of_arm in tried if of_arm.chosen is not None}


def tried_with_decays(
    losses: Mapping[str, Mapping[float, Mapping[float, float]]],
) -> tuple[TriedRates, ...]:
    """Do the same by weight decay too; one record of an arm's says what was chosen."""
    best = {arm: best_rate_and_decay(by_decay) for arm, by_decay in losses.items()}
    return tuple(
        TriedRates(
            arm=arm,
            rates=tuple(by_rate),
            losses=_finite_or_none(by_rate.values()),
            chosen=best[arm][0] if decay == best[arm][1] else None,
            decay=decay,
        )
        for arm, by_decay in losses.items()
        for decay, by_rate in by_decay.items()
    )


def _finite_or_none(losses: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(loss if math.isfinite(loss) else None for loss in losses)
