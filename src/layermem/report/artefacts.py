"""Draws an artefact of the paper beside our numbers: tables, page, Markdown; from its result alone.

It does not know: torch, run folders, how numbers came about.
"""

import math
from collections.abc import Sequence

from layermem.report import learning_rates
from layermem.report.numbers import looks_note, with_unit
from layermem.report.page import Page, Section, Table
from layermem.results.artefact import (
    RULE,
    ArtefactResult,
    ArtefactRow,
    JudgedClaim,
    Mean,
    RunState,
    Unit,
)

# Beyond this a number of pairs says no more than that there are too many.
_MOST_PAIRS = 10_000
_CHANCE = (
    "Chance: what an answer comes to that ignores the question, the most frequent one where that "
    "is right more often than 1 / choices."
)


def build(result: ArtefactResult) -> Page:
    """Return the page."""
    return Page(
        title=f"{result.name} at scale {result.scale}: {result.title}",
        lead=f"The paper: {result.claim}",
        sections=[
            Section(title="What came of it", paragraphs=_verdicts(result), tables=[claims(result)]),
            Section(title="The paper and here", paragraphs=result.notes, tables=[numbers(result)]),
            *_runs_sections(result),
            Section(title="Again", commands=[result.command]),
        ],
    )


def markdown(result: ArtefactResult) -> str:
    """Return the same as Markdown."""
    parts = [
        f"# {result.name} at scale {result.scale}: {result.title}",
        f"The paper: {result.claim}",
        *_verdicts(result),
        _markdown_table(claims(result)),
        _markdown_table(numbers(result)),
        *(f"* {note}" for note in result.notes),
        *(_markdown_table(table) for table in _run_tables(result)),
        f"`{result.command}`",
    ]
    return "\n\n".join(parts) + "\n"


def claims(result: ArtefactResult) -> Table:
    """Return a table of the claims: the paper's difference, ours, and what came of it."""
    return Table(
        header=["claim", "paper", "here", "p (Holm)", "seeds to settle it", "holds?"],
        rows=[_claim_row(result, claim) for claim in result.claims],
        caption=f"{_intervals(result)} p-values are adjusted by Holm's method for the number of "
        "claims. Seeds to settle it: pairs with which a difference as observed would be told from "
        f"0 in four of five repetitions.{looks_note(result.looks)}",
    )


def numbers(result: ArtefactResult) -> Table:
    """Return a table of the numbers: the paper's, ours by seed, mean, chance."""
    return Table(
        header=["", "arm", "paper", "where", "here", "each seed", "chance"],
        rows=[_number_row(row) for row in result.rows],
        caption=_intervals(result) + (f" {_CHANCE}" if _has_chance(result) else ""),
    )


def _has_chance(result: ArtefactResult) -> bool:
    return any(row.chance is not None for row in result.rows)


def _verdicts(result: ArtefactResult) -> list[str]:
    missing = [f"Not evaluated: {result.missing}."] if result.missing else []
    lost = [run for run in result.runs if run.state not in ("ended", "diverged")]
    if lost:
        missing.append(f"{len(lost)} of {len(result.runs)} runs failed or have not ended: below.")
    return [*missing, RULE]


def _intervals(result: ArtefactResult) -> str:
    over = "repeats" if not result.runs else "seeds"
    return f"95% intervals over {over} by Student's t; differences are taken pair by pair."


def _unit_of(result: ArtefactResult, claim: JudgedClaim) -> Unit:
    units: list[Unit] = [row.unit for row in result.rows if row.quantity == claim.quantity]
    return units[0] if units else "number"


def claim_numbers(result: ArtefactResult, claim: JudgedClaim) -> tuple[str, str]:
    """Write the paper's difference, or number, of a claim and ours; nothing where there is none."""
    unit, sign = _unit_of(result, claim), claim.against is not None
    paper = "" if claim.paper is None else format_number(claim.paper, unit, sign=sign)
    if sign:
        return paper, format_mean(claim.difference, unit, sign=True)
    rows = [row for row in result.rows if (row.quantity, row.arm) == (claim.quantity, claim.arm)]
    return paper, _ours(rows[0]) if rows else ""


