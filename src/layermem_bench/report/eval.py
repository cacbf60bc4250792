"""The page about evaluations of checkpoints, and its tables on a screen, from an ``EvalResult``."""

import statistics
from collections.abc import Mapping, Sequence

from layermem_bench.evals.task_catalog import TASKS, short_name
from layermem_bench.evals.task_records import expected_file, find_records
from layermem_bench.report import figures
from layermem_bench.report.numbers import (
    NOISE,
    format_ends,
    format_interval,
    format_number,
    format_p,
    format_spread,
)
from layermem_bench.report.page import Figure, Page, Section, Table
from layermem_bench.results import eval as results
from layermem_bench.results.eval import Difference, EvalResult, Row, Score
from layermem_bench.results.intervals import Interval, adjusted_p_values, interval, paired

_OVER_ITEMS = "Intervals over items say what other items would show, not what other seeds would."


def build(result: EvalResult) -> Page:
    """Return the page."""
    return Page(
        title=f"Evaluation of {' and '.join(result.models)}",
        lead=sentence(result),
        sections=[*sections(result), Section(title="Again", commands=[result.command])],
    )


def sections(result: EvalResult, suffix: str = "") -> list[Section]:
    """Return the sections of a page that show the result."""
    return [
        Section(
            title=f"{part.title}{suffix}",
            paragraphs=[part.how],
            tables=[table for name in part.tables for table in _tables(result, name)],
            figures=[drawn for name in part.tables for drawn in _figures(result, name)],
        )
        for part in result.parts
    ]


def tables(result: EvalResult) -> list[Table]:
    """Return the tables for a screen."""
    shown = [name for name, kind in result.tables.items() if not kind.is_long]
    return [table for name in shown for table in _tables(result, name)]


def sentence(result: EvalResult) -> str:
    """Say what came out: what differs from the first model beyond noise, by each table."""
    said, within_noise = list[str](), list[str]()
    for part in result.parts:
        for name in part.tables:
            verdicts = _verdicts(result, name)
            if told := _told(result, name, verdicts):
                said.append(told)
            elif verdicts:
                within_noise.append(name)
            elif name == next(iter(part.tables)):
                said.append(_alone(result, name))
    if within_noise:
        names = ", ".join(within_noise)
        said.append(f"Nothing differs from {_first(result)} beyond noise by {names}.")
    if len(result.models) > 1 and not _compares_arms(result):
        said.append(_OVER_ITEMS)
    return " ".join(said)


def over_seeds(result: EvalResult, name: str) -> Table | None:
    """Return the table of means over seeds of a table; None: there are no several seeds."""
    compared, differences = _rows_over_seeds(result, name), _over_seeds(result, name)
    if not compared:
        return None
    is_share, (first, *others) = result.tables[name].is_share, result.arms
    columns = {name: [short_name(row.name) for row in compared]}
    for arm, models in result.arms.items():
        means = [interval(_values(row, models)) for row in compared]
        columns[arm] = [format_interval(mean, is_share) for mean in means]
    for arm in others:
        cells = columns[f"{arm} against {first}"] = []
        for row in compared:
            difference, p = differences[row.name, arm]
            shown = "< 0.001" if p < 0.001 else f"= {p:.3f}"
            cells.append(f"{format_interval(difference, is_share, '+')} (p {shown})")
    return Table.of_columns(
        columns,
        f"Means over {len(result.arms[first])} seeds of training with 95% intervals by Student's "
        "t; differences are taken seed by seed, with p-values adjusted by Holm's method for all of "
        "this table. They do not pay for earlier looks at fewer seeds.",
    )


def list_tasks(places: Sequence[str]) -> Table:
    """Return the table of the paper's tasks, with the records of them that lie in some places."""
    tasks = list(TASKS.values())
    files = find_records(places, tasks)
    rows = []
    for task in tasks:
        paths = [path.name for of_split in files.get(task.name, {}).values() for path in of_split]
        data = task.data_set()
        rows.append(
            [
                short_name(task.name),
                task.tables,
                f"{task.chance:.1%}" if task.chance else "varies",
                *(f"{percent:.2f}" for percent in task.paper.values()),
                ", ".join(paths) or f"none; would be {expected_file(task)}",
                f"hub: {data}" if data else "not on the hub",
            ]
        )
    return Table(
        header=["task", "paper's table", "chance", *tasks[0].paper, "records", "else"],
        rows=rows,
        caption="Accuracies of the paper's 1B models in percent, 3-shot. A task with records runs "
        "offline; one without is fetched from the hub.",
    )


def _tables(result: EvalResult, name: str) -> list[Table]:
    """Return one table with those that go with it."""
    makers = (_scores, _counts, _differences, _sources, over_seeds)
    return [table for make in makers if (table := make(result, name)) is not None]


