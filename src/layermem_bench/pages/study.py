"""The page of a study: what came out in a sentence, tables and forest plots, curves, costs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from layermem_bench.pages import figures, study_tables
from layermem_bench.pages.analysis import panels
from layermem_bench.pages.cost_tables import cache_table, counted_table
from layermem_bench.pages.page import Figure, Page, Section, Table, format_interval
from layermem_bench.statistics import Interval, interval
from layermem_bench.studies.comparing import RULE, judge, lines_of
from layermem_bench.studies.result import Board, Condition, Drawing, StudyResult, Validation

_FLOPS = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
# Columns that a screen has no room for.
_WIDE = ("each seed", "against the best", "seeds to settle it", "mlp")
# Figures of learning: what goes up, its field of a validation; whether it is a share.
_UP = {"validation loss": ("val_loss", False), "right answers": ("val_accuracy", True)}
_ACROSS = {"tokens": "tokens", "flops": "training FLOPs"}


def build(result: StudyResult) -> Page:
    """Return the page."""
    sections = _of_claims(result) if result.claims else []
    for each in (result, *study_tables.shapes_of(result)):
        for board in each.boards:
            sections += _of_board(each, board)
    if not result.claims and (ranks := study_tables.ranks_table(result)).rows:
        sections.append(Section("Do the boards agree", tables=[ranks]))
    for board in result.boards:
        made = [make(board.costs) for make in (counted_table, cache_table)]
        if counted := [table for table in made if table.rows]:
            sections.append(Section(f"What it costs: {board.name}", tables=counted))
    if result.runs:
        notes = [] if result.claims else result.notes
        sections.append(Section("The runs", notes, tables=[study_tables.runs_table(result)]))
    states = Counter(run.state for run in result.runs)
    runs = ", ".join(f"{count} {state}" for state, count in states.items())
    artefact = f"{result.name.removeprefix('paper/')}: " if result.scale else ""
    return Page(
        title=f"{artefact}{result.title}",
        lead=f"{sentence(result)} Runs: {runs or 'none'}.",
        sections=[*sections, Section("Again", commands=[result.command])],
    )


def tables(result: StudyResult) -> list[Table]:
    """Return the tables for a screen."""
    if result.claims:
        return [study_tables.claims_table(result), study_tables.numbers_table(result)]
    shown = [
        table.without(_WIDE)
        for each in (result, *study_tables.shapes_of(result))
        for board in each.boards
        for table in _tables(each, board)
    ]
    ranks = study_tables.ranks_table(result)
    return [*shown, ranks] if ranks.rows else shown


def _tables(result: StudyResult, board: Board) -> list[Table]:
    """Return the tables of a board: of its arms by condition and metric, and of rates."""
    shown = [
        study_tables.arms_table(result, board, condition, metric)
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
        how, arm = study_tables.outcome(line, metric), line.arm
        if how == "not judged" or line.missing or first.missing:
            how = "not judged, as seeds are missing or too few"
        elif how != "within noise":
            arm += f" ({format_interval(line.difference, metric.is_share, '+')})"
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
            of_unit[study_tables.claim_text(each)] = each.difference
    missing = [f"Not evaluated: {result.missing}."] if result.missing else []
    forests = [
        figures.forest(found, "Claimed differences.", is_share=is_share, across="difference")
        for is_share, found in by_unit.items()
    ]
    claims = [study_tables.claims_table(result)]
    came = Section("What came of it", [*missing, RULE], tables=claims, figures=forests)
    drawn = [figure for drawing in result.drawings for figure in draw_lines(result, drawing)]
    drawn += [figure for picture in result.pictures for figure in panels(picture)]
    numbers = [study_tables.numbers_table(result)]
    return [came, Section("The paper and here", result.notes, tables=numbers, figures=drawn)]


def draw_lines(result: StudyResult, drawing: Drawing) -> Iterator[Figure]:
    """Draw the means of rows with their intervals, and the paper's numbers as points."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    ours: dict[str, list[tuple[float, figures.Ends]]] = {}
    theirs: dict[str, list[tuple[float, figures.Ends]]] = {}
    for point in drawing.points:
        if values := result.computed(point.quantity).get(point.arm):
            mean = interval(list(values.values()))
            low, high = mean.ends if mean.count > 1 else (mean.mean, mean.mean)
            ours.setdefault(point.line, []).append((point.at, (low, mean.mean, high)))
        if (printed := papers.get((point.quantity, point.arm))) is not None:
            line = theirs.setdefault(f"{point.line}, the paper", [])
            line.append((point.at, (printed, printed, printed)))
    is_share = all(result.metric(point.quantity).is_share for point in drawing.points)
    titles = {"across": drawing.across, "up": drawing.up}
    caption = f"{drawing.up} by {drawing.across}: means over seeds with 95% intervals."
    if ours:
        plot = figures.curves({**ours, **theirs}, is_share=is_share, **titles)
        yield figures.drawing(plot, caption)


