"""Values of arms by seed -> lines of a table; claims of the paper -> verdicts.

One way to say a difference: paired over seeds, with an interval by Student's t, a p-value adjusted
for the arms (or claims) of its table and for looks, and the pairs that would settle it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from layermem_bench.results.intervals import (
    Interval,
    adjusted_p_values,
    holm,
    interval,
    mean_by_seed,
    p_value,
    p_values_to,
    paired_by_seed,
    pairs_to_settle,
    price_of_looks,
)
from layermem_bench.results.study import (
    Board,
    Claim,
    Condition,
    Direction,
    PaperNumber,
    StudyResult,
)

RANKED_FROM = 3
"""Seeds that arms are ranked from. Of two, an interval is 12.7 times as wide as their distance is
half, and which arm has the best mean says nothing."""
Verdict = Literal["holds", "does not hold", "cannot be said at this scale"]
HOLDS: Verdict = "holds"
NOT: Verdict = "does not hold"
UNSAID: Verdict = "cannot be said at this scale"
RULE = (
    "A claim of a higher or lower value holds if the 95% interval of the paired difference "
    "excludes 0 in the claim's direction, does not hold if it excludes 0 in the other, and cannot "
    "be said at this scale otherwise, or where a planned run diverged, failed or is missing, or "
    "where there is a chance level and neither arm's own interval lies above it, or where fewer "
    "than six pairs all differ by the same, which has no interval. Where seeds were added to a "
    "result, the interval is that of the level which is left after so many looks. Where a study "
    "has several claims, p-values are adjusted for them by Holm's method, and a claim with one "
    "from 0.05 on cannot be said. That two are similar does not hold if the interval excludes 0, "
    "and is never shown by one that includes it. A counted number equals the paper's if both are "
    "the same in the digits that the paper prints; that is said at the paper's sizes alone."
)
"""How verdicts are reached."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm's line of a table."""

    arm: str
    by_seed: Mapping[int, float]
    mean: Interval | None
    difference: Interval | None
    """Paired difference from the first arm; None: it is the first, or there is no pair."""
    p: float | None
    """p-value of that, adjusted by Holm's method for the arms of the table, and for looks."""
    p_to_best: float | None
    """p-value of the paired difference from the arm of the best mean, adjusted by Holm's method for
    all pairs of ranked arms; None: it is that arm, or has no rank."""
    pairs_to_settle: int | None
    """Paired seeds that would settle a difference as large as observed, among so many arms."""
    rank: int | None
    """Rank by the mean, of equal ones the same; None: nothing is better or worse, or seeds are
    missing or too few."""
    missing: tuple[int, ...]


def compare(
    values: Mapping[str, Mapping[int, float]],
    seeds: Sequence[int],
    better: Literal["higher", "lower"] | None,
    looks: int = 1,
) -> list[Line]:
    """Return a line for each arm, the best first where there is a better; whole ones before others.

    Arms are compared with the first. ``looks``: how many such results there were, of other seeds.
    """
    if not values:
        return []
    first = next(iter(values))
    missing = {arm: tuple(seed for seed in seeds if seed not in v) for arm, v in values.items()}
    order = [arm for arm in values if not missing[arm]]
    if better:
        sign = -1 if better == "higher" else 1
        order.sort(key=lambda arm: sign * interval(list(values[arm].values())).mean)
    ranked = order if better and len(seeds) >= RANKED_FROM else []
    # Rounded, since equal values may have been added up in another order.
    means = [round(interval(list(values[arm].values())).mean, 12) for arm in ranked]
    # Equal ones share the first place of theirs.
    ranks = {arm: 1 + means.index(mean) for arm, mean in zip(ranked, means, strict=True)}
    order = [*order, *(arm for arm in values if missing[arm])]
    differences = {a: paired_by_seed(values[a], values[first]) for a in values if a != first}
    p_values = adjusted_p_values(differences, looks)
    to_best = p_values_to(order[0], {arm: values[arm] for arm in ranked}, looks) if ranked else {}
    settling = {
        arm: pairs_to_settle(each, compared=len(p_values))
        for arm, each in differences.items()
        if each is not None
    }
    return [
        Line(
            arm=arm,
            by_seed=values[arm],
            mean=mean_by_seed(values[arm]),
            difference=differences.get(arm),
            p=p_values.get(arm),
            p_to_best=to_best.get(arm),
            pairs_to_settle=settling.get(arm),
            rank=ranks.get(arm),
            missing=missing[arm],
        )
        for arm in order
    ]


