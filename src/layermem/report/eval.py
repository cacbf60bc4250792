"""The page about evaluations of checkpoints, and its tables on a screen, from an ``EvalResult``.

Each table has the models side by side; below it what tempers it, differences from the first model
and, where models are runs that differ in the seed alone, means over seeds. Every table of
differences has a forest plot.

It does not know: torch, models, how anything was measured.
"""

import statistics
from collections.abc import Mapping, Sequence

from layermem.evals.task_catalog import short_name
from layermem.intervals import Interval, adjusted_p_values, interval, paired
from layermem.report import figures
from layermem.report.numbers import (
    NOISE,
    format_ends,
    format_interval,
    format_number,
    format_p,
)
from layermem.report.page import Figure, Page, Section, Table
from layermem.results import eval as results
from layermem.results.eval import Difference, EvalResult, Part, Row, Score

_OVER_SEEDS = (
    "Means over {seeds} seeds of training with 95% intervals by Student's t; differences are taken "
    "seed by seed, with p-values adjusted by Holm's method for all of this table."
)
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
            tables=[table for name in part.tables for table in _tables(result, part, name)],
            figures=[drawn for name in part.tables for drawn in _figures(result, part, name)],
        )
        for part in result.parts
    ]


def tables(result: EvalResult) -> list[Table]:
    """Return the tables for a screen."""
    return [
        table
        for part in result.parts
        for name, kind in part.tables.items()
        if not kind.is_long
        for table in _tables(result, part, name)
    ]


def sentence(result: EvalResult) -> str:
    """Say what came out: what differs from the first model beyond noise, by each table."""
    said, within_noise = list[str](), list[str]()
    for part in result.parts:
        for name, kind in part.tables.items():
            verdicts = _verdicts(result, name, kind)
            if told := _told(result, name, kind, verdicts):
                said.append(told)
            elif verdicts:
                within_noise.append(name)
            elif name == next(iter(part.tables)):
                said.append(_alone(result, name, kind))
    if within_noise:
        names = ", ".join(within_noise)
        said.append(f"Nothing differs from {_first(result)} beyond noise by {names}.")
    if len(result.models) > 1 and not _has_seeds(result):
        said.append(_OVER_ITEMS)
    return " ".join(said)


def over_seeds(result: EvalResult, name: str) -> Table | None:
    """Return the table of means over seeds of a table; None: there are no several seeds."""
    differences = _over_seeds(result, name)
    if not differences:
        return None
    (kind,) = (part.tables[name] for part in result.parts if name in part.tables)
    first, *others = result.arms
    header = [name, *result.arms, *(f"{arm} against {first}" for arm in others)]
    rows = []
    for row in _rows_over_seeds(result, name):
        means = (interval(_values(row, result.arms[arm])) for arm in result.arms)
        cells = [format_interval(mean, kind.is_share) for mean in means]
        for arm in others:
            difference, p = differences[row.name, arm]
            shown = f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
            cells.append(f"{format_interval(difference, kind.is_share, '+')} ({shown})")
        rows.append([short_name(row.name), *cells])
    return Table(
        header=header, rows=rows, caption=_OVER_SEEDS.format(seeds=len(result.arms[first]))
    )


def _tables(result: EvalResult, part: Part, name: str) -> list[Table]:
    """Return one table of a part with those that go with it."""
    rows, kind = list(result.of(name).values()), part.tables[name]
    found = [
        _scores(result, name, kind, rows),
        _counts(name, rows),
        _differences(result, name, kind, rows),
        _sources(name, rows),
        None if kind.is_long else over_seeds(result, name),
    ]
    return [table for table in found if table is not None]


def _scores(result: EvalResult, name: str, kind: results.Table, rows: Sequence[Row]) -> Table:
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
    return Table(
        header=list(kept),
        rows=[list(row) for row in zip(*kept.values(), strict=True)],
        caption=kind.caption,
    )


def _size(row: Row) -> str:
    """Write how many items a row is of, or how many each model's is of where that differs."""
    counts = dict.fromkeys(f"{s.count:,}" for s in row.scores.values() if s.count is not None)
    return f"{' / '.join(counts)} {row.unit}".strip()


