"""Figures of a study: how arms learn and differ; what the paper draws, its numbers beside ours."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from layermem_bench.report import figures
from layermem_bench.report.depth import HEATMAP, LAYOUT, draw_heads, draw_layers, draw_words, panels
from layermem_bench.report.numbers import format_number
from layermem_bench.report.page import Figure, Switch
from layermem_bench.results.comparing import Line
from layermem_bench.results.intervals import interval
from layermem_bench.results.study import (
    Board,
    Drawing,
    Metric,
    Picture,
    StudyResult,
    Validation,
)

# Figures of learning: what goes up, its field of a validation, how numbers are written.
_UP: dict[str, tuple[str, figures.Scale]] = {
    "validation loss": ("val_loss", "number"),
    "right answers": ("val_accuracy", "share"),
}
_ACROSS = {"tokens": "tokens", "flops": "training FLOPs"}


def differences(title: str, lines: Sequence[Line], metric: Metric) -> Figure:
    """Draw the differences of a table's arms from the first."""
    first = next((line.arm for line in lines if line.difference is None), "")
    found = {line.arm: line.difference for line in lines if line.difference is not None}
    return Figure(
        svg=figures.forest(found, is_share=metric.is_share, across=f"against {first}"),
        caption=f"{title}: paired differences from {first} with 95% intervals"
        f"{f'; {metric.better} is better' if metric.better else ''}.",
    )


def learning_curves(result: StudyResult, board: Board) -> list[Figure]:
    """Draw loss and right answers per token and per FLOP, but for what the paper draws as well."""
    papers = {(drawing.across, drawing.up) for drawing in result.drawings}
    kinds = ((up, across) for up in _UP for across in _ACROSS if (across, up) not in papers)
    return [figure for up, across in kinds for figure in _curves(result, board, up, across)]


def draw_curves(result: StudyResult, out: Path) -> None:
    """Draw the validation losses of each board into a file; its suffix (svg, png, pdf) is its
    kind."""
    figures.check(out)
    plots = []
    for board in result.boards:
        plot, _ = _plot_curves(result, board, "validation loss", "tokens")

        def titled(axes: Axes, plot: figures.Plot | None = plot, title: str = board.name) -> None:
            if plot is not None:
                plot(axes)
            axes.set_title(title, fontsize=10)

        plots += [titled] if plot else []
    if not plots:
        raise ValueError("the runs hold no validation yet: there is nothing to draw")
    figures.save(plots, out, size=(7.0, 4.0))


def paper_figures(result: StudyResult) -> list[Figure]:
    """Draw what the paper draws, as far as there are numbers of it."""
    drawn: list[Figure] = []
    for each in result.drawings:
        if each.kind == "curves":
            for board in result.boards:
                drawn += _curves(result, board, each.up, each.across, _printed(result))
        else:
            drawn += _lines(result, each) if each.points else _bars(result, each)
    return drawn


def paper_pictures(result: StudyResult) -> list[Switch]:
    """Draw what was seen inside models: what routers read, or where words lie, layer by layer."""

    def switch(picture: Picture) -> Switch:
        draw, caption = {
            "heatmap": (draw_layers, HEATMAP),
            "heads": (draw_heads, "what each key-value head reads of each layer."),
            "words": (draw_words(picture.labels, picture.words), LAYOUT),
        }[picture.kind]
        return panels(picture.name, picture.panels, draw, caption, first=-1)

    return list(map(switch, result.pictures))


def _curves(
    result: StudyResult, board: Board, up: str, across: str, note: str = ""
) -> Iterator[Figure]:
    plot, partly = _plot_curves(result, board, up, across)
    if plot is not None:
        yield Figure(
            svg=figures.drawing(plot),
            caption=f"{up} by {_ACROSS[across]}: mean over seeds, in a band from the lowest to the "
            f"highest.{note}{partly}",
        )


def _plot_curves(
    result: StudyResult, board: Board, up: str, across: str
) -> tuple[figures.Plot | None, str]:
    """Return a plot of a board's first condition, None without any validation, and what is not in
    it: of the runs that ended, of an arm without any such of those that are there."""
    condition, of_arms, partly = board.conditions[0], {}, []
    runs = result.of(board.name, condition.name)
    for arm in condition.arms:
        of_arm = [run for run in runs if run.arm == arm.name]
        begun = [run for run in of_arm if run.validations]
        ended = [run for run in begun if run.state == "ended"]
        of_arms[arm.name] = [run.validations for run in ended or begun]
        if len(ended) < len(of_arm):
            partly.append(arm.name)
    field, scale = _UP[up]
    series, bands = curves_of_arms(of_arms, across, field)
    without = [arm for arm in of_arms if arm not in series]
    note = f" Not all seeds have ended of: {', '.join(partly)}." if partly else ""
    note += f" Nothing is recorded of: {', '.join(without)}." if without else ""
    styles = figures.styles_of(of_arms)
    plot = figures.curves(
        series, across=_ACROSS[across], up=up, scale=scale, bands=bands, styles=styles
    )
    return plot if series else None, note


