"""The page about evaluations of checkpoints, and its tables on a screen, from an ``EvalResult``."""

from collections.abc import Sequence
from functools import partial

from layermem_bench.evals import result as results
from layermem_bench.evals.benchmark_records import TASKS
from layermem_bench.evals.result import EvalResult, Row, Score
from layermem_bench.pages import figures
from layermem_bench.pages.numbers import (
    format_ends,
    format_interval,
    format_number,
    format_p,
)
from layermem_bench.pages.page import Columns, Figure, Page, Section, Table
from layermem_bench.statistics import NOISE, Interval, adjusted_p_values, interval, paired

_OVER_ITEMS = "Intervals over items say what other items would show, not what other seeds would."


def build(result: EvalResult) -> Page:
    """Return the page."""
    sections = [
        Section(
            title=part.title,
            paragraphs=[part.how],
            tables=[table for name in part.tables for table in _tables(result, name)],
            figures=[drawn for name in part.tables for drawn in _figures(result, name)],
        )
        for part in result.parts
    ]
    return Page(
        title=f"Evaluation of {' and '.join(result.models)}",
        lead=_OVER_ITEMS,
        sections=[*sections, Section(title="Again", commands=[result.command])],
    )


def tables(result: EvalResult) -> list[Table]:
    """Return the tables for a screen."""
    return [table for name in result.tables for table in _tables(result, name)]


def _tables(result: EvalResult, name: str) -> list[Table]:
    """Return one table with those that go with it."""
    makers = (_scores, _differences, over_seeds)
    return [table for make in makers if (table := make(result, name)) is not None]


def _scores(result: EvalResult, name: str) -> Table:
    kind, rows = result.tables[name], result.of(name).values()

    def score(model: str, row: Row) -> str:
        return _score(row.scores[model], kind) if model in row.scores else ""

    columns: Columns[Row] = {
        name: lambda row: row.name,
        "count": _size,
        **{model: partial(score, model) for model in result.models},
        "chance": lambda row: _share(row.chance),
        "most frequent": lambda row: _share(row.most_frequent),
        "noted": _noted,
    }
    return Table.over(rows, columns, kind.caption)


def _size(row: Row) -> str:
    """Write how many items a row is of, or how many each model's is of where that differs."""
    counts = dict.fromkeys(f"{s.count:,}" for s in row.scores.values() if s.count is not None)
    return f"{' / '.join(counts)} {row.unit}".strip() if counts else ""


def _share(share: float | None) -> str:
    return "" if share is None else format_number(share, True)


def _score(score: Score, kind: results.Table) -> str:
    over = _over(interval(score.repeats)) if len(score.repeats) > 1 else ""
    return format_ends(score.value, score.interval, kind.is_share) + over


def _over(repeats: Interval) -> str:
    """Write half the width of an interval over seeds of few-shot examples."""
    return f" ± {format_number(repeats.half, True)} over seeds"


def _noted(row: Row) -> str:
    """Write where items are from, and what makes scores mean less than they seem to."""
    counts = [
        f"{model}: {', '.join(f'{count:,} {kind}' for kind, count in score.counts.items())}"
        for model, score in row.scores.items()
        if score.counts
    ]
    return "; ".join([*(f"{what} {where}" for what, where in row.about.items()), *counts])


def _differences(result: EvalResult, name: str) -> Table | None:
    """Return the table of differences from the first model; None: there are none."""
    first, *others = result.models
    is_share = result.tables[name].is_share

    def cell(model: str, row: Row) -> str:
        difference = row.differences.get(model)
        if difference is None:
            return f"other {row.unit}"
        text = format_ends(difference.value, difference.interval, is_share, "+")
        ours, theirs = row.scores[model].repeats, row.scores[first].repeats
        text += _over(paired(ours, theirs)) if len(ours) > 1 else ""
        p = difference.p
        return f"{text} (one item)" if p is None else f"{text}, p {format_p(p).split(',')[0]}"

    columns: Columns[Row] = {
        f"{name}, against {first}": lambda row: row.name,
        **{model: partial(cell, model) for model in others},
    }
    rows = [row for row in result.of(name).values() if row.differences]
    noise = f"From p {NOISE} on, or with 0 in its interval, a difference is within noise."
    return Table.over(rows, columns, f"{noise} {_OVER_ITEMS}") if rows else None


def over_seeds(result: EvalResult, name: str) -> Table | None:
    """Return the table of means over seeds of a table; None: there are no several seeds."""
    compared, differences = _over_seeds(result, name)
    if not compared:
        return None
    is_share, adjusted = result.tables[name].is_share, adjusted_p_values(differences)
    columns = {name: [row.name for row in compared]}
    for arm, models in result.arms.items():
        means = [interval(_values(row, models)) for row in compared]
        columns[arm] = [format_interval(mean, is_share) for mean in means]
    for (row, arm), difference in differences.items():
        p = adjusted[row, arm]
        shown = f"(p {'< 0.001' if p < 0.001 else f'= {p:.3f}'})"
        column = columns.setdefault(f"{arm} against {next(iter(result.arms))}", [])
        column.append(f"{format_interval(difference, is_share, '+')} {shown}")
    return Table.of_columns(
        columns,
        f"Means over {len(next(iter(result.arms.values())))} seeds of training with 95% intervals "
        "by Student's t; differences are taken seed by seed, with p-values adjusted by Holm's "
        "method for all of this table. They do not pay for earlier looks at fewer seeds.",
    )


def _over_seeds(result: EvalResult, name: str) -> tuple[list[Row], dict[tuple[str, str], Interval]]:
    """Return the rows that have means over several seeds, and by row and arm the differences from
    the first arm."""
    if not any(len(models) > 1 for models in result.arms.values()):
        return [], {}
    rows = [
        row
        for row in result.of(name).values()
        if row.is_comparable and len(row.scores) == len(result.models)
    ]
    (_, first), *others = result.arms.items()
    differences = {
        (row.name, arm): paired(_values(row, models), _values(row, first))
        for arm, models in others
        for row in rows
    }
    return rows, differences


def _values(row: Row, models: Sequence[str]) -> list[float]:
    return [row.scores[model].value for model in models]


def _figures(result: EvalResult, name: str) -> list[Figure]:
    """Return a forest plot of the differences of arms over seeds, if there are any."""
    kind, (_, differences) = result.tables[name], _over_seeds(result, name)
    if not differences:
        return []
    first = next(iter(result.arms))
    named = {f"{row}, {arm}": difference for (row, arm), difference in differences.items()}
    svg = figures.forest(named, is_share=kind.is_share, across=f"against {first}")
    caption = f"{name}: differences from {first} over seeds with 95% intervals; {kind.better} is "
    return [Figure(svg=svg, caption=f"{caption}better.")]


def list_tasks(folders: Sequence[str]) -> Table:
    """Return the table of the paper's tasks, with the records of them that lie in some folders."""
    rows = []
    for task in TASKS.values():
        files = task.find_records(folders).values()
        names = ", ".join(path.name for of_split in files for path in of_split)
        rows.append([task.name, names or f"none; would be {task.expected_file}"])
    return Table(
        header=["task", "records"],
        rows=rows,
        caption="A task with records runs offline; one without is fetched from the hub, which does "
        "not have the parts of logical deduction.",
    )
