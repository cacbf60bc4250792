"""Values of arms by seed -> answers to questions, lines of a table, verdicts on claims.

A difference is paired over seeds, with an interval by Student's t. A question is tested alone, arms
of a table or claims beside each other; nothing is tested before all planned runs have ended.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from layermem_bench.statistics import (
    LEVEL,
    Interval,
    adjusted_p_values,
    interval,
    mean_by_seed,
    p_of_signs,
    p_value,
    paired_by_seed,
)
from layermem_bench.studies.result import Board, Claim, Condition, Question, StudyResult

BySeed: TypeAlias = Mapping[int, float]
Pair: TypeAlias = tuple[BySeed, BySeed]
_Key = TypeVar("_Key", bound=Hashable)
RANKED_FROM = 3
"""Seeds that arms are ranked from. Of two, an interval is 12.7 times as wide as their distance is
half, and which arm has the best mean says nothing."""
Verdict = Literal["holds", "does not hold", "cannot be said at this scale"]
UNSAID: Verdict = "cannot be said at this scale"
RULE = (
    "A claim of a higher or lower value holds if the 95% interval of the paired difference "
    "excludes 0 in the claim's direction, does not hold if it excludes 0 in the other, and cannot "
    "be said at this scale otherwise, or where a planned run has not ended, where neither arm's "
    "own interval lies above a guess, or where fewer than six pairs all differ by the same. "
    "p-values are adjusted by Holm's method for the claims of a study; a claim with one from 0.05 "
    "on cannot be said. That two are similar does not hold if "
    "the interval excludes 0, and is never shown by one that includes it. A counted number equals "
    "the paper's, at the paper's sizes, if both are the same in the digits that the paper prints."
)
"""How verdicts are reached."""
Answer = Literal["yes", "no", "not more than", "open"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is said of a difference."""

    difference: Interval | None = None
    """Paired over seeds; None: there is no pair."""
    p: float | None = None
    """p-value of that, adjusted by Holm's method for all differences tested beside it."""


@dataclass(frozen=True, kw_only=True)
class Line(Difference):
    """One arm's line of a table: its values, and its difference from the first arm."""

    arm: str
    by_seed: BySeed
    mean: Interval | None
    rank: int | None
    """Rank by the mean, of equal ones the same; None: nothing is better or worse, or seeds are
    missing or too few."""
    missing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Answered(Difference):
    """What came of a question, tested alone."""

    question: Question
    p_of_signs: float | None = None
    """p-value by all signs of the differences, a check that asks nothing of how they vary."""
    bound: float | None = None
    """The largest difference in the direction asked for that the interval does not exclude."""
    answer: Answer | None = None
    """None: planned runs have not ended, lack a value, or the plan was changed."""


@dataclass(frozen=True, kw_only=True)
class JudgedClaim(Difference):
    """One claimed difference, or a counted number, and what came of it."""

    claim: Claim
    paper: float | None = None
    """The paper's difference, or number; None: it prints none."""
    verdict: Verdict = UNSAID
    reason: str = "nothing is recorded"


def answers(result: StudyResult) -> list[Answered]:
    """Return what came of each question.

    Yes: the difference is told from 0 in the direction asked for; no: in the other. Else a margin
    tells whether it is small: not more than the bound, where this is within the margin.
    """
    return [_answered(question, result) for question in result.questions]


def _answered(question: Question, result: StudyResult) -> Answered:
    found = result.values(question.board, question.condition, question.metric)
    ours, theirs = (found.get(arm, {}) for arm in (question.arm, question.against))
    difference = paired_by_seed(ours, theirs)
    # Those that are left where one diverged may be the lucky ones.
    is_whole = not {*result.seeds} - (ours.keys() & theirs.keys())
    if difference is None or difference.count < 2 or not is_whole or result.untested:
        return Answered(question=question, difference=difference)
    sign = 1 if question.direction == "higher" else -1
    p, bound = p_value(difference), largest(difference, sign)
    answer: Answer = "open"
    if p < LEVEL:
        answer = "yes" if sign * difference.mean > 0 else "no"
    elif question.margin is not None and bound <= question.margin:
        answer = "not more than"
    return Answered(
        question=question,
        difference=difference,
        p=p,
        p_of_signs=p_of_signs(ours, theirs),
        bound=bound,
        answer=answer,
    )


def largest(difference: Interval, sign: int) -> float:
    """Return the largest difference of a sign that an interval does not exclude."""
    return max(0.0, sign * difference.mean + difference.half)


def _differences(pairs: Mapping[_Key, Pair], tested: Set[_Key]) -> dict[_Key, Difference]:
    """Return what is said of the differences of some pairs, of which some are tested together."""
    found = {key: paired_by_seed(*pair) for key, pair in pairs.items()}
    p_values = adjusted_p_values({key: each for key, each in found.items() if key in tested})
    return {key: Difference(difference=each, p=p_values.get(key)) for key, each in found.items()}