def curves_of_arms(
    arms: Mapping[str, Sequence[Sequence[Validation]]], across: str, up: str
) -> tuple[figures.Series, figures.Series]:
    """Return each arm's mean over its runs, in a band from the lowest to the highest of them.

    ``across``, ``up``: fields of a validation. Only steps that all of an arm's runs have validated
    at count.
    """
    series, bands = {}, {}
    for arm, runs in arms.items():
        by_step = [
            {
                validation.step: point
                for validation in validations
                if None not in (point := (getattr(validation, across), getattr(validation, up)))
            }
            for validations in runs
        ]
        steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
        if not steps:
            continue
        values = [[points[step][1] for points in by_step] for step in steps]
        where = [statistics.fmean(points[step][0] for points in by_step) for step in steps]
        series[arm] = where, [statistics.fmean(of_seeds) for of_seeds in values]
        bands[arm] = list(map(min, values)), list(map(max, values))
    return series, bands


def _printed(result: StudyResult) -> str:
    """Write the numbers that the paper prints."""
    numbers = (
        f"{each.quantity}, {each.arm}: "
        f"{format_number(each.value, each.is_share, decimals=2 if each.is_share else None)}"
        for each in result.papers
    )
    return f" The paper: {'; '.join(numbers)}." if result.papers else ""


def _lines(result: StudyResult, drawing: Drawing) -> Iterator[Figure]:
    """Draw the means of rows with their intervals, and the paper's numbers as points."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    # Of each line, where its points stand across, and low, middle and high of each.
    ours: dict[str, list[tuple[float, figures.Ends]]] = {}
    theirs: dict[str, list[tuple[float, figures.Ends]]] = {}
    for point in drawing.points:
        if values := result.computed(point.quantity).get(point.arm):
            ours.setdefault(point.line, []).append((point.at, _ends(values)))
        if (printed := papers.get((point.quantity, point.arm))) is not None:
            at = theirs.setdefault(f"{point.line}, the paper", [])
            at.append((point.at, (printed, printed, printed)))
    if not ours:
        return
    series, bands = {}, {}
    for line, points in {**ours, **theirs}.items():
        low, middle, high = zip(*(ends for _, ends in points), strict=True)
        series[line], bands[line] = ([at for at, _ in points], list(middle)), (low, high)
    is_share = all(result.metric(point.quantity).is_share for point in drawing.points)
    scale: figures.Scale = "share" if is_share else "number"
    plot = figures.curves(series, across=drawing.across, up=drawing.up, scale=scale, bands=bands)
    yield Figure(
        svg=figures.drawing(plot),
        caption=f"{drawing.up} by {drawing.across}: means over seeds, in bands of 95% intervals, "
        f"of one seed without.{'' if theirs else ' The paper prints no numbers of it.'}",
    )


def _bars(result: StudyResult, drawing: Drawing) -> Iterator[Figure]:
    """Draw the quantities that the paper prints, arm by arm, with its numbers as marks."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    computed = {quantity: result.computed(quantity) for quantity, _ in papers}
    parts = {
        quantity: {arm: _ends(values) for arm, values in by_arm.items() if values}
        for quantity, by_arm in computed.items()
    }
    if parts := {quantity: values for quantity, values in parts.items() if values}:
        chances = {quantity: result.metric(quantity).chance for quantity in parts}
        svg = figures.forests(parts, is_share=True, across=drawing.up, lines=chances, marks=papers)
        yield Figure(
            svg=svg,
            caption=f"{drawing.up}: means over seeds with 95% intervals, of one seed without; "
            "diamonds: the paper's numbers; dotted: a guess.",
        )


def _ends(values: Mapping[int, float]) -> figures.Ends:
    """Return the interval of values by seed around their mean; of one seed, the mean alone."""
    mean = interval(list(values.values()))
    half = mean.half if math.isfinite(mean.half) else 0.0
    return mean.mean - half, mean.mean, mean.mean + half
