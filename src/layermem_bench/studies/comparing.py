"""Values of arms by seed -> lines of a table; claims of the paper -> verdicts.

One way to say a difference: paired over seeds, with an interval by Student's t, a p-value adjusted
for the arms (or claims) of its table and for looks, and the pairs that would settle it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from layermem_bench.statistics import (
    NOISE,
    Interval,
    adjusted_p_values,
    interval,
    mean_by_seed,
    p_value,
    p_values_to,
    paired_by_seed,
    pairs_to_settle,
    price_of_looks,
)
from layermem_bench.studies.result import Board, Claim, Condition, StudyResult

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
    "be said at this scale otherwise, or where a planned run has not ended, where neither arm's "
    "own interval lies above a guess, or where fewer than six pairs all differ by the same. "
    "p-values are adjusted by Holm's method for the claims of a study, and for looks at fewer "
    "seeds; a claim with one from 0.05 on cannot be said. That two are similar does not hold if "
    "the interval excludes 0, and is never shown by one that includes it. A counted number equals "
    "the paper's, at the paper's sizes, if both are the same in the digits that the paper prints."
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
    first = next(iter(values), "")
    means = {arm: mean_by_seed(of_arm) for arm, of_arm in values.items()}
    missing = {arm: tuple(s for s in seeds if s not in of_arm) for arm, of_arm in values.items()}
    whole = {arm: mean.mean for arm, mean in means.items() if mean and not missing[arm]}
    ranks: dict[str, int] = {}
    to_best: dict[str, float] = {}
    if better:
        whole = dict(sorted(whole.items(), key=lambda item: item[1], reverse=better == "higher"))
    if better and whole and len(seeds) >= RANKED_FROM:
        # Rounded, since equal values may have been added up in another order.
        rounded = [round(mean, 12) for mean in whole.values()]
        ranks = {arm: 1 + rounded.index(mean) for arm, mean in zip(whole, rounded, strict=True)}
        to_best = p_values_to(next(iter(whole)), {arm: values[arm] for arm in whole}, looks)
    differences = {a: paired_by_seed(values[a], values[first]) for a in values if a != first}
    p_values = adjusted_p_values(differences, looks)
    settling = {
        arm: pairs_to_settle(each, compared=len(p_values))
        for arm, each in differences.items()
        if each is not None
    }
    return [
        Line(
            arm=arm,
            by_seed=values[arm],
            mean=means[arm],
            difference=differences.get(arm),
            p=p_values.get(arm),
            p_to_best=to_best.get(arm),
            pairs_to_settle=settling.get(arm),
            rank=ranks.get(arm),
            missing=missing[arm],
        )
        for arm in (*whole, *(arm for arm in values if arm not in whole))
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
    """Return what came of each claim, by ``RULE``."""
    differences = {
        claim: paired_by_seed(*_values_of_both(result, claim))
        for claim in result.claims
        if claim.against is not None
    }
    adjusted = adjusted_p_values(differences, max(1, len(result.looks)))
    judged = []
    for claim in result.claims:
        papers = {p.arm: p.value for p in result.papers if p.quantity == claim.quantity}
        if claim.against is None:
            judged.append(_judge_counted(claim, papers.get(claim.arm), result))
            continue
        paper = None
        if {claim.arm, claim.against} <= papers.keys():
            paper = papers[claim.arm] - papers[claim.against]
        each = JudgedClaim(claim=claim, paper=paper)
        if (difference := differences[claim]) is not None:
            is_so = claim.direction == ("higher" if difference.mean > 0 else "lower")
            is_other = not is_so and claim.direction != "similar"
            why = _why_unsaid(claim, result, difference, adjusted.get(claim))
            each = replace(
                each,
                difference=difference,
                p=adjusted.get(claim),
                pairs_to_settle=pairs_to_settle(difference, compared=len(differences)),
                verdict=UNSAID if why else HOLDS if is_so else NOT,
                reason=why or ("the other way round" if is_other else "the interval excludes 0"),
            )
        judged.append(each)
    return judged


def _values_of_both(result: StudyResult, claim: Claim) -> list[Mapping[int, float]]:
    """Return the values by seed of the arm that is claimed to differ, and of the other."""
    ours = result.computed(claim.quantity)
    return [ours.get(arm, {}) for arm in (claim.arm, str(claim.against))]


def _why_unsaid(
    claim: Claim, result: StudyResult, difference: Interval, adjusted: float | None
) -> str:
    """Return why nothing can be said of a difference; empty: something can."""
    both = _values_of_both(result, claim)
    missing = sorted(set(result.seeds) - (both[0].keys() & both[1].keys()))
    chance = result.metric(claim.quantity).chance
    price = price_of_looks(max(1, len(result.looks)))
    if missing:
        return f"of seeds {', '.join(map(str, missing))} there is no pair"
    if adjusted is None:
        return "one pair has no interval"
    if abs(difference.mean) <= difference.half:
        return "within noise: the interval includes 0"
    if not difference.half and price * p_value(difference) >= NOISE:
        return "all pairs differ by the same, so that how they vary is not known"
    if chance is not None and all(interval([*v.values()]).ends[0] <= chance for v in both):
        return "neither is above a guess"
    if adjusted >= NOISE:
        return f"within noise among so many claims: p {adjusted:.3f}"
    return ""


def _judge_counted(claim: Claim, paper: float | None, result: StudyResult) -> JudgedClaim:
    """Judge a counted number by the digits that the paper prints."""
    values = result.computed(claim.quantity).get(claim.arm)
    if not values or paper is None:
        return JudgedClaim(claim=claim)
    if result.scale != "paper":
        verdict, reason = UNSAID, "the paper's number is of its own sizes"
    # The shares of its tables have two decimals in percent.
    elif round(next(iter(values.values())), 4) == round(paper, 4):
        verdict, reason = HOLDS, "the same in the digits printed"
    else:
        verdict, reason = NOT, "other digits"
    return JudgedClaim(claim=claim, paper=paper, verdict=verdict, reason=reason)