def _claim_row(result: ArtefactResult, claim: JudgedClaim) -> list[str]:
    other = claim.against or "the paper's number"
    how = {"higher": "above", "lower": "below", "similar": "similar to", "equal": "equal to"}
    return [
        f"{claim.quantity}: {claim.arm} {how[claim.direction]} {other}",
        *claim_numbers(result, claim),
        "" if claim.p is None else "< 0.001" if claim.p < 0.001 else f"{claim.p:.3f}",
        format_pairs(claim.difference, claim.pairs_to_settle),
        f"{claim.verdict} ({claim.reason})",
    ]


def format_pairs(difference: Mean | None, pairs: int | None) -> str:
    """Write how many pairs of seeds would settle a difference."""
    if difference is None:
        return ""
    if pairs is None:
        zero = not difference.mean
        return "cannot: the difference is 0" if zero else "one pair does not say"
    return f"more than {_MOST_PAIRS:,}" if pairs > _MOST_PAIRS else f"{pairs:,}"


def _number_row(row: ArtefactRow) -> list[str]:
    values = [format_number(value, row.unit) for value in row.by_seed.values()]
    write = _counted if row.counted else format_number
    return [
        row.quantity,
        row.arm,
        "" if row.paper is None else write(row.paper, row.unit),
        row.where,
        _ours(row),
        "" if row.counted else ", ".join(values),
        "" if row.chance is None else format_number(row.chance, row.unit),
    ]


def _ours(row: ArtefactRow) -> str:
    if row.counted:
        return f"counted: {_counted(next(iter(row.by_seed.values())), row.unit)}"
    return format_mean(row.mean, row.unit)


def _counted(value: float, unit: Unit) -> str:
    """Write what is counted: a whole number without decimals, a large one with its unit."""
    if unit == "number" and float(value).is_integer() and abs(value) < 1e6:
        return f"{value:,.0f}"
    return format_number(value, unit)


def format_mean(mean: Mean | None, unit: Unit, *, sign: bool = False) -> str:
    """Write a mean with its interval; nothing where there is none."""
    if mean is None:
        return ""
    if mean.half is None:
        return f"{format_number(mean.mean, unit, sign=sign)} (one value)"
    return f"{format_number(mean.mean, unit, sign=sign)} +- {format_number(mean.half, unit)}"


def format_number(value: float, unit: Unit, *, sign: bool = False) -> str:
    """Write a share in percent, a large number with its unit, a small one with five digits."""
    plus = "+" if sign else ""
    if unit == "share":
        return format(value, f"{plus}.2%")
    if abs(value) >= 1e6:
        return ("-" if value < 0 else plus) + with_unit(abs(value))
    # Five digits of what is small, such as the seconds of a step.
    digits = 4 if abs(value) >= 0.1 or not value else 4 - math.floor(math.log10(abs(value)))
    return format(value, f"{plus}.{digits}f")


def _runs_sections(result: ArtefactResult) -> list[Section]:
    tables = _run_tables(result)
    return [Section(title="The runs", tables=tables)] if tables else []


def _run_tables(result: ArtefactResult) -> list[Table]:
    tables = []
    tables += [learning_rates.table(tried, study) for study, tried in result.tried.items()]
    if result.rates and not result.tried:
        rows = [
            [study, arm, f"{rate:g}"]
            for study, by_arm in result.rates.items()
            for arm, rate in by_arm.items()
        ]
        tables.append(
            Table(
                header=["study", "arm", "learning rate"],
                rows=rows,
                caption="Of the lowest validation loss on a seed that is in no other table.",
            )
        )
    if result.runs:
        rows = [[run.name, run.run_id, _state(run), run.folder] for run in result.runs]
        tables.append(Table(header=["run", "id", "state", "folder"], rows=rows))
    return tables


def _state(run: RunState) -> str:
    return f"{run.state}: {run.note}" if run.note else run.state


def _markdown_table(table: Table) -> str:
    lines = [table.header, ["---"] * len(table.header), *table.texts()]
    text = "\n".join(_markdown_row(line) for line in lines)
    return f"{text}\n\n{table.caption}" if table.caption else text


def _markdown_row(cells: Sequence[str]) -> str:
    # A bar, or the line break of an error message, would end the cell.
    clean = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(clean)} |"