def compare(
    values: Mapping[str, BySeed],
    seeds: Sequence[int],
    better: Literal["higher", "lower"] | None,
    *,
    tested: bool = True,
) -> list[Line]:
    """Return a line for each arm, the best first where there is a better; whole ones before others.

    Arms are compared with the first, and ``tested`` beside each other.
    """
    means = {arm: mean_by_seed(of_arm) for arm, of_arm in values.items()}
    missing = {arm: tuple(s for s in seeds if s not in of_arm) for arm, of_arm in values.items()}
    whole = {arm: mean.mean for arm, mean in means.items() if mean and not missing[arm]}
    ranks: dict[str, int] = {}
    if better:
        whole = dict(sorted(whole.items(), key=lambda item: item[1], reverse=better == "higher"))
    if better and whole and len(seeds) >= RANKED_FROM:
        # Rounded, since equal values may have been added up in another order.
        rounded = [round(mean, 12) for mean in whole.values()]
        ranks = {arm: 1 + rounded.index(mean) for arm, mean in zip(whole, rounded, strict=True)}
    first = next(iter(values), "")
    pairs = {arm: (values[arm], values[first]) for arm in values if arm != first}
    # Of an arm that lost seeds those that are left may be the lucky ones.
    judged = {a for a in pairs if tested and not (missing[a] or missing[first])}
    differences = _differences(pairs, judged)
    return [
        Line(
            arm=arm,
            by_seed=values[arm],
            mean=means[arm],
            rank=ranks.get(arm),
            missing=missing[arm],
            **vars(differences.get(arm, Difference())),
        )
        for arm in (*whole, *(arm for arm in values if arm not in whole))
    ]


def lines_of(result: StudyResult, board: Board, condition: Condition, metric: str) -> list[Line]:
    """Return the lines of one table of a study; arms without a value are in it."""
    found = result.values(board.name, condition.name, metric)
    values = {arm.name: found.get(arm.name, {}) for arm in condition.arms}
    runs = result.of(board.name, condition.name)
    seeds = result.seeds or sorted({run.seed for run in runs if run.state != "begun"})
    is_tested = not (result.questions or result.untested)
    is_tested &= not result.to_come(board.name, condition.name)
    return compare(values, seeds, result.metric(metric).better, tested=is_tested)


def judge(result: StudyResult) -> list[JudgedClaim]:
    """Return what came of each claim, by ``RULE``."""
    pairs = {}
    for claim in result.claims:
        if claim.against is not None:
            ours = result.computed(claim.quantity)
            pairs[claim] = ours.get(claim.arm, {}), ours.get(claim.against, {})
    is_tested = not (result.untested or any(run.is_to_come for run in result.runs))
    differences, judged = _differences(pairs, pairs.keys() if is_tested else set()), []
    for claim in result.claims:
        papers = {p.arm: p.value for p in result.papers if p.quantity == claim.quantity}
        if claim not in pairs:
            judged.append(_judge_counted(claim, papers.get(claim.arm), result))
            continue
        both = [papers[arm] for arm in (claim.arm, claim.against) if arm in papers]
        each = JudgedClaim(
            claim=claim,
            paper=both[0] - both[1] if len(both) == 2 else None,
            **vars(differences[claim]),
        )
        judged.append(_with_verdict(each, pairs[claim], result))
    return judged


def _with_verdict(judged: JudgedClaim, pair: Pair, result: StudyResult) -> JudgedClaim:
    """Return a claimed difference with its verdict, and the reason for that."""
    claim, difference = judged.claim, judged.difference
    if difference is None:
        return judged
    missing = sorted(set(result.seeds) - (pair[0].keys() & pair[1].keys()))
    chance = result.metric(claim.quantity).chance
    verdict = UNSAID
    if result.untested or missing:
        reason = f"of seeds {', '.join(map(str, missing))} there is no pair"
        reason = result.untested or reason
    elif judged.p is None:
        reason = "one pair has no interval, or runs have not ended"
    elif abs(difference.mean) <= difference.half:
        reason = "the interval includes 0"
    elif not difference.half and p_value(difference) >= LEVEL:
        reason = "all pairs differ by the same, so that how they vary is not known"
    elif chance is not None and all(interval([*v.values()]).ends[0] <= chance for v in pair):
        reason = "neither is above a guess"
    elif judged.p >= LEVEL:
        reason = f"among so many claims its p is {judged.p:.3f}"
    elif claim.direction == ("higher" if difference.mean > 0 else "lower"):
        verdict, reason = "holds", "the interval excludes 0"
    elif claim.direction == "similar":
        verdict, reason = "does not hold", "the interval excludes 0"
    else:
        verdict, reason = "does not hold", "the other way round"
    return replace(judged, verdict=verdict, reason=reason)


def _judge_counted(claim: Claim, paper: float | None, result: StudyResult) -> JudgedClaim:
    """Judge a counted number by the digits that the paper prints."""
    values = result.computed(claim.quantity).get(claim.arm)
    if not values or paper is None:
        return JudgedClaim(claim=claim)
    verdict, reason = UNSAID, "the paper's number is of its own sizes"
    if result.scale == "paper":
        # The shares of its tables have two decimals in percent.
        is_same = round(next(iter(values.values())), 4) == round(paper, 4)
        verdict = "holds" if is_same else "does not hold"
        reason = "the same in the digits printed" if is_same else "other digits"
    return JudgedClaim(claim=claim, paper=paper, verdict=verdict, reason=reason)