def _share(share: float | None) -> str:
    return "" if share is None else format_number(share, True)


def _score(score: Score | None, kind: results.Table) -> str:
    if score is None:
        return ""
    if kind.repeats == "folds" and score.repeats:
        deviation = statistics.pstdev(score.repeats)
        of_folds = Interval(mean=score.value, half=deviation, count=len(score.repeats))
        return format_interval(of_folds, kind.is_share)
    over = interval(score.repeats) if len(score.repeats) > 1 else None
    return format_ends(score.value, score.interval, kind.is_share) + _over(over)


def _over(repeats: Interval | None) -> str:
    """Write half the width of an interval over seeds of few-shot examples, if there are several."""
    return "" if repeats is None else f" ± {format_number(repeats.half, True)} over seeds"


def _counts(name: str, rows: Sequence[Row]) -> Table | None:
    """Return the table of what makes scores mean less than they seem to; None: nothing does."""
    counted = [
        (row.name, model, score.counts)
        for row in rows
        for model, score in row.scores.items()
        if score.counts
    ]
    if not counted:
        return None
    kinds = dict.fromkeys(kind for _, _, counts in counted for kind in counts)
    return Table(
        header=[f"counted in {name}", "model", *kinds],
        rows=[
            [
                short_name(row),
                model,
                *(f"{counts[kind]:,}" if kind in counts else "" for kind in kinds),
            ]
            for row, model, counts in counted
        ],
    )


def _differences(
    result: EvalResult, name: str, kind: results.Table, rows: Sequence[Row]
) -> Table | None:
    """Return the table of differences from the first model; None: there are none."""
    first, *others = result.models
    compared = [row for row in rows if row.differences]
    if not compared:
        return None

    def cell(row: Row, model: str) -> str:
        difference = row.differences.get(model)
        if difference is None:
            return f"other {row.unit}"
        text = format_ends(difference.value, difference.interval, kind.is_share, "+")
        ours, theirs = row.scores[model].repeats, row.scores[first].repeats
        text += _over(paired(ours, theirs) if len(ours) > 1 else None)
        alone = "" if difference.interval else " (one item)"
        return f"{text}{alone}" if difference.p is None else f"{text}, p {format_p(difference.p)}"

    return Table(
        header=[f"{name}, against {first}", *others],
        rows=[[short_name(row.name), *(cell(row, m) for m in others)] for row in compared],
        caption=_OVER_ITEMS,
    )


def _sources(name: str, rows: Sequence[Row]) -> Table | None:
    columns = dict.fromkeys(kind for row in rows for kind in row.about)
    if not columns:
        return None
    return Table(
        header=[name, *columns],
        rows=[
            [short_name(r.name), *(r.about.get(c, "") for c in columns)] for r in rows if r.about
        ],
        caption="Where items and few-shot examples come from.",
    )


def _has_seeds(result: EvalResult) -> bool:
    return bool(result.arms) and len(next(iter(result.arms.values()))) > 1


def _rows_over_seeds(result: EvalResult, name: str) -> list[Row]:
    """Return the rows of a table that all models can be compared by."""
    rows = result.of(name).values() if _has_seeds(result) else ()
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
    return next(iter(result.arms)) if _has_seeds(result) else result.models[0]


def _verdicts(
    result: EvalResult, name: str, kind: results.Table
) -> dict[tuple[str, str], float | None]:
    """Return of each row and arm, or model, its difference from the first; None: within noise."""
    if _has_seeds(result) and not kind.is_long:
        of_arms = _over_seeds(result, name)
        return {key: None if p >= NOISE else each.mean for key, (each, p) in of_arms.items()}
    return {
        (row.name, model): each.value if _is_beyond_noise(each) else None
        for row in result.of(name).values()
        for model, each in row.differences.items()
    }


