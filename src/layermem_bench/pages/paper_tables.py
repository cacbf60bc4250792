"""Tables of an artefact: the paper's claims with what came of them, its numbers beside ours."""

from collections.abc import Mapping

from layermem_bench.pages.numbers import (
    format_counted,
    format_interval,
    format_number,
    format_p,
    format_pairs,
    looks_note,
)
from layermem_bench.pages.page import Columns, Table
from layermem_bench.statistics import mean_by_seed
from layermem_bench.studies.comparing import JudgedClaim, judge
from layermem_bench.studies.result import ABOVE_PLAIN, BY_LAYER, Metric, StudyResult

_CHANCE = (
    " Chance: what an answer comes to that ignores the question, the most frequent one where that "
    "is right more often than 1 / choices."
)
_PAIRS = (
    " p-values are adjusted by Holm's method for the number of claims. Seeds to settle it: pairs, "
    "planned from the beginning, with which a difference as observed would be told from 0 among so "
    "many claims in four of five repetitions."
)
_HOW = {"higher": "above", "lower": "below", "similar": "similar to", "equal": "equal to"}


def claims_table(result: StudyResult) -> Table:
    """Return a table of the claims: the paper's difference, ours, and what came of it."""
    columns: Columns[JudgedClaim] = {
        "claim": claim_text,
        "paper": lambda each: claim_numbers(result, each)[0],
        "here": lambda each: claim_numbers(result, each)[1],
        "p (Holm)": lambda each: format_p(each.p).removesuffix(", within noise"),
        "seeds to settle it": lambda each: format_pairs(each.difference, each.pairs_to_settle),
        "holds?": lambda each: f"{each.verdict} ({each.reason})",
    }
    return Table.over(judge(result), columns, _over(result) + _PAIRS + looks_note(result.looks))


def claim_text(judged: JudgedClaim) -> str:
    """Write what is claimed."""
    claim = judged.claim
    other = claim.against or "the paper's number"
    return f"{claim.quantity}: {claim.arm} {_HOW[claim.direction]} {other}"


def claim_numbers(result: StudyResult, judged: JudgedClaim) -> tuple[str, str]:
    """Write the paper's difference, or number, of a claim and ours; nothing where there is none."""
    claim, metric = judged.claim, result.metric(judged.claim.quantity)
    sign = "" if claim.against is None else "+"
    paper = "" if judged.paper is None else _as_printed(judged.paper, metric.is_share, sign)
    if sign:
        return paper, format_interval(judged.difference, metric.is_share, sign)
    return paper, _ours(claim.quantity, result.computed(claim.quantity).get(claim.arm, {}), metric)


def numbers_table(result: StudyResult) -> Table:
    """Return a table of the numbers of an artefact: the paper's, ours by seed, mean, chance.

    Numbers of single layers are drawn, and left out here.
    """
    papers = {(number.quantity, number.arm): number for number in result.papers}
    ours = {(row.metric, row.arm): row.by_seed for row in result.rows if BY_LAYER not in row.metric}
    rows = []
    for quantity, arm in dict.fromkeys((*ours, *papers)):
        metric, paper = result.metric(quantity), papers.get((quantity, arm))
        values, is_share = ours.get((quantity, arm), {}), metric.is_share
        write = format_counted if metric.counted else _as_printed
        printed = ["", ""] if paper is None else [write(paper.value, is_share), paper.where]
        each = [] if metric.counted else [format_number(v, is_share) for v in values.values()]
        chance = "" if metric.chance is None else format_number(metric.chance, is_share)
        here = _ours(quantity, values, metric)
        rows.append([quantity, arm, *printed, here, ", ".join(each), chance])
    return Table(
        header=["", "arm", "paper", "where", "here", "each seed", "chance"],
        rows=rows,
        caption=_over(result) + (_CHANCE if any(row[-1] for row in rows) else ""),
    )


def _as_printed(value: float, is_share: bool, sign: str = "") -> str:
    """Write a number of the paper: shares with two decimals in percent."""
    return format_number(value, is_share, sign, decimals=2 if is_share else None)


def _ours(quantity: str, values: Mapping[int, float], metric: Metric) -> str:
    if values and metric.counted:
        return f"counted: {format_counted(next(iter(values.values())), metric.is_share)}"
    sign = "+" if ABOVE_PLAIN in quantity else ""
    return format_interval(mean_by_seed(values), metric.is_share, sign)


def _over(result: StudyResult) -> str:
    over = "seeds" if result.runs else "repeats"
    return f"95% intervals over {over} by Student's t; differences are taken pair by pair."