def _of_board(result: StudyResult, board: Board) -> list[Section]:
    """Return what came of one board: tables with forest plots, and how arms learn."""
    shown, drawn = _tables(result, board), list(_forests(result, board))
    sections = [Section(board.name, [study_tables.INTERVALS], tables=shown, figures=drawn)]
    if curves := list(learning_curves(result, board)):
        sections.append(Section(f"How they learn: {board.name}", [_FLOPS], figures=curves))
    return sections


def _forests(result: StudyResult, board: Board) -> Iterator[Figure]:
    """Draw the differences of each table's arms from the first, where they have intervals."""
    for condition in board.conditions:
        first = condition.arms[0].name
        for name in study_tables.shown_metrics(result, board, condition):
            lines, metric = lines_of(result, board, condition, name), result.metric(name)
            found = {line.arm: line.difference for line in lines if line.difference is not None}
            if any(line.p is not None for line in lines):
                caption = f"{study_tables.title_of(board, condition)}, {name}: 95% intervals"
                caption += f"; {metric.better} is better." if metric.better else "."
                across, is_share = f"against {first}", metric.is_share
                yield figures.forest(found, caption, is_share=is_share, across=across)


def learning_curves(result: StudyResult, board: Board) -> Iterator[Figure]:
    """Draw loss and right answers per token and per FLOP, of a board's first condition.

    An arm's curve is of its runs that ended; of an arm without any such of those that are there.
    """
    runs = result.of(board.name, board.conditions[0].name)
    arms = {}
    for arm in board.conditions[0].arms:
        begun = [run for run in runs if run.arm == arm.name and run.validations]
        ended = [run for run in begun if run.state == "ended"]
        arms[arm.name] = [run.validations for run in ended or begun]
    for up, (field, is_share) in _UP.items():
        for across, title in _ACROSS.items():
            caption = f"{up} by {title}: mean over seeds, in a band from the lowest to the highest."
            if series := curves_of_arms(arms, across, field):
                plot = figures.curves(series, across=title, up=up, is_share=is_share)
                yield figures.drawing(plot, caption)


def curves_of_arms(
    arms: Mapping[str, Sequence[Sequence[Validation]]], across: str, up: str
) -> figures.Curves:
    """Return each arm's mean over its runs, in a band from the lowest to the highest of them.

    ``across``, ``up``: fields of a validation. Only steps that all of an arm's runs have validated
    at count.
    """
    series: dict[str, list[tuple[float, figures.Ends]]] = {}
    for arm, runs in arms.items():
        by_step: dict[int, list[tuple[float, float]]] = {}
        for each in (each for validations in runs for each in validations):
            at, value = getattr(each, across), getattr(each, up)
            if at is not None and value is not None:
                by_step.setdefault(each.step, []).append((at, value))
        for _, points in sorted(by_step.items()):
            if len(points) == len(runs):
                places, values = zip(*points, strict=True)
                ends = min(values), fmean(values), max(values)
                series.setdefault(arm, []).append((fmean(places), ends))
    return series
