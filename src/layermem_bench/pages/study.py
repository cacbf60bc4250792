"""The page of a study: what came out in a sentence, tables and forest plots, curves, costs."""

from collections import Counter
from collections.abc import Iterator
from math import nan

from layermem_bench.pages import figures, study_tables
from layermem_bench.pages.analysis import panels
from layermem_bench.pages.cost_tables import cache_table, counted_table
from layermem_bench.pages.page import Figure, Page, Section, Table, format_interval
from layermem_bench.statistics import Interval, interval
from layermem_bench.studies.comparing import RULE, answers, judge, lines_of
from layermem_bench.studies.result import Board, Condition, Drawing, StudyResult

_FLOPS = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
# Columns that a screen has no room for.
_WIDE = ("each seed", "mlp")
# Figures of learning: what goes up, its field of a validation; whether it is a share.
_UP = {"validation loss": ("val_loss", False), "right answers": ("val_accuracy", True)}
_ACROSS = {"tokens": "tokens", "flops": "training FLOPs"}
_BAND = "mean over seeds, in a band from the lowest to the highest."


def build(result: StudyResult) -> Page:
    """Return the page."""
    sections = _of_claims(result) if result.claims else _of_questions(result)
    for each in (result, *study_tables.shapes_of(result)):
        for board in each.boards:
            sections += _of_board(each, board)
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
    asked = study_tables.questions_table(result)
    return [asked, *shown] if asked.rows else shown


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
    if result.questions:
        return " ".join(
            f"{study_tables.question_text(each.question)}: "
            f"{study_tables.answer_text(each, result)}."
            for each in answers(result)
        )
    return " ".join(
        _said(result, board, condition) for board in result.boards for condition in board.conditions
    )


def _said(result: StudyResult, board: Board, condition: Condition) -> str:
    """Say which arms of a table are told from the first."""
    metric, told = result.metric(board.metric), dict[str, list[str]]()
    for line in lines_of(result, board, condition, board.metric):
        if line.arm != condition.arms[0].name:
            how, difference = study_tables.outcome(line, metric), line.difference
            of = f" ({format_interval(difference, metric.is_share, '+')})" * (line.p is not None)
            told.setdefault(how, []).append(f"{line.arm}{of}")
    said = "; ".join(f"{how}: {', '.join(arms)}" for how, arms in told.items())
    against = f"{board.metric} against {condition.arms[0].name}: {said}" if said else "one arm"
    return f"On {study_tables.title_of(board, condition)}, {against}."


def _of_questions(result: StudyResult) -> list[Section]:
    """Return the questions that were asked before the first run, with their answers."""
    by_metric: dict[str, dict[str, Interval]] = {}
    for each in answers(result):
        if each.answer is not None and each.difference is not None:
            of_metric = by_metric.setdefault(each.question.metric, {})
            of_metric[study_tables.question_text(each.question)] = each.difference
    forests = [
        figures.forest(
            found,
            f"{name}: 95% intervals.",
            is_share=result.metric(name).is_share,
            across="difference",
        )
        for name, found in by_metric.items()
    ]
    asked = [study_tables.questions_table(result)]
    return [Section("What was asked", tables=asked, figures=forests)] if result.questions else []


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
            if any(each.count > 1 for each in found.values()):
                caption = f"{study_tables.title_of(board, condition)}, {name}: 95% intervals"
                caption += f"; {metric.better} is better." if metric.better else "."
                across, is_share = f"against {first}", metric.is_share
                yield figures.forest(found, caption, is_share=is_share, across=across)


def learning_curves(result: StudyResult, board: Board) -> Iterator[Figure]:
    """Draw how the arms of a board's first condition learn: loss and right answers per token and
    per FLOP; and the training loss minus the first arm's, which learnt the same batches.

    An arm's curve is of its runs that ended; of an arm without any such of those that are there.
    """
    arms, first = {}, board.conditions[0].arms[0].name
    for arm in board.conditions[0].arms:
        runs = result.of(board.name, board.conditions[0].name)
        begun = [run for run in runs if run.arm == arm.name and run.validations]
        arms[arm.name] = [run for run in begun if run.state == "ended"] or begun
    for up, (field, is_share) in _UP.items():
        for across, title in _ACROSS.items():
            of_arms = {
                arm: [
                    [(getattr(v, across), getattr(v, field)) for v in run.validations]
                    for run in runs
                ]
                for arm, runs in arms.items()
            }
            series = figures.means_of_curves(of_arms)
            # One validation at the end of each run is in a table.
            if any(len(points) > 1 for points in series.values()):
                plot = figures.curves(series, across=title, up=up, is_share=is_share)
                yield figures.drawing(plot, f"{up} by {title}: {_BAND}")
    of_first = {run.seed: dict(run.learning) for run in arms[first]}
    leads = {
        arm: [
            [
                (step, loss - of_first[run.seed].get(step, nan))
                for step, loss in run.learning
                # Differences of the first steps are so large that they would hide all later ones.
                if step > run.max_steps / 10
            ]
            for run in runs
            if run.seed in of_first
        ]
        for arm, runs in arms.items()
        if arm != first
    }
    if series := figures.means_of_curves(leads):
        up = f"training loss minus that of {first}"
        plot = figures.curves(series, across="steps", up=up)
        yield figures.drawing(plot, f"{up} by steps, after a tenth of them: {_BAND}")
