"""Figures of a study: how arms learn and differ; what the paper draws, its numbers beside ours."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from layermem_bench.pages import figures
from layermem_bench.pages.page import Figure
from layermem_bench.statistics import interval
from layermem_bench.studies.comparing import Line
from layermem_bench.studies.result import (
    Board,
    Drawing,
    Metric,
    RunRecord,
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


def learning_curves(result: StudyResult, board: Board) -> Iterator[Figure]:
    """Draw loss and right answers per token and per FLOP, of a board's first condition."""
    arms = _validations(result, board)
    runs = result.of(board.name, board.conditions[0].name)
    partly = dict.fromkeys(run.arm for run in runs if run.state != "ended")
    for up, (field, scale) in _UP.items():
        for across, title in _ACROSS.items():
            series, bands = curves_of_arms(arms, across, field)
            if not series:
                continue
            caption = f"{up} by {title}: mean over seeds, in a band from the lowest to the highest."
            if partly:
                caption += f" Not all seeds have ended of: {', '.join(partly)}."
            if without := [arm for arm in arms if arm not in series]:
                caption += f" Nothing is recorded of: {', '.join(without)}."
            plot = figures.curves(series, across=title, up=up, scale=scale, bands=bands)
            yield Figure(svg=figures.drawing(plot), caption=caption)


def _validations(result: StudyResult, board: Board) -> dict[str, list[tuple[Validation, ...]]]:
    """Return the validations of a board's first condition by arm: of its runs that ended, of an arm
    without any such of those that are there."""
    begun = {arm.name: list[RunRecord]() for arm in board.conditions[0].arms}
    for run in result.of(board.name, board.conditions[0].name):
        begun[run.arm] += [run] if run.validations else []
    ended = {arm: [run for run in runs if run.state == "ended"] for arm, runs in begun.items()}
    return {arm: [run.validations for run in ended[arm] or begun[arm]] for arm in begun}


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


def paper_figures(result: StudyResult) -> list[Figure]:
    """Draw what the paper draws, as far as there are numbers of it."""
    return [figure for drawing in result.drawings for figure in _lines(result, drawing)]


def _lines(result: StudyResult, drawing: Drawing) -> Iterator[Figure]:
    """Draw the means of rows with their intervals, and the paper's numbers as points."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    # Of each line, where its points stand across, and low, middle and high of each.
    ours: dict[str, list[tuple[float, figures.Ends]]] = {}
    theirs: dict[str, list[tuple[float, figures.Ends]]] = {}
    for point in drawing.points:
        if values := result.computed(point.quantity).get(point.arm):
            mean = interval(list(values.values()))
            half = mean.half if math.isfinite(mean.half) else 0.0
            ends = mean.mean - half, mean.mean, mean.mean + half
            ours.setdefault(point.line, []).append((point.at, ends))
        if (printed := papers.get((point.quantity, point.arm))) is not None:
            at = theirs.setdefault(f"{point.line}, the paper", [])
            at.append((point.at, (printed, printed, printed)))
    series, bands = {}, {}
    for line, points in {**ours, **theirs}.items():
        low, middle, high = zip(*(ends for _, ends in points), strict=True)
        series[line], bands[line] = ([at for at, _ in points], list(middle)), (low, high)
    is_share = all(result.metric(point.quantity).is_share for point in drawing.points)
    scale: figures.Scale = "share" if is_share else "number"
    plot = figures.curves(series, across=drawing.across, up=drawing.up, scale=scale, bands=bands)
    if ours:
        caption = f"{drawing.up} by {drawing.across}: means over seeds with 95% intervals."
        caption += "" if theirs else " The paper prints no numbers of it."
        yield Figure(svg=figures.drawing(plot), caption=caption)
