"""Observed numbers beside the paper's, and its claims judged: paired over seeds, Holm, a verdict.

It does not know: where the numbers come from, tables, pages.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from layermem.experiments.reproduction.artefact import Artefact, Claim, Observed, PaperNumber
from layermem.intervals import (
    Interval,
    holm,
    interval,
    p_value,
    paired_by_seed,
    pairs_to_settle,
    price_of_looks,
)
from layermem.results.artefact import ArtefactRow, Direction, JudgedClaim, Mean, Scale, Verdict

_HOLDS: Verdict = "holds"
_NOT: Verdict = "does not hold"
_UNSAID: Verdict = "cannot be said at this scale"


def summarise(
    artefact: Artefact,
    observed: Iterable[Observed],
    scale: Scale,
    seeds: Sequence[int],
    looks: int = 1,
) -> tuple[tuple[ArtefactRow, ...], tuple[JudgedClaim, ...]]:
    """Return the rows of an artefact, the paper's numbers among them, and its claims judged.

    ``looks``: how many of these results there were, each with other seeds.
    """
    ours = {(row.quantity, row.arm): row for row in observed}
    papers = {(number.quantity, number.arm): number for number in artefact.numbers}
    keys = [key for key in papers if key not in ours]
    rows = tuple(_row(key, ours.get(key), papers.get(key)) for key in (*ours, *keys))
    judged = [_judge(claim, ours, papers, scale, seeds, looks) for claim in artefact.claims(scale)]
    return rows, tuple(_with_holm(judged, looks))


def _row(key: tuple[str, str], ours: Observed | None, paper: PaperNumber | None) -> ArtefactRow:
    quantity, arm = key
    row = ArtefactRow(
        quantity=quantity,
        arm=arm,
        unit=paper.unit if paper else "number",
        paper=paper.value if paper else None,
        where=paper.where if paper else "",
        by_seed={},
        mean=None,
    )
    if ours is None:
        return row
    values = list(ours.by_seed.values())
    return replace(
        row,
        unit=ours.unit,
        by_seed=dict(ours.by_seed),
        mean=_mean(interval(values)) if values else None,
        chance=ours.chance,
        counted=ours.counted,
    )


def _judge(
    claim: Claim,
    ours: dict[tuple[str, str], Observed],
    papers: dict[tuple[str, str], PaperNumber],
    scale: Scale,
    seeds: Sequence[int],
    looks: int,
) -> JudgedClaim:
    row = ours.get((claim.quantity, claim.arm))
    paper = papers.get((claim.quantity, claim.arm))
    judged = JudgedClaim(
        quantity=claim.quantity,
        arm=claim.arm,
        against=claim.against,
        direction=claim.direction,
        paper=None,
        difference=None,
        p=None,
        pairs_to_settle=None,
        verdict=_UNSAID,
        reason="nothing is recorded",
    )
    if claim.against is None:
        return _judge_counted(judged, row, paper, scale)
    other = ours.get((claim.quantity, claim.against))
    theirs = papers.get((claim.quantity, claim.against))
    if paper and theirs:
        judged = replace(judged, paper=paper.value - theirs.value)
    difference = paired_by_seed(row.by_seed, other.by_seed) if row and other else None
    if row is None or other is None or difference is None:
        return judged
    missing = sorted(set(seeds) - (row.by_seed.keys() & other.by_seed.keys()))
    verdict, reason = _verdict(difference, claim.direction, missing, looks)
    if verdict != _UNSAID and not (_is_above_chance(row) or _is_above_chance(other)):
        verdict, reason = _UNSAID, "neither is above a guess"
    p = p_value(difference)
    return replace(
        judged,
        difference=_mean(difference),
        p=None if math.isnan(p) else p,
        pairs_to_settle=pairs_to_settle(difference),
        verdict=verdict,
        reason=reason,
    )


def _is_above_chance(row: Observed) -> bool:
    """Return whether an arm does better than a guess, if there is one, beyond noise."""
    ours = interval(list(row.by_seed.values()))
    return row.chance is None or ours.mean - ours.half > row.chance


def _judge_counted(
    judged: JudgedClaim, row: Observed | None, paper: PaperNumber | None, scale: Scale
) -> JudgedClaim:
    """Judge a counted number by the digits that the paper prints."""
    if row is None or paper is None or not row.by_seed:
        return judged
    if not row.counted:
        raise ValueError(f"{row.quantity} of {row.arm} is not counted, so it is judged by seeds")
    value = next(iter(row.by_seed.values()))
    judged = replace(judged, paper=paper.value)
    if scale != "paper":
        return replace(judged, reason="the paper's number is of its own sizes")
    # The shares of its tables have two decimals in percent.
    same = round(value, 4) == round(paper.value, 4)
    return replace(
        judged,
        verdict=_HOLDS if same else _NOT,
        reason="the same in the digits printed" if same else "other digits",
    )


def _verdict(
    difference: Interval, direction: Direction, missing: Sequence[int], looks: int
) -> tuple[Verdict, str]:
    """Return what came of a claimed difference, by ``results.artefact.RULE``."""
    if missing:
        return _UNSAID, f"of seeds {', '.join(map(str, missing))} there is no pair"
    if difference.count < 2:
        return _UNSAID, "one pair has no interval"
    excludes_0 = abs(difference.mean) > difference.half
    if not excludes_0:
        return _UNSAID, "within noise: the interval includes 0"
    p = price_of_looks(looks) * p_value(difference)
    if not difference.half and p >= 0.05:
        return _UNSAID, "all pairs differ by the same, so that how they vary is not known"
    if looks > 1 and p >= 0.05:
        return _UNSAID, f"within noise at look {looks}: p {p:.3f}"
    if direction == "similar":
        return _NOT, "the interval excludes 0"
    claimed = (difference.mean > 0) == (direction == "higher")
    return (_HOLDS, "the interval excludes 0") if claimed else (_NOT, "the other way round")


def _with_holm(claims: Sequence[JudgedClaim], looks: int) -> list[JudgedClaim]:
    """Return the claims with their p-values adjusted for how many there are, and for looks."""
    adjusted = iter(holm([claim.p for claim in claims if claim.p is not None], looks))
    judged = []
    for claim in claims:
        if claim.p is not None:
            claim = replace(claim, p=next(adjusted))
            if claim.p is not None and claim.p >= 0.05 and claim.verdict != _UNSAID:
                claim = replace(
                    claim, reason=f"{claim.reason}; within noise among so many claims (Holm)"
                )
        judged.append(claim)
    return judged


def _mean(values: Interval) -> Mean:
    half = values.half if math.isfinite(values.half) else None
    return Mean(mean=values.mean, half=half, count=values.count)