def _told(
    result: EvalResult,
    name: str,
    kind: results.Table,
    verdicts: Mapping[tuple[str, str], float | None],
) -> str:
    """Say which models, or arms, differ from the first in which rows; nothing: none does."""
    groups: dict[tuple[str, str], list[str]] = {}
    for (row, model), value in verdicts.items():
        if value is not None:
            how = "ahead of" if (value > 0) == (kind.better == "higher") else "behind"
            shown = f"{short_name(row)} ({format_number(value, kind.is_share, '+')})"
            groups.setdefault((model, how), []).append(shown)
    if not groups:
        return ""
    first = _first(result)
    parts = (f"{m} is {how} {first} in {', '.join(rows)}" for (m, how), rows in groups.items())
    return f"By {name}: {'; '.join(parts)}."


def _alone(result: EvalResult, name: str, kind: results.Table) -> str:
    """Say what models come to in the row that sums up a table: the mean of others, or the first."""
    rows = list(result.of(name).values())
    row = rows[0] if rows[-1].unit else rows[-1]
    scores = row.scores.items()
    values = (f"{model} {format_number(score.value, kind.is_share)}" for model, score in scores)
    guess = "" if row.chance is None else f" (a guess: {_share(row.chance)})"
    return f"{name}, {short_name(row.name)}{guess}: {', '.join(values)}."


def _is_beyond_noise(difference: Difference) -> bool:
    if difference.p is not None:
        return difference.p < NOISE
    return bool(difference.interval) and not difference.interval[0] <= 0 <= difference.interval[1]


def _figures(result: EvalResult, part: Part, name: str) -> list[Figure]:
    """Return what is drawn of a table: a curve, bars beside chance, forest plots of differences."""
    kind, rows = part.tables[name], list(result.of(name).values())
    drawn = []
    if kind.across:
        drawn.append(_curve(result, name, kind, rows))
    shown = {model: (s.interval[0], s.value, s.interval[1]) for model, s in rows[0].scores.items()
             if s.interval}  # fmt: skip
    if rows[0].name == "all" and rows[0].chance is not None and shown:
        svg = figures.bars(shown, up=name, chance=rows[0].chance)
        caption = f"{name} with 95% intervals. Dotted: a guess."
        drawn.append(Figure(svg=svg, caption=caption))
    several = len(result.models) > 2
    of_items = {
        f"{short_name(row.name)}, {model}" if several else short_name(row.name): _as_interval(
            difference
        )
        for row in rows
        for model, difference in row.differences.items()
        if difference.interval
    }
    if of_items:
        drawn.append(_forest(name, kind, of_items, result.models[0], "items"))
    of_seeds = {} if kind.is_long else _over_seeds(result, name)
    if of_seeds:
        first = next(iter(result.arms))
        named = {
            f"{short_name(row)}, {arm}" if len(result.arms) > 2 else short_name(row): difference
            for (row, arm), (difference, _) in of_seeds.items()
        }
        drawn.append(_forest(name, kind, named, first, "seeds"))
    return drawn


def _curve(result: EvalResult, name: str, kind: results.Table, rows: Sequence[Row]) -> Figure:
    placed = [(row.at, row.scores) for row in rows if row.at is not None]
    series = {
        model: (
            [at for at, scores in placed if model in scores],
            [scores[model].value for _, scores in placed if model in scores],
        )
        for model in result.models
    }
    scale: figures.Scale = "share" if kind.is_share else "number"
    svg = figures.curves(series, across=kind.across, up=name, scale=scale)
    return Figure(svg=svg, caption=f"{name} by {kind.across}.")


def _forest(
    name: str, kind: results.Table, differences: Mapping[str, Interval], first: str, over: str
) -> Figure:
    return Figure(
        svg=figures.forest(differences, is_share=kind.is_share, across=f"against {first}"),
        caption=f"{name}: differences from {first} with 95% intervals over {over}; {kind.better} "
        "is better.",
    )


def _as_interval(difference: Difference) -> Interval:
    """Return a difference as what a forest plot draws; an end may have been cut at 100%."""
    half = max(abs(end - difference.value) for end in difference.interval)
    return Interval(mean=difference.value, half=half, count=2)
