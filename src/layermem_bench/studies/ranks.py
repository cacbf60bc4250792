"""Whether two boards rank the arms alike: Spearman's correlation, and what noise makes of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from layermem_bench.studies.comparing import RANKED_FROM
from layermem_bench.studies.result import METRICS, StudyResult

_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Spearman's correlation of the ranks of the same arms on two boards."""

    boards: tuple[str, str]
    arms: int
    value: float
    ends: tuple[float, float] | None
    """Its 95% interval by a bootstrap over seeds, drawn on each board by itself. A draw has the
    noise of seeds twice, so that it leans to 0. None: arms all tie in more than 1% of draws."""
    if_alike: float | None
    """What boards that rank the arms alike would exceed in 95 of 100 studies, given the noise of
    seeds: a value below shows that they rank otherwise. None: on a board arms tie, or differ by no
    more than their seeds, or one alone has the same value with every seed, as at 0% or 100%."""


def rank_correlations(result: StudyResult) -> list[RankCorrelation]:
    """Return the correlations of each pair of boards, under the first condition they share, of the
    arms that have every seed on both."""
    found = []
    for boards in combinations(result.boards, 2):
        conditions = [[condition.name for condition in board.conditions] for board in boards]
        shared = next((name for name in conditions[0] if name in conditions[1]), "")
        of_both = [result.values(board.name, shared, board.metric) for board in boards]
        seeds = set(result.seeds)
        arms = [a for a in of_both[0] if all(seeds <= v.get(a, {}).keys() for v in of_both)]
        if min(len(arms), len(seeds)) < RANKED_FROM:
            continue
        values = []
        for board, of_board in zip(boards, of_both, strict=True):
            # Of which the lowest is the best.
            sign = -1 if METRICS[board.metric].better == "higher" else 1
            rows = [[of_board[arm][seed] for seed in result.seeds] for arm in arms]
            values.append(sign * np.array(rows))
        value = float(_spearman(*(board.mean(-1)[None] for board in values))[0])
        # Where all arms tie on a board, it ranks none.
        if not math.isnan(value):
            generator = np.random.default_rng(0)
            each = RankCorrelation(
                boards=(boards[0].name, boards[1].name),
                arms=len(arms),
                value=value,
                ends=_bootstrap(values, generator),
                if_alike=_if_alike(values, generator),
            )
            found.append(each)
    return found


def _bootstrap(
    values: Sequence[np.ndarray], generator: np.random.Generator
) -> tuple[float, float] | None:
    """Return the interval of a correlation over draws of as many seeds on each board."""
    seeds = values[0].shape[1]
    picked = [generator.integers(seeds, size=(_DRAWS, seeds)) for _ in values]
    draws = _spearman(*(v[:, picks].mean(-1).T for v, picks in zip(values, picked, strict=True)))
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return (float(low), float(high)) if np.isnan(draws).mean() <= 0.01 else None


def _spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the correlations of ranks row by row; nan where all of a row tie."""
    from scipy.stats import rankdata

    # Rounded, since what is tied, and was added up in another order, has no rank.
    ranks = [rankdata(np.round(rows, 12), axis=-1) for rows in (one, other)]
    centred = [each - each.mean(-1, keepdims=True) for each in ranks]
    norms = [np.sqrt((each**2).sum(-1)) for each in centred]
    with np.errstate(invalid="ignore"):
        correlations: np.ndarray = (centred[0] * centred[1]).sum(-1) / (norms[0] * norms[1])
    return correlations


def _if_alike(values: Sequence[np.ndarray], generator: np.random.Generator) -> float | None:
    """Return what two boards with one order of the arms would exceed in 95 of 100 studies.

    The arms' places are taken from the board with less noise for how far its arms lie apart, and
    on each board are as far apart as is not noise; studies are drawn around them.
    """
    found = []
    for board in values:
        arms, seeds = board.shape
        means = board.mean(-1)
        # Studies are drawn without ties, and with as much noise for one arm as for another.
        by_seeds = np.ptp(board, axis=-1)
        if len(set(means.round(12))) < arms or by_seeds.min() == 0 < by_seeds.max():
            return None
        # What a seed adds to every arm changes no rank.
        left = board - means[:, None] - board.mean(0) + board.mean()
        noise = (left**2).sum() / ((arms - 1) * (seeds - 1)) / seeds
        spread = means.var(ddof=1) - noise
        if spread <= 0:
            return None
        found.append((noise / spread, noise, spread, (means - means.mean()) / means.std(ddof=1)))
    places = min(found, key=lambda each: each[0])[-1]
    drawn = [
        places * math.sqrt(spread) + generator.normal(0, math.sqrt(noise), (_DRAWS, len(places)))
        for _, noise, spread, _ in found
    ]
    return float(np.quantile(_spearman(*drawn), 0.05))