def _scores(result: EvalResult, name: str) -> Table:
    rows, kind = result.of(name).values(), result.tables[name]
    papers = dict.fromkeys(model for row in rows for model in row.paper)
    columns = {
        name: [short_name(row.name) for row in rows],
        "count": [_size(row) for row in rows],
        **{m: [_score(row.scores.get(m), kind) for row in rows] for m in result.models},
        "chance": [_share(row.chance) for row in rows],
        "most frequent": [_share(row.most_frequent) for row in rows],
        f"paper: {' / '.join(papers)}": [" / ".join(map(_share, r.paper.values())) for r in rows],
    }
    kept = {title: cells for title, cells in columns.items() if any(cells)}
    return Table.of_columns(kept, kind.caption)


def _size(row: Row) -> str:
    """Write how many items a row is of, or how many each model's is of where that differs."""
    counts = dict.fromkeys(f"{s.count:,}" for s in row.scores.values() if s.count is not None)
    return f"{' / '.join(counts)} {row.unit}".strip() if counts else ""


def _share(share: float | None) -> str:
    return "" if share is None else format_number(share, True)


def _score(score: Score | None, kind: results.Table) -> str:
    if score is None:
        return ""
    if kind.repeats == "folds" and score.repeats:
        return format_spread(score.value, statistics.pstdev(score.repeats), kind.is_share)
    over = _over(interval(score.repeats)) if len(score.repeats) > 1 else ""
    return format_ends(score.value, score.interval, kind.is_share) + over


def _over(repeats: Interval) -> str:
    """Write half the width of an interval over seeds of few-shot examples."""
    return f" ± {format_number(repeats.half, True)} over seeds"


def _counts(result: EvalResult, name: str) -> Table | None:
    """Return the table of what makes scores mean less than they seem to; None: nothing does."""
    counted: dict[tuple[str, ...], dict[str, str]] = {
        (row.name, model): {kind: f"{count:,}" for kind, count in score.counts.items()}
        for row in result.of(name).values()
        for model, score in row.scores.items()
        if score.counts
    }
    return _by_columns([f"counted in {name}", "model"], counted)


def _sources(result: EvalResult, name: str) -> Table | None:
    """Return the table of where items are from; None: all rows are of the same ones."""
    rows = result.of(name).values()
    return _by_columns([name], {(row.name,): row.about for row in rows if row.about})


def _by_columns(
    header: Sequence[str], cells: Mapping[tuple[str, ...], Mapping[str, str]]
) -> Table | None:
    """Return a table of cells by row and column; None: there are no rows."""
    columns = dict.fromkeys(column for of_row in cells.values() for column in of_row)
    rows = [
        [short_name(row), *more, *(of_row.get(column, "") for column in columns)]
        for (row, *more), of_row in cells.items()
    ]
    return Table(header=[*header, *columns], rows=rows) if rows else None


def _differences(result: EvalResult, name: str) -> Table | None:
    """Return the table of differences from the first model; None: there are none."""
    first, *others = result.models
    is_share = result.tables[name].is_share

    def cell(row: Row, model: str) -> str:
        difference = row.differences.get(model)
        if difference is None:
            return f"other {row.unit}"
        text = format_ends(difference.value, difference.interval, is_share, "+")
        ours, theirs = row.scores[model].repeats, row.scores[first].repeats
        text += _over(paired(ours, theirs)) if len(ours) > 1 else ""
        if difference.p is not None:
            return f"{text}, p {format_p(difference.p).removesuffix(', within noise')}"
        return text if difference.interval else f"{text} (one item)"

    rows = [row for row in result.of(name).values() if row.differences]
    columns = {f"{name}, against {first}": [short_name(row.name) for row in rows]}
    columns |= {model: [cell(row, model) for row in rows] for model in others}
    noise = f"From p {NOISE} on, or with 0 in its interval, a difference is within noise."
    return Table.of_columns(columns, f"{noise} {_OVER_ITEMS}") if rows else None


def _compares_arms(result: EvalResult) -> bool:
    """Return whether arms of several seeds are compared, in place of single models."""
    return len(result.arms) > 1 and all(len(models) > 1 for models in result.arms.values())


def _rows_over_seeds(result: EvalResult, name: str) -> list[Row]:
    """Return the rows of a table that have means over several seeds."""
    if not any(len(models) > 1 for models in result.arms.values()) or result.tables[name].is_long:
        return []
    rows = result.of(name).values()
    return [row for row in rows if row.is_comparable and len(row.scores) == len(result.models)]


def _over_seeds(result: EvalResult, name: str) -> dict[tuple[str, str], tuple[Interval, float]]:
    """Return the difference of each row and arm from the first arm, seed by seed, with its p."""
    first, *others = result.arms or ("",)
    differences = {
        (row.name, arm): paired(*(_values(row, result.arms[each]) for each in (arm, first)))
        for row in _rows_over_seeds(result, name)
        for arm in others
    }
    adjusted = adjusted_p_values(differences)
    return {key: (difference, adjusted[key]) for key, difference in differences.items()}


