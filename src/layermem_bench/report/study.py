"""The page of a study: what came out in a sentence, tables with their forest plots, curves, costs.

What is missing is said where it would stand. Every number leads to the run it is from.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from layermem_bench.report import analysis, figures, study_tables
from layermem_bench.report import eval as evaluation
from layermem_bench.report.cost_tables import counted_section, given_section
from layermem_bench.report.drawings import learning_curves, paper_figures, paper_pictures
from layermem_bench.report.numbers import NOISE, format_interval
from layermem_bench.report.page import Figure, Page, Section, Table
from layermem_bench.report.paper_tables import claim_text, claims_table, numbers_table
from layermem_bench.results.analysis import Analysis
from layermem_bench.results.comparing import HOLDS, NOT, RULE, Line, judge, lines_of
from layermem_bench.results.costs import Costs
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import Interval
from layermem_bench.results.study import Board, Condition, Metric, RunRecord, StudyResult

_NOT_MEASURED = (
    "Time and memory were not measured. To do it: layermem costs PRESET --measure, for a preset of "
    "these sizes"
)
_NOT_COUNTED = (
    "Costs are not counted in closed form: the arms are models of transformers, none of them has "
    "trained a step, or what one starts from is not on this machine and no final model is saved."
)
_SHAPES = (
    "One preset in several shapes, LAYERSxWIDTH, of equally many parameters: all arms and shapes "
    "together, then the shapes of each arm. Each arm in each shape has a learning rate of its own."
)


def build(result: StudyResult, further: Iterable[Section] = ()) -> Page:
    """Return the page; ``further``: sections of what else was given, before the runs."""
    sections = [*_of_claims(result)]
    for board in result.boards:
        sections += _of_board(result, board)
    if shapes := list(study_tables.shapes_tables(result)):
        tables = [table for table, _, _ in shapes]
        drawn = [_forest(table.header[1], lines, metric) for table, lines, metric in shapes]
        sections.append(
            Section(title="Wide or deep", paragraphs=[_SHAPES], tables=tables, figures=drawn)
        )
    if not result.claims and (ranks := study_tables.ranks_table(result)):
        sections.append(Section(title="Do the boards agree", tables=[ranks]))
    if tried := [study_tables.rates_table(board) for board in result.boards if board.tried]:
        sections.append(Section(title="Learning rates", tables=tried))
    sections += [*_of_costs(result.boards), *further]
    if result.runs:
        sections.append(Section(title="The runs", tables=[study_tables.runs_table(result)]))
    title = result.title
    if result.scale:
        title = f"{result.name.removeprefix('paper/')}: {title}"
    return Page(
        title=title,
        lead=" ".join(filter(None, (sentence(result), _of_runs(result.runs)))),
        sections=[*sections, Section(title="Again", commands=[result.command])],
    )


def tables(result: StudyResult) -> list[Table]:
    """Return the tables for a screen."""
    if result.claims:
        return [claims_table(result), numbers_table(result)]
    shown = []
    for board in result.boards:
        for condition in board.conditions:
            for metric in study_tables.shown_metrics(result, board, condition):
                shown.append(study_tables.arms_table(result, board, condition, metric, narrow=True))
        shown += [study_tables.rates_table(board)] if board.tried else []
    shown += [table for table, _, _ in study_tables.shapes_tables(result)]
    ranks = study_tables.ranks_table(result)
    return [*shown, ranks] if ranks else shown


def sentence(result: StudyResult) -> str:
    """Say what came out."""
    if result.claims:
        verdicts = [judged.verdict for judged in judge(result)]
        if len(verdicts) == 1:
            ends = {HOLDS: "holds here", NOT: "does not hold here"}
            end = ends.get(verdicts[0], "can neither be shown nor refuted at this scale")
            return f"The paper: {result.claim} The difference that it claims {end}."
        holds, not_so = verdicts.count(HOLDS), verdicts.count(NOT)
        return (
            f"The paper: {result.claim} Of {len(verdicts)} differences that it claims {holds} "
            f"hold{'s' * (holds == 1)} here, {not_so} do{'es' * (not_so == 1)} not, and of "
            f"{len(verdicts) - holds - not_so} nothing can be said at this scale."
        )
    return " ".join(
        _said(result, board, condition) for board in result.boards for condition in board.conditions
    )


def _said(result: StudyResult, board: Board, condition: Condition) -> str:
    """Say which arms of a table differ from the first beyond noise."""
    metric = result.metric(board.metric)
    lines = lines_of(result, board, condition, board.metric)
    first, where = condition.arms[0].name, study_tables.title_of(board, condition)
    compared = sum(line.p is not None for line in lines)
    if not compared:
        few = "no pair of runs has ended"
        if len(condition.arms) == 1:
            mean = format_interval(lines[0].mean, metric.is_share)
            few = f"there is one arm, {first}{mean and f': {board.metric} {mean}'}"
        elif any(line.difference for line in lines):
            few = "one pair of seeds has no interval"
        return f"On {where}: {few}."
    groups: dict[str, list[str]] = {}
    lost = {line.arm: f"{line.arm} lacks {_seeds(line.missing)}" for line in lines if line.missing}
    if first in lost:
        return f"On {where}: {lost[first]}, so that no arm is judged."
    whole = [line for line in lines if line.p is not None and not line.missing]
    for line in whole:
        if line.difference is not None and line.p is not None and line.p < NOISE:
            is_better = (line.difference.mean > 0) == (metric.better == "higher")
            arm = f"{line.arm} ({format_interval(line.difference, metric.is_share, '+')})"
            groups.setdefault("ahead of" if is_better else "behind", []).append(arm)
    unjudged = f"; {', '.join(lost.values())} (not judged)" if lost else ""
    if not groups:
        return (
            f"On {where} no arm{' with all seeds' * bool(lost)} differs from {first} in "
            f"{board.metric} beyond noise{unjudged}."
        )
    told = "; ".join(
        f"{', '.join(arms)} {'is' if len(arms) == 1 else 'are'} {how} {first}"
        for how, arms in groups.items()
    )
    others = len(whole) - sum(map(len, groups.values()))
    rest = f"; {others} other{'s' * (others > 1)} within noise" if others else ""
    return f"On {where}, by {board.metric}: {told}{rest}{unjudged}."


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _of_runs(runs: Sequence[RunRecord]) -> str:
    """Say how many runs there are, and which are in no mean."""
    if not runs:
        return ""
    diverged, ended = (sum(run.state == state for run in runs) for state in ("diverged", "ended"))
    lost = len(runs) - diverged - ended
    parts = [f"{len(runs)} runs"]
    parts += [f"{diverged} diverged"] if diverged else []
    parts += [f"{lost} failed or not ended"] if lost else []
    return f"{', '.join(parts)}."


def _of_claims(result: StudyResult) -> list[Section]:
    """Return what came of the paper's claims, beside its numbers."""
    if not result.claims:
        return []
    missing = [f"Not evaluated: {result.missing}."] if result.missing else []
    by_unit: dict[bool, dict[str, Interval]] = {False: {}, True: {}}
    for each in judge(result):
        if each.difference is not None:
            is_share = result.metric(each.claim.quantity).is_share
            by_unit[is_share][claim_text(each)] = each.difference
    drawn = [
        Figure(
            svg=figures.forest(differences, is_share=is_share, across="difference"),
            caption="Claimed differences with 95% intervals.",
        )
        for is_share, differences in by_unit.items()
        if differences
    ]
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
            figures=paper_figures(result),
            switches=paper_pictures(result),
        ),
    ]


