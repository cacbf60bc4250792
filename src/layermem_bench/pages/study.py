"""The page of a study: what came out in a sentence, tables with their forest plots, curves, costs.

Every number leads to the run it is from.
"""

from collections import Counter
from collections.abc import Iterable

from layermem_bench.pages import drawings, figures, study_tables
from layermem_bench.pages.cost_tables import cache_table, counted_table
from layermem_bench.pages.depth import panels
from layermem_bench.pages.numbers import format_interval
from layermem_bench.pages.page import Figure, Page, Section, Table
from layermem_bench.pages.paper_tables import claim_text, claims_table, numbers_table
from layermem_bench.statistics import NOISE, Interval
from layermem_bench.studies.comparing import RULE, judge, lines_of
from layermem_bench.studies.result import Board, Condition, StudyResult

_FLOPS = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
_SHAPES = (
    "One preset in several shapes, LAYERSxWIDTH, of equally many parameters. Each arm has a "
    "learning rate of its own in each shape."
)


def build(result: StudyResult, further: Iterable[Section] = ()) -> Page:
    """Return the page; ``further``: sections of what else was given, before the runs."""
    sections = _of_claims(result) if result.claims else []
    for board in result.boards:
        sections += _of_board(result, board)
    for table, lines, metric in study_tables.shapes_tables(result):
        drawn = [drawings.differences(table.header[1], lines, metric)]
        sections.append(
            Section(title="Wide or deep", paragraphs=[_SHAPES], tables=[table], figures=drawn)
        )
    if not result.claims and (ranks := study_tables.ranks_table(result)):
        sections.append(Section(title="Do the boards agree", tables=[ranks]))
    for board in result.boards:
        if board.costs:
            counted = [counted_table(board.costs), cache_table(board.costs)]
            sections.append(Section(title=f"What it costs: {board.name}", tables=counted))
    sections += further
    if result.runs:
        notes = [] if result.claims else result.notes
        shown = [study_tables.runs_table(result)]
        sections.append(Section(title="The runs", paragraphs=notes, tables=shown))
    states = Counter(run.state for run in result.runs)
    runs = ", ".join(f"{count} {state}" for state, count in states.items())
    artefact = f"{result.name.removeprefix('paper/')}: " if result.scale else ""
    return Page(
        title=f"{artefact}{result.title}",
        lead=f"{sentence(result)} Runs: {runs or 'none'}.",
        sections=[*sections, Section(title="Again", commands=[result.command])],
    )


def tables(result: StudyResult) -> list[Table]:
    """Return the tables for a screen."""
    if result.claims:
        return [claims_table(result), numbers_table(result)]
    shown = [table for board in result.boards for table in _tables(result, board, narrow=True)]
    shown += [table for table, _, _ in study_tables.shapes_tables(result)]
    ranks = study_tables.ranks_table(result)
    return [*shown, ranks] if ranks else shown


def _tables(result: StudyResult, board: Board, *, narrow: bool) -> list[Table]:
    """Return the tables of a board: of its arms by condition and metric, and of rates."""
    shown = [
        study_tables.arms_table(result, board, condition, metric, narrow=narrow)
        for condition in board.conditions
        for metric in study_tables.shown_metrics(result, board, condition)
    ]
    return [*shown, study_tables.rates_table(board)] if board.tried else shown


def sentence(result: StudyResult) -> str:
    """Say what came out."""
    if result.claims:
        verdicts = Counter(judged.verdict for judged in judge(result))
        counts = "; ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        return f"The paper: {result.claim} Of the differences that it claims: {counts}."
    return " ".join(
        _said(result, board, condition) for board in result.boards for condition in board.conditions
    )


def _said(result: StudyResult, board: Board, condition: Condition) -> str:
    """Say which arms of a table differ from the first beyond noise."""
    metric = result.metric(board.metric)
    lines = {line.arm: line for line in lines_of(result, board, condition, board.metric)}
    first = lines.pop(condition.arms[0].name)
    groups: dict[str, list[str]] = {}
    for line in lines.values():
        arm = f"{line.arm} ({format_interval(line.difference, metric.is_share, '+')})"
        if line.p is None or line.missing or first.missing or line.difference is None:
            how, arm = "not judged, as seeds are missing or too few", line.arm
        elif line.p >= NOISE:
            how, arm = "within noise", line.arm
        else:
            is_better = (line.difference.mean > 0) == (metric.better == "higher")
            how = "ahead" if is_better else "behind"
        groups.setdefault(how, []).append(arm)
    where = f"On {study_tables.title_of(board, condition)}"
    if not groups:
        mean = format_interval(first.mean, metric.is_share) or "not known"
        return f"{where}: {first.arm} alone, {board.metric} {mean}."
    told = "; ".join(f"{how}: {', '.join(arms)}" for how, arms in groups.items())
    return f"{where}, {board.metric} against {first.arm}: {told}."


def _of_claims(result: StudyResult) -> list[Section]:
    """Return what came of the paper's claims, beside its numbers."""
    by_unit: dict[bool, dict[str, Interval]] = {}
    for each in judge(result):
        if each.difference is not None:
            of_unit = by_unit.setdefault(result.metric(each.claim.quantity).is_share, {})
            of_unit[claim_text(each)] = each.difference
    drawn = [
        Figure(
            svg=figures.forest(found, is_share=is_share, across="difference"),
            caption="Claimed differences with 95% intervals.",
        )
        for is_share, found in by_unit.items()
    ]
    missing = [f"Not evaluated: {result.missing}."] if result.missing else []
    return [
        Section(
            title="What came of it",
            paragraphs=[*missing, RULE],
            tables=[claims_table(result)],
            figures=drawn,
        ),
        Section(
            title="The paper and here",
            paragraphs=result.notes,
            tables=[numbers_table(result)],
            figures=drawings.paper_figures(result),
            switches=list(map(panels, result.pictures)),
        ),
    ]


def _of_board(result: StudyResult, board: Board) -> list[Section]:
    """Return what came of one board: tables with forest plots, and how arms learn."""
    drawn = []
    for condition in board.conditions:
        title = study_tables.TITLES[condition.name]
        for metric in study_tables.shown_metrics(result, board, condition):
            lines = lines_of(result, board, condition, metric)
            if any(line.p is not None for line in lines):
                of = result.metric(metric)
                drawn.append(drawings.differences(f"{metric}, {title}", lines, of))
    shown = _tables(result, board, narrow=False)
    sections = [Section(title=board.name, tables=shown, figures=drawn)]
    if curves := list(drawings.learning_curves(result, board)):
        title = f"How they learn: {board.name}"
        sections.append(Section(title=title, paragraphs=[_FLOPS], figures=curves))
    return sections
