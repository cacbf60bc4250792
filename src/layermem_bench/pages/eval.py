"""The page about evaluations of checkpoints, and its tables on a screen, from an ``EvalResult``."""

from collections.abc import Sequence

from layermem_bench.evals import result as results
from layermem_bench.evals.benchmark_records import TASKS
from layermem_bench.evals.result import EvalResult, Row, Score
from layermem_bench.pages import figures
from layermem_bench.pages.page import (
    Figure,
    Page,
    Section,
    Table,
    format_ends,
    format_interval,
    format_number,
    format_p,
    with_p,
)
from layermem_bench.statistics import LEVEL, Interval, adjusted_p_values, interval, paired

_OVER_ITEMS = "Intervals over items say what other items would show, not what other seeds would."


def build(result: EvalResult) -> Page:
    """Return the page."""
    sections = [
        Section(
            part.title,
            [part.how],
            tables=[table for name in part.tables for table in _tables(result, name)],
            figures=[drawn for name in part.tables for drawn in _figures(result, name)],
        )
        for part in result.parts
    ]
    again = Section("Again", commands=[result.command])
    title = f"Evaluation of {' and '.join(result.models)}"
    return Page(title=title, lead=_OVER_ITEMS, sections=[*sections, again])


def tables(result: EvalResult) -> list[Table]:
    """Return the tables for a screen."""
    return [table for name in result.tables for table in _tables(result, name)]


def _tables(result: EvalResult, name: str) -> list[Table]:
    """Return one table with those that go with it."""
    made = [make(result, name) for make in (_scores, _differences, over_seeds)]
    return [table for table in made if table.rows]


def _scores(result: EvalResult, name: str) -> Table:
    kind, rows = result.tables[name], result.of(name).values()
    shown = [
        {
            name: row.name,
            "count": _size(row),
            **{m: _score(row.scores[m], kind) if m in row.scores else "" for m in result.models},
            "chance": format_number(row.chance, True),
            "most frequent": format_number(row.most_frequent, True),
            "noted": _noted(row),
        }
        for row in rows
    ]
    return Table.of(shown, kind.caption)


def _size(row: Row) -> str:
    """Write how many items a row is of, or how many each model's is of where that differs."""
    counts = dict.fromkeys(f"{s.count:,}" for s in row.scores.values() if s.count is not None)
    return f"{' / '.join(counts)} {row.unit}".strip() if counts else ""


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


def _differences(result: EvalResult, name: str) -> Table:
    """Return the table of differences from the first model; no rows: there are none."""
    first, *others = result.models
    is_share, rows = result.tables[name].is_share, []
    for row in result.of(name).values():
        cells = {f"{name}, against {first}": row.name}
        for model in others if row.differences else ():
            cells[model] = f"other {row.unit}"
            if (each := row.differences.get(model)) is not None:
                text = format_ends(each.value, each.interval, is_share, "+")
                ours, theirs = row.scores[model].repeats, row.scores[first].repeats
                text += _over(paired(ours, theirs)) if len(ours) > 1 else ""
                one = each.p is None
                cells[model] = f"{text} (one item)" if one else with_p(text, format_p(each.p))
        rows += [cells] if row.differences else []
    return Table.of(rows, f"A difference with p < {LEVEL} is told from 0. {_OVER_ITEMS}")


def over_seeds(result: EvalResult, name: str) -> Table:
    """Return the table of means over seeds of a table; no rows: there are no several seeds."""
    values, differences = _over_seeds(result, name)
    is_share, adjusted = result.tables[name].is_share, adjusted_p_values(differences)
    rows = {}
    for row, by_arm in values.items():
        means = {arm: format_interval(interval(of), is_share) for arm, of in by_arm.items()}
        rows[row] = {name: row, **means}
    for (row, arm), difference in differences.items():
        text = format_interval(difference, is_share, "+")
        told = with_p(text, format_p(adjusted[row, arm]))
        rows[row][f"{arm} against {next(iter(result.arms))}"] = told
    return Table.of(
        list(rows.values()),
        "Means over seeds of training with 95% intervals by Student's t; differences are taken "
        "seed by seed, with p-values adjusted by Holm's method for all of this table.",
    )


def _over_seeds(
    result: EvalResult, name: str
) -> tuple[dict[str, dict[str, list[float]]], dict[tuple[str, str], Interval]]:
    """Return the values of rows over several seeds by arm, and by row and arm the differences from
    the first arm."""
    if not any(len(models) > 1 for models in result.arms.values()):
        return {}, {}
    values = {
        row.name: {arm: [row.scores[m].value for m in of] for arm, of in result.arms.items()}
        for row in result.of(name).values()
        if row.is_comparable and len(row.scores) == len(result.models)
    }
    first, *others = result.arms
    return values, {
        (row, arm): paired(by_arm[arm], by_arm[first])
        for arm in others
        for row, by_arm in values.items()
    }


def _figures(result: EvalResult, name: str) -> list[Figure]:
    """Return a forest plot of the differences of arms over seeds, if there are any."""
    kind, (_, differences) = result.tables[name], _over_seeds(result, name)
    if not differences:
        return []
    first = next(iter(result.arms))
    named = {f"{row}, {arm}": difference for (row, arm), difference in differences.items()}
    caption = f"{name}: differences from {first} over seeds with 95% intervals; {kind.better} is "
    across = f"against {first}"
    return [figures.forest(named, f"{caption}better.", is_share=kind.is_share, across=across)]


def list_tasks(folders: Sequence[str]) -> Table:
    """Return the table of the paper's tasks, with the records of them that lie in some folders."""
    rows = []
    for task in TASKS.values():
        files = task.find_records(folders).values()
        names = ", ".join(path.name for of_split in files for path in of_split)
        rows.append({"task": task.name, "records": names or f"none; would be {task.expected_file}"})
    caption = (
        "A task with records runs offline; one without is fetched from the hub, which does "
        "not have the parts of logical deduction."
    )
    return Table.of(rows, caption)