def _of_board(result: StudyResult, board: Board) -> list[Section]:
    """Return what came of one board: tables with forest plots, and how arms learn."""
    shown, drawn = [], []
    for condition in board.conditions:
        for metric in study_tables.shown_metrics(result, board, condition):
            shown.append(study_tables.arms_table(result, board, condition, metric))
            lines = lines_of(result, board, condition, metric)
            if any(line.p is not None for line in lines):
                title = f"{metric}, {study_tables.TITLES[condition.name]}"
                drawn.append(_forest(title, lines, result.metric(metric)))
        shown += study_tables.levels_tables(result, board, condition)
        drawn += _against_cache(result, board, condition)
    own = re.compile(rf"(?<![\w@+-]){re.escape(board.name)}(?![\w@+-])")
    notes = [] if result.claims else [note for note in result.notes if own.search(note)]
    sections = [Section(title=board.name, paragraphs=notes, tables=shown, figures=drawn)]
    if curves := learning_curves(result, board):
        counted = "FLOPs are counted in closed form: three forwards a step, attention to all keys."
        sections.append(
            Section(title=f"How they learn: {board.name}", paragraphs=[counted], figures=curves)
        )
    return sections


def _against_cache(result: StudyResult, board: Board, condition: Condition) -> list[Figure]:
    """Return what arms reach against what their caches hold, if these differ."""
    caches = {arm: cache.held for point in board.costs.points for arm, cache in point.cache.items()}
    lines = lines_of(result, board, condition, board.metric)
    points = {
        line.arm: (2.0 * caches[line.arm], line.mean)
        for line in lines
        if line.arm in caches and line.mean is not None
    }
    if len({held for held, _ in points.values()}) < 2:
        return []
    title = f"{board.metric}, {study_tables.TITLES[condition.name]}"
    across = "bytes of the cache for a token, in bfloat16"
    return [
        Figure(
            svg=figures.against(points, across=across, up=board.metric),
            caption=f"{title}, against what the cache of keys and values holds; means with 95% "
            "intervals.",
        )
    ]