def _values(row: Row, models: Sequence[str]) -> list[float]:
    return [row.scores[model].value for model in models]


def _first(result: EvalResult) -> str:
    """Return the arm, or the model, that others are compared with."""
    return next(iter(result.arms)) if _compares_arms(result) else result.models[0]


def _verdicts(result: EvalResult, name: str) -> dict[tuple[str, str], float | None]:
    """Return of each row and arm, or model, its difference from the first; None: within noise."""
    if of_arms := _over_seeds(result, name):
        return {key: None if p >= NOISE else each.mean for key, (each, p) in of_arms.items()}
    return {
        (row.name, model): each.value if _is_beyond_noise(each) else None
        for row in result.of(name).values()
        for model, each in row.differences.items()
        if each.interval or each.p is not None
    }


def _told(result: EvalResult, name: str, verdicts: Mapping[tuple[str, str], float | None]) -> str:
    """Say which models, or arms, differ from the first in which rows; nothing: none does."""
    kind, first = result.tables[name], _first(result)
    groups: dict[str, list[str]] = {}
    for (row, model), value in verdicts.items():
        if value is not None:
            how = "ahead of" if (value > 0) == (kind.better == "higher") else "behind"
            shown = f"{short_name(row)} ({format_number(value, kind.is_share, '+')})"
            groups.setdefault(f"{model} is {how} {first} in", []).append(shown)
    told = "; ".join(f"{group} {', '.join(rows)}" for group, rows in groups.items())
    return f"By {name}: {told}." if told else ""


def _alone(result: EvalResult, name: str) -> str:
    """Say what models come to in the row that sums up a table: the mean of others, or the first."""
    rows, is_share = list(result.of(name).values()), result.tables[name].is_share
    row = rows[0] if rows[-1].unit else rows[-1]
    scores = row.scores.items()
    values = (f"{model} {format_number(score.value, is_share)}" for model, score in scores)
    guess = "" if row.chance is None else f" (a guess: {_share(row.chance)})"
    return f"{name}, {short_name(row.name)}{guess}: {', '.join(values)}."


def _is_beyond_noise(difference: Difference) -> bool:
    """Whether both say so: over few-shot seeds the p-value is of the first, the interval of all."""
    is_small = difference.p is None or difference.p < NOISE
    excludes_zero = not difference.interval or (
        not difference.interval[0] <= 0 <= difference.interval[1]
    )
    return is_small and excludes_zero


def _figures(result: EvalResult, name: str) -> list[Figure]:
    """Return what is drawn of a table: a curve, bars beside chance, forest plots of differences."""
    first, *rows = result.of(name).values()
    drawn = [_curve(result, name)] if result.tables[name].across else []
    bars = {
        model: (score.interval[0], score.value, score.interval[1])
        for model, score in first.scores.items()
        if score.interval
    }
    if first.name == "all" and first.chance is not None and bars:
        svg = figures.bars(bars, up=name, chance=first.chance)
        caption = f"{name} with 95% intervals. Dotted: a guess."
        drawn.append(Figure(svg=svg, caption=caption))
    over_items = {
        (row.name, model): Interval(
            mean=each.value,
            # An end may have been cut at 100%.
            half=max(abs(end - each.value) for end in each.interval),
            count=row.scores[model].count or 0,
        )
        for row in (first, *rows)
        for model, each in row.differences.items()
        if each.interval
    }
    if over_items:
        drawn.append(_forest(result, name, over_items, "items", result.models[0]))
    if of_arms := {key: difference for key, (difference, _) in _over_seeds(result, name).items()}:
        drawn.append(_forest(result, name, of_arms, "seeds", next(iter(result.arms))))
    return drawn


def _curve(result: EvalResult, name: str) -> Figure:
    kind, series = result.tables[name], {}
    for model in result.models:
        placed = {
            row.at: row.scores[model].value
            for row in result.of(name).values()
            if row.at is not None and model in row.scores
        }
        series[model] = list(placed), list(placed.values())
    scale: figures.Scale = "share" if kind.is_share else "number"
    plot = figures.curves(series, across=kind.across, up=name, scale=scale)
    return Figure(svg=figures.drawing(plot), caption=f"{name} by {kind.across}.")


def _forest(
    result: EvalResult,
    name: str,
    differences: Mapping[tuple[str, str], Interval],
    over: str,
    first: str,
) -> Figure:
    kind, several = result.tables[name], len({other for _, other in differences}) > 1
    named = {
        f"{short_name(row)}, {other}" if several else short_name(row): difference
        for (row, other), difference in differences.items()
    }
    return Figure(
        svg=figures.forest(named, is_share=kind.is_share, across=f"against {first}"),
        caption=f"{name}: differences from {first} with 95% intervals over {over}; {kind.better} "
        "is better.",
    )
