"""Numbers of arms by seed -> their ranking: paired differences and their adjusted p-values.

It does not know: what was measured, how runs are trained.
"""

import math
from collections.abc import Mapping, Sequence

from layermem.intervals import (
    Interval,
    adjusted_p_values,
    interval,
    p_values_to,
    paired_by_seed,
    pairs_to_settle,
)
from layermem.results.arena import Standing
from layermem.results.artefact import Mean

RANKED_FROM = 3
"""Seeds that arms are ranked from. Of two, an interval is 12.7 times as wide as their distance is
half, and which arm has the best mean says nothing."""
Sizes = tuple[int, int, int]
"""Training steps, width inside the mlp, parameters."""


def standings(
    values: Mapping[str, Mapping[int, float]],
    seeds: Sequence[int],
    sizes: Mapping[str, Sizes],
    *,
    higher_is_better: bool,
    notes: Mapping[str, str] | None = None,
    looks: int = 1,
) -> tuple[Standing, ...]:
    """Return the arms, best first; those with a seed missing come last and have no rank.

    Nor has any of fewer than ``RANKED_FROM`` seeds. ``values``: of each arm by seed, the first is
    what the others are compared with. ``notes``: what is said of an arm in place of which seeds are
    missing. ``looks``: how many of these results there were, each with other seeds.
    """
    first = next(iter(values))
    whole = [arm for arm in values if set(seeds) <= set(values[arm])]
    sign = -1 if higher_is_better else 1
    order = sorted(whole, key=lambda arm: sign * interval(list(values[arm].values())).mean)
    order += [arm for arm in values if arm not in whole]
    ranked = whole if len(seeds) >= RANKED_FROM else []
    differences = {
        arm: None if arm == first else paired_by_seed(values[arm], values[first]) for arm in values
    }
    p_values = adjusted_p_values(differences, looks)
    to_best = p_values_to(order[0], {arm: values[arm] for arm in ranked}, looks)
    return tuple(
        Standing(
            arm=arm,
            rank=i if arm in ranked else None,
            by_seed=dict(values[arm]),
            mean=_mean(interval(list(values[arm].values()))) if values[arm] else None,
            difference=_mean(differences[arm]),
            p=p_values.get(arm),
            p_to_best=to_best.get(arm),
            pairs_to_settle=_pairs(differences[arm]),
            steps=sizes[arm][0],
            width_of_mlp=sizes[arm][1],
            parameters=sizes[arm][2],
            note=(notes or {}).get(arm, _note(values[arm], seeds)),
        )
        for i, arm in enumerate(order, 1)
    )


def _note(values: Mapping[int, float], seeds: Sequence[int]) -> str:
    missing = [seed for seed in seeds if seed not in values]
    return f"diverged, failed or missing: seeds {', '.join(map(str, missing))}" if missing else ""


def _pairs(difference: Interval | None) -> int | None:
    return None if difference is None else pairs_to_settle(difference)


def _mean(values: Interval | None) -> Mean | None:
    if values is None:
        return None
    half = values.half if math.isfinite(values.half) else None
    return Mean(mean=values.mean, half=half, count=values.count)