def _forest(title: str, lines: Sequence[Line], metric: Metric) -> Figure:
    first = next((line.arm for line in lines if line.difference is None), "")
    differences = {line.arm: line.difference for line in lines if line.difference is not None}
    return Figure(
        svg=figures.forest(differences, is_share=metric.is_share, across=f"against {first}"),
        caption=f"{title}: paired differences from {first} with 95% intervals"
        f"{f'; {metric.better} is better' if metric.better else ''}.",
    )


def _of_costs(boards: Sequence[Board]) -> list[Section]:
    """Return what arms cost: as counted, and as measured where it was."""
    sections = []
    if measured := [table for board in boards if (table := study_tables.steps_table(board))]:
        sections.append(Section(title="What a step takes", tables=measured))
    for board in boards:
        costs = board.costs
        title = f"What it costs: {board.name}" if len(boards) > 1 else "What it costs"
        if not costs.points:
            sections.append(Section(title=title, paragraphs=[_NOT_COUNTED]))
        else:
            how = "" if board.steps else _NOT_MEASURED
            sections.append(counted_section(title, costs.points, how))
    return sections


def given_sections(
    result: StudyResult, analyses: Sequence[Path], evaluations: Sequence[Path], costs: Path | None
) -> list[Section]:
    """Return the sections about files and folders that other commands have written."""
    sections = []
    if costs is not None:
        sections.append(given_section("Costs that were given", read_result(Costs, costs)))
    for i, path in enumerate(evaluations, 1):
        suffix = f" ({i})" if len(evaluations) > 1 else ""
        sections += evaluation.sections(read_result(EvalResult, path), suffix)
    return sections + _of_analyses(result, [read_result(Analysis, path) for path in analyses])


def _of_analyses(result: StudyResult, analyses: Sequence[Analysis]) -> list[Section]:
    """Return what analyses show, each of their models in the colour of its run; without any, the
    command that would show what goes on inside."""
    if not analyses:
        return [_no_analysis(result)]
    styles: dict[str, int] = {}
    for board in result.boards:
        places = figures.styles_of(arm.name for arm in board.conditions[0].arms)
        styles |= {run.run_id: places[run.arm] for run in result.runs if run.arm in places}
    marks = {run.run_id: study_tables.run_mark(run) for run in result.runs}
    words = [", ".join(each.options.words or ()) for each in analyses]
    sections = []
    for shown, title in zip(analyses, words, strict=True):
        if words.count(title) > 1:
            title = f"{title}; {shown.folder}"
        suffix = f" ({title})" if len(words) > 1 else ""
        sections += analysis.sections(shown, marks, styles, suffix)
    return sections


def _no_analysis(result: StudyResult) -> Section:
    note = (
        "Entropy, separability, layouts and routers by layer stand here where an analysis is given "
        "as --analysis. None was."
    )
    ended = {run.arm: run.folder for run in reversed(result.runs) if run.state == "ended"}
    arms = [arm.name for board in result.boards for arm in board.conditions[0].arms]
    firsts = [ended[arm] for arm in arms if arm in ended]
    # The last arm beside the first: the plain decoder, where there is one.
    words = firsts[-1:] or ["RUN"]
    words += ["--against", firsts[0]] if len(firsts) > 1 else []
    how = "This makes one:" if firsts else "Once a run has ended, this makes one:"
    command = shlex.join(["layermem", "analyze", *words, "--out", "analysis"])
    return Section(title="What goes on inside", paragraphs=[f"{note} {how}"], commands=[command])
