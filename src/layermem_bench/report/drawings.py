"""Figures of a study: how arms and runs learn; what the paper draws, our numbers beside its own."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from layermem_bench.config.run import Run
from layermem_bench.report import figures
from layermem_bench.report.depth import HEATMAP, LAYOUT, draw_heads, draw_layers, draw_words, panels
from layermem_bench.report.numbers import format_number
from layermem_bench.report.page import Figure, Switch
from layermem_bench.results.intervals import interval
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import Board, Drawing, Picture, StudyResult, Validation

# Figures of learning: what goes up, its field of a validation, how numbers are written.
_UP: dict[str, tuple[str, figures.Scale]] = {
    "validation loss": ("val_loss", "number"),
    "right answers": ("val_accuracy", "share"),
}
_ACROSS = {"tokens": "tokens", "flops": "training FLOPs"}
Ends = tuple[float, float, float]
"""Lower end of an interval, middle, upper end."""


def learning_curves(result: StudyResult, board: Board) -> list[Figure]:
    """Draw loss and right answers per token and per FLOP, but for what the paper draws as well."""
    papers = {(drawing.across, drawing.up) for drawing in result.drawings}
    drawn = [
        _curve(result, board, up, across)
        for up in _UP
        for across in _ACROSS
        if (across, up) not in papers
    ]
    return [figure for figure in drawn if figure]


def paper_figures(result: StudyResult) -> list[Figure]:
    """Draw what the paper draws, as far as there are numbers of it."""
    drawn = []
    for each in result.drawings:
        if each.kind == "curves":
            note = _printed(result)
            drawn += [_curve(result, b, each.up, each.across, note) for b in result.boards]
        else:
            drawn.append(_lines(result, each) if each.points else _bars(result, each))
    return [figure for figure in drawn if figure]


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


def _curve(
    result: StudyResult, board: Board, up: str, across: str, note: str = ""
) -> Figure | None:
    """Draw curves of a board's first condition: of the runs that ended, of an arm without any such
    those that are there."""
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
    if not series:
        return None
    without = [arm for arm in of_arms if arm not in series]
    note += f" Not all seeds have ended of: {', '.join(partly)}." if partly else ""
    note += f" Nothing is recorded of: {', '.join(without)}." if without else ""
    styles = figures.styles_of(of_arms)
    plot = figures.curves(
        series, across=_ACROSS[across], up=up, scale=scale, bands=bands, styles=styles
    )
    return Figure(
        svg=figures.drawing(plot),
        caption=f"{up} by {_ACROSS[across]}: mean over seeds, in a band from the lowest to the "
        f"highest.{note}",
    )


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
        bands[arm] = [min(of_seeds) for of_seeds in values], [max(v) for v in values]
    return series, bands


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
    # Of each line, where its points stand across, and low, middle and high of each.
    ours: dict[str, list[tuple[float, Ends]]] = {}
    theirs: dict[str, list[tuple[float, Ends]]] = {}
    for point in drawing.points:
        if values := result.computed(point.quantity).get(point.arm):
            ours.setdefault(point.line, []).append((point.at, _ends(values)))
        if (printed := papers.get((point.quantity, point.arm))) is not None:
            line = f"{point.line}, the paper"
            theirs.setdefault(line, []).append((point.at, (printed, printed, printed)))
    if not ours:
        return None
    series, bands = {}, {}
    for line, points in {**ours, **theirs}.items():
        low, middle, high = zip(*(ends for _, ends in points), strict=True)
        series[line], bands[line] = ([at for at, _ in points], list(middle)), (low, high)
    is_share = all(result.metric(point.quantity).is_share for point in drawing.points)
    scale: figures.Scale = "share" if is_share else "number"
    plot = figures.curves(series, across=drawing.across, up=drawing.up, scale=scale, bands=bands)
    return Figure(
        svg=figures.drawing(plot),
        caption=f"{drawing.up} by {drawing.across}: means over seeds, in bands of 95% intervals"
        f"{_of_one_seed(result)}.{'' if theirs else ' The paper prints no numbers of it.'}",
    )


def _bars(result: StudyResult, drawing: Drawing) -> Figure | None:
    """Draw the quantities that the paper prints, arm by arm, with its numbers as marks."""
    papers = {(each.quantity, each.arm): each.value for each in result.papers}
    groups: dict[str, dict[str, Ends]] = {quantity: {} for quantity, _ in papers}
    for quantity, by_arm in groups.items():
        for arm, values in result.computed(quantity).items():
            if values:
                low, middle, high = _ends(values)
                by_arm[arm] = max(0.0, low), middle, min(1.0, high)
    if not any(groups.values()):
        return None
    chances = {quantity: result.metric(quantity).chance for quantity in groups}
    return Figure(
        svg=figures.grouped_bars(groups, papers, chances, up=drawing.up),
        caption=f"{drawing.up}: means over seeds with 95% intervals{_of_one_seed(result)}; "
        f"diamonds: the paper's numbers{'; dotted: a guess' if any(chances.values()) else ''}.",
    )


def _ends(values: Mapping[int, float]) -> Ends:
    """Return the interval of values by seed around their mean; of one seed, the mean alone."""
    mean = interval(list(values.values()))
    half = mean.half if math.isfinite(mean.half) else 0.0
    return mean.mean - half, mean.mean, mean.mean + half


def _of_one_seed(result: StudyResult) -> str:
    return " (none of one seed)" if any(len(row.by_seed) == 1 for row in result.rows) else ""


def draw_curves(
    runs: Mapping[str, tuple[Run, RunFolder]], arms: Mapping[str, str], out: Path
) -> None:
    """Draw the curves of runs, by name, into a file; its suffix (svg, png, pdf) is its kind.

    ``arms``: the name of each run's arm. Of several arms the runs of each look alike and are named
    together, of a single one each by itself. Whether losses may be compared is the caller's to
    check.
    """
    figures.check(out)
    seeds = Counter((arms[name], run.seed) for name, (run, _) in runs.items())
    several = len({arms[name] for name in runs}) > 1
    together: dict[str, list[_Curves]] = {}
    for name, (run, folder) in runs.items():
        # Two that differ in what came to the same, such as a precision, show their folders.
        beside = f" ({name})" if seeds[arms[name], run.seed] > 1 else ""
        each = _read_run(f"{arms[name]}, seed {run.seed}{beside}", run, folder)
        together.setdefault(arms[name] if several else each.name, []).append(each)
    styles = figures.styles_of(together)

    def plot(axes: Axes) -> None:
        for name, of_arm in together.items():
            colour, dashes, _ = figures.STYLES[styles[name]]
            for each in of_arm:
                axes.plot(*each.trained, color=colour, alpha=0.25, linewidth=0.8)
                axes.plot(*each.validated, color=colour, linestyle=dashes)
            axes.lines[-1].set_label(_name_curves(name, of_arm))
        axes.set(xlabel="tokens", ylabel="loss (thin: training)")
        figures.count_across(axes)
        figures.legend(axes)
        axes.spines[["top", "right"]].set_visible(False)

    figures.save([plot], out, size=(7.0, 4.0))


@dataclass(frozen=True)
class _Curves:
    """Tokens and losses of a run, and how far it is, if not at its end."""

    name: str
    seed: int
    trained: tuple[Sequence[float], Sequence[float]]
    validated: tuple[Sequence[float], Sequence[float]]
    state: str


def _name_curves(arm: str, runs: Sequence[_Curves]) -> str:
    """Return the text of a legend: whose curves they are, and their last losses."""
    last = [each.validated[1][-1] for each in runs if each.validated[1]]
    if len(runs) == 1:
        return runs[0].name + "".join(f": validation loss {x:.3f}" for x in last) + runs[0].state
    known = [loss for loss in last if math.isfinite(loss)]
    ends = f": validation loss {min(known):.3f} to {max(known):.3f}" if known else ""
    states = "".join(f"; seed {each.seed}{each.state}" for each in runs if each.state)
    return f"{arm}, {len(runs)} runs{ends}{states}"


def _read_run(name: str, run: Run, folder: RunFolder) -> _Curves:
    rows = folder.rows()
    if not any("loss" in row for row in rows):
        raise ValueError(f"{folder.path} holds no metrics yet: leave it out")
    trained, validated = (
        ([row["tokens"] for row in rows if key in row], [row[key] for row in rows if key in row])
        for key in ("loss", "val_loss")
    )
    if folder.diverged.exists() or not all(map(math.isfinite, trained[1] + validated[1])):
        state = f" (diverged by step {rows[-1]['step']})"
    else:
        state = "" if folder.final.exists() else f" (at step {rows[-1]['step']})"
    return _Curves(name, run.seed, trained, validated, state)
