"""Sections about results of other commands that a report is given: analyses, evaluations, costs."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from layermem.report import analysis, cost_tables
from layermem.report import eval as evaluation
from layermem.report.page import Section
from layermem.report.study_tables import run_mark
from layermem.results.analysis import Analysis
from layermem.results.costs import Costs
from layermem.results.eval import EvalResult
from layermem.results.files import read_result
from layermem.results.study import StudyResult


def given_sections(
    result: StudyResult, analyses: Sequence[Path], evaluations: Sequence[Path], costs: Path | None
) -> list[Section]:
    """Return the sections about files and folders that other commands have written."""
    sections = []
    if costs is not None:
        title = "Costs that were given"
        sections.append(cost_tables.given_section(title, read_result(Costs, costs)))
    return [
        *sections,
        *(
            section
            for i, path in enumerate(evaluations, 1)
            for section in evaluation.sections(
                read_result(EvalResult, path), f" ({i})" if len(evaluations) > 1 else ""
            )
        ),
        *(_of_analyses(result, [read_result(Analysis, path) for path in analyses])),
    ]


def _of_analyses(result: StudyResult, analyses: Sequence[Analysis]) -> list[Section]:
    """Return what analyses show, each of their models in the colour of its run; without any, the
    command that would show what goes on inside."""
    places = [
        [arm.name for arm in condition.arms]
        for board in result.boards
        for condition in board.conditions[:1]
    ]
    styles = {
        run.run_id: names.index(run.arm)
        for run in result.runs
        for names in places
        if run.arm in names
    }
    marks = {run.run_id: run_mark(run) for run in result.runs}
    words = [", ".join(each.options.words or ()) for each in analyses]
    sections = []
    for shown, title in zip(analyses, words, strict=True):
        if words.count(title) > 1:
            title = f"{title}; {shown.folder}"
        suffix = f" ({title})" if len(words) > 1 else ""
        sections += analysis.sections(shown, marks, styles, suffix)
    return sections or [_no_analysis(result)]


def _no_analysis(result: StudyResult) -> Section:
    note = (
        "Entropy, separability, layouts and routers by layer stand here where an analysis is given "
        "as --analysis. None was."
    )
    ended = {run.arm: run.folder for run in reversed(result.runs) if run.state == "ended"}
    arms = [arm.name for board in result.boards for arm in board.conditions[0].arms]
    firsts = [ended[arm] for arm in arms if arm in ended]
    # The last arm beside the first: the plain decoder, where there is one.
    words = ["layermem", "analyze", *firsts[-1:], *(["--against", firsts[0]] if firsts[1:] else [])]
    how = "This makes one:" if firsts else "Once a run has ended, this makes one:"
    command = shlex.join([*words, *([] if firsts else ["RUN"]), "--out", "analysis"])
    return Section(title="What goes on inside", paragraphs=[f"{note} {how}"], commands=[command])
