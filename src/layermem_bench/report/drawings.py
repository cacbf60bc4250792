"""Figures of a study: how arms learn, and what the paper draws, of our numbers beside its own."""

import math
from collections.abc import Callable, Iterator, Mapping

from layermem_bench.report import figures
from layermem_bench.report.curves import curves_of_arms
from layermem_bench.report.depth import Rows, draw_heads, draw_layers, panels
from layermem_bench.report.numbers import format_number
from layermem_bench.report.page import Figure, Switch
from layermem_bench.results.intervals import interval
from layermem_bench.results.study import Board, Drawing, Picture, StudyResult

# Figures of learning: the field of a validation that goes up, its label, how numbers are written.
_UP: tuple[tuple[str, str, figures.Scale], ...] = (
    ("val_loss", "validation loss", "number"),
    ("val_accuracy", "right answers", "share"),
)
_ACROSS = {"tokens": "tokens", "flops": "training FLOPs"}
_PAPER = "the paper"


def learning_curves(result: StudyResult, board: Board) -> list[Figure]:
    """Draw loss and right answers per token and per FLOP, but for what the paper draws as well."""
    drawn = []
    for up, label, scale in _UP:
        for across in _ACROSS:
            papers = any((each.across, each.up) == (across, label) for each in result.drawings)
            figure = None if papers else _curve(result, board, up, label, scale, across)
            drawn += [figure] if figure else []
    return drawn


def paper_figures(result: StudyResult) -> list[Figure]:
    """Draw what the paper draws, as far as there are numbers of it."""
    drawn = []
    for drawing in result.drawings:
        if drawing.kind == "curves":
            for board in result.boards:
                of = next(each for each in _UP if each[1] == drawing.up)
                drawn.append(_curve(result, board, *of, drawing.across, _printed(result)))
        else:
            drawn.append(_lines(result, drawing) if drawing.points else _bars(result, drawing))
    return [figure for figure in drawn if figure]


def paper_pictures(result: StudyResult) -> list[Switch]:
    """Draw what was seen inside models: what routers read, or where words lie, layer by layer."""
    captions = {
        "heatmap": "Absolute router weights, averaged over heads, each row divided by its sum.",
        "heads": "what each key-value head reads of each layer.",
        "words": "values that attention reads; t-SNE of vectors normalised to length 1.",
    }
    return [
        panels(each.name, each.panels, _drawer(each), captions[each.kind], first=-1)
        for each in result.pictures
    ]


def _drawer(picture: Picture) -> Callable[[Rows], str]:
    if picture.kind == "words":
        return lambda points: figures.scatter(points, picture.labels, picture.words)
    return draw_heads if picture.kind == "heads" else draw_layers


def _curve(
    result: StudyResult,
    board: Board,
    up: str,
    label: str,
    scale: figures.Scale,
    across: str,
    note: str = "",
) -> Figure | None:
    """Draw curves of a board's first condition: of the runs that ended, of an arm without any such
    those that are there."""
    condition, of_arms, partly = board.conditions[0], {}, []
    runs = result.of(board.name, condition.name)
    for arm in condition.arms:
        begun = [run for run in runs if run.arm == arm.name and run.validations]
        ended = [run for run in begun if run.state == "ended"]
        of_arms[arm.name] = [run.validations for run in ended or begun]
        if len(ended) < len([run for run in runs if run.arm == arm.name]):
            partly.append(arm.name)
    series, bands = curves_of_arms(of_arms, across, up)
    if not series:
        return None
    without = [arm for arm in of_arms if arm not in series]
    note += f" Not all seeds have ended of: {', '.join(partly)}." if partly else ""
    note += f" Nothing is recorded of: {', '.join(without)}." if without else ""
    return Figure(
        svg=figures.curves(
            series,
            across=_ACROSS[across],
            up=label,
            scale=scale,
            bands=bands,
            styles={arm: i for i, arm in enumerate(of_arms)},
        ),
        caption=f"{label} by {_ACROSS[across]}: mean over seeds, in a band from the lowest to the "
        f"highest.{note}",
    )


def _printed(result: StudyResult) -> str:
    """Write the numbers that the paper prints."""
    numbers = (
        f"{each.quantity}, {each.arm}: "
        f"{format_number(each.value, each.is_share, decimals=2 if each.is_share else None)}"
        for each in result.papers
    )
    return f" The paper: {'; '.join(numbers)}." if result.papers else ""


def _lines(result: StudyResult, drawing: Drawing) -> Figure | None:
    """Draw the means of rows with their intervals, and the paper's numbers as points."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    ours: dict[str, list[tuple[float, float, float]]] = {}
    theirs: dict[str, list[tuple[float, float, float]]] = {}
    for point in drawing.points:
        if values := result.computed(point.quantity).get(point.arm):
            mean = interval(list(values.values()))
            half = mean.half if math.isfinite(mean.half) else 0.0
            ours.setdefault(point.line, []).append((point.at, mean.mean, half))
        if (printed := papers.get((point.quantity, point.arm))) is not None:
            theirs.setdefault(f"{point.line}, {_PAPER}", []).append((point.at, printed, 0.0))
    if not ours:
        return None
    places = {**ours, **theirs}
    is_share = all(result.metric(point.quantity).is_share for point in drawing.points)
    return Figure(
        svg=figures.curves(
            {line: ([p[0] for p in of], [p[1] for p in of]) for line, of in places.items()},
            across=drawing.across,
            up=drawing.up,
            scale="share" if is_share else "number",
            bands={
                line: ([mean - half for _, mean, half in of], [mean + half for _, mean, half in of])
                for line, of in places.items()
            },
        ),
        caption=f"{drawing.up} by {drawing.across}: means over seeds, in bands of 95% intervals"
        f"{' (none of one seed)' if _of_one_seed(result) else ''}."
        f"{'' if theirs else ' The paper prints no numbers of it.'}",
    )


def _bars(result: StudyResult, drawing: Drawing) -> Figure | None:
    """Draw the quantities that the paper prints, arm by arm, with its numbers as marks."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    groups = {
        quantity: dict(_bars_of(result, quantity))
        for quantity in dict.fromkeys(each.quantity for each in result.papers)
    }
    if not any(groups.values()):
        return None
    chances = {quantity: result.metric(quantity).chance for quantity in groups}
    return Figure(
        svg=figures.grouped_bars(groups, papers, chances, up=drawing.up),
        caption=f"{drawing.up}: means over seeds with 95% intervals"
        f"{' (none of one seed)' if _of_one_seed(result) else ''}; diamonds: the paper's numbers"
        f"{'; dotted: a guess' if any(chances.values()) else ''}.",
    )


def _bars_of(
    result: StudyResult, quantity: str
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    by_arm: Mapping[str, Mapping[int, float]] = result.computed(quantity)
    for arm, by_seed in by_arm.items():
        if by_seed:
            mean = interval(list(by_seed.values()))
            half = mean.half if math.isfinite(mean.half) else 0.0
            yield arm, (max(0.0, mean.mean - half), mean.mean, min(1.0, mean.mean + half))


def _of_one_seed(result: StudyResult) -> bool:
    return any(len(row.by_seed) == 1 for row in result.rows)