def lines_of(result: StudyResult, board: Board, condition: Condition, metric: str) -> list[Line]:
    """Return the lines of one table of a study; arms without a value are in it."""
    found = result.values(board.name, condition.name, metric)
    values = {arm.name: found.get(arm.name, {}) for arm in condition.arms}
    runs = result.of(board.name, condition.name)
    seeds = result.seeds or sorted({run.seed for run in runs if run.state != "begun"})
    better = result.metric(metric).better
    return compare(values, seeds, better, max(1, len(condition.looks)))


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """One claimed difference, or a counted number, and what came of it."""

    claim: Claim
    paper: float | None = None
    """The paper's difference, or number; None: it prints none."""
    difference: Interval | None = None
    """Ours, paired over seeds."""
    p: float | None = None
    """p-value of that, adjusted by Holm's method for the study's claims, and for looks."""
    pairs_to_settle: int | None = None
    verdict: Verdict = UNSAID
    reason: str = "nothing is recorded"


def judge(result: StudyResult) -> list[JudgedClaim]:
    """Return what came of each claim."""
    looks = max(1, len(result.looks))
    compared = sum(claim.against is not None for claim in result.claims)
    judged = [_judge(claim, result, looks, compared) for claim in result.claims]
    # Adjusted together, for how many there are.
    adjusted = iter(holm([each.p for each in judged if each.p is not None], looks))
    for place, each in enumerate(judged):
        if each.p is not None:
            judged[place] = each = replace(each, p=next(adjusted))
            if each.p is not None and each.p >= 0.05 and each.verdict != UNSAID:
                reason = f"within noise among so many claims: p {each.p:.3f}"
                judged[place] = replace(each, verdict=UNSAID, reason=reason)
    return judged


def _judge(claim: Claim, result: StudyResult, looks: int, compared: int) -> JudgedClaim:
    ours = result.computed(claim.quantity)
    papers = {number.arm: number for number in result.papers if number.quantity == claim.quantity}
    judged = JudgedClaim(claim=claim)
    if claim.against is None:
        return _judge_counted(judged, ours.get(claim.arm), papers.get(claim.arm), result)
    if claim.arm in papers and claim.against in papers:
        paper = papers[claim.arm].value - papers[claim.against].value
        judged = replace(judged, paper=paper)
    mine, other = ours.get(claim.arm), ours.get(claim.against)
    difference = paired_by_seed(mine, other) if mine and other else None
    if not mine or not other or difference is None:
        return judged
    missing = sorted(set(result.seeds) - (mine.keys() & other.keys()))
    verdict, reason = _verdict(difference, claim.direction, missing, looks)
    chance = result.metric(claim.quantity).chance
    if verdict != UNSAID and not (_is_above(mine, chance) or _is_above(other, chance)):
        verdict, reason = UNSAID, "neither is above a guess"
    p = p_value(difference)
    return replace(
        judged,
        difference=difference,
        p=None if math.isnan(p) else p,
        pairs_to_settle=pairs_to_settle(difference, compared=max(1, compared)),
        verdict=verdict,
        reason=reason,
    )


def _is_above(values: Mapping[int, float], chance: float | None) -> bool:
    """Return whether an arm does better than a guess, if there is one, beyond noise."""
    ours = interval(list(values.values()))
    return chance is None or ours.mean - ours.half > chance


def _judge_counted(
    judged: JudgedClaim,
    values: Mapping[int, float] | None,
    paper: PaperNumber | None,
    result: StudyResult,
) -> JudgedClaim:
    """Judge a counted number by the digits that the paper prints."""
    if not values or paper is None:
        return judged
    if not result.metric(paper.quantity).counted:
        raise ValueError(f"{paper.quantity} of {paper.arm} is not counted: it is judged by seeds")
    judged = replace(judged, paper=paper.value)
    if result.scale != "paper":
        return replace(judged, reason="the paper's number is of its own sizes")
    # The shares of its tables have two decimals in percent.
    same = round(next(iter(values.values())), 4) == round(paper.value, 4)
    return replace(
        judged,
        verdict=HOLDS if same else NOT,
        reason="the same in the digits printed" if same else "other digits",
    )


def _verdict(
    difference: Interval, direction: Direction, missing: Sequence[int], looks: int
) -> tuple[Verdict, str]:
    """Return what came of a claimed difference, by ``RULE``."""
    if missing:
        return UNSAID, f"of seeds {', '.join(map(str, missing))} there is no pair"
    if difference.count < 2:
        return UNSAID, "one pair has no interval"
    if abs(difference.mean) <= difference.half:
        return UNSAID, "within noise: the interval includes 0"
    p = price_of_looks(looks) * p_value(difference)
    if not difference.half and p >= 0.05:
        return UNSAID, "all pairs differ by the same, so that how they vary is not known"
    if looks > 1 and p >= 0.05:
        return UNSAID, f"within noise at look {looks}: p {p:.3f}"
    if direction == "similar":
        return NOT, "the interval excludes 0"
    claimed = (difference.mean > 0) == (direction == "higher")
    return (HOLDS, "the interval excludes 0") if claimed else (NOT, "the other way round")
