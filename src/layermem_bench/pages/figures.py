"""Figures as inline SVG, with text and lines in the colour of the page, light or dark.

A ``Plot`` draws into axes: ``curves``, ``scatter`` and ``shares`` make some. ``drawing`` returns
the svg element of one.
"""

import hashlib
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from layermem_bench.statistics import Interval

_COLOURS = (
    *("#7a5195", "#2f7fc4", "#d9622b", "#2a9d5c", "#9a5fd0", "#c2438d", "#7a8594", "#0f9aa7"),
    *("#a37f1c", "#5566cc", "#8fae1b", "#a0522d", "#d0475a", "#4fa3d9", "#6b8e6b", "#c98bd6"),
)
# (colour, dashes, marker): lines differ without colour too, and are visible on light and on dark.
STYLES = tuple(zip(_COLOURS, (":", "-", "--", "-.") * 4, "Pos^DvPX*<>phdH8", strict=True))
# What variants are drawn in, in this order of the styles, wherever they are drawn.
_VARIANTS = (
    "lime_half",
    *("plain", "lime", "value_residual", "recipe", "mudd", "hyper_connections", "denseformer"),
    *("attention_residuals", "cla", "yoco", "fused_kv", "dca", "depth_attention", "mhc"),
    "lime_hidden",
)
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Name to the x and y values of its line, or to the lower and upper edge of its band."""
Ends = tuple[float, float, float]
"""Lower end of an interval, middle, upper end."""
Plot = Callable[[Axes], None]
"""Draws into the axes that it is given."""
Scale = Literal["number", "share"]
"""Labels of the y axis: plain numbers, or percent from 0% to 100%."""
# Characters of a line of a label at the left.
_LABEL = 34
# What a legend within the axes has room for: names, and characters of the longest.
_MOST_WITHIN, _LONGEST_WITHIN = 8, 60
# Characters of a legend's line below the axes, alone and beside another.
_LINE_BELOW, _HALF_LINE_BELOW = 96, 48
# Layers that are named at a side of a map.
_MOST_TICKS = 12
# A placeholder that occurs nowhere else; in the SVG it is replaced by the page's colour.
INK = "#010203"
RC = {
    "svg.hashsalt": "layermem",
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
}


def styles_of(names: Iterable[str]) -> dict[str, int]:
    """Return the index of each name's style: a variant has one wherever it is drawn.

    It goes to the name that is the variant's own, else to the first that begins with it
    ("lime:router=last"). All other names share what is left, those of rare variants first.
    """
    names = list(dict.fromkeys(names))
    taken: dict[str, int] = {}
    for name in sorted(names, key=lambda name: name.lower() not in _VARIANTS):
        variant = re.split(r"[^a-z_]", name.lower())[0]
        if variant in _VARIANTS and _VARIANTS.index(variant) not in taken.values():
            taken[name] = _VARIANTS.index(variant)
    free = [i for i in reversed(range(len(STYLES))) if i not in taken.values()]
    others = [name for name in names if name not in taken]
    taken |= {name: (free or [0])[i % max(1, len(free))] for i, name in enumerate(others)}
    return {name: taken[name] for name in names}


def drawing(plot: Plot, size: tuple[float, float] = (6.0, 3.4), *, spines: bool = False) -> str:
    """Return what is plotted as an svg element of ``size`` in inches."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        plot(axes)
        if not spines:
            axes.spines[["top", "right"]].set_visible(False)
        return in_ink_of_the_page(figure)


def in_ink_of_the_page(figure: Figure) -> str:
    """Return a figure that was made with ``RC`` as an svg element in the colour of its page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A prefix keeps the ids of several figures on one page apart.
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)


def curves(
    series: Series,
    *,
    across: str,
    up: str,
    scale: Scale = "number",
    bands: Series | None = None,
) -> Plot:
    """Return a plot of one line for each name, in its band; ``across`` and ``up`` label the axes.

    Places across that double are drawn equally far apart.
    """
    index = styles_of(series)
    places = sorted({at for across, _ in series.values() for at in across if at > 0})
    doubles = len(places) > 2 and all(b >= 2 * a for a, b in pairwise(places))

    def plot(axes: Axes) -> None:
        for name, (x, y) in series.items():
            colour, dashes, marker = STYLES[index[name]]
            axes.plot(x, y, color=colour, linestyle=dashes, marker=marker, markersize=3)
            axes.lines[-1].set_label(escape_label(name))
            if bands is not None:
                axes.fill_between(x, *bands[name], color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=across, ylabel=escape_label(up))
        if doubles:
            # Below 1 it is linear: places may begin at 0.
            axes.set_xscale("symlog", base=2, linthresh=1)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            count_across(axes)
        if scale == "share":
            # Some room above, so that a line at 1 is visible.
            axes.set_ylim(0, 1.03)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend(axes)

    return plot


def legend(axes: Axes, *, below: bool = False) -> None:
    """Name what is drawn: within the axes, or, if that is too much, below."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    if not below and len(labels) <= _MOST_WITHIN and longest <= _LONGEST_WITHIN:
        axes.legend(frameon=False)
        return
    # In as many lines as that takes: the figure grows.
    across = 2 if longest <= _HALF_LINE_BELOW else 1
    labels = [textwrap.fill(label, _LINE_BELOW) for label in labels]
    lines = math.ceil(sum(label.count("\n") + 1 for label in labels) / across)
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.set_figheight(figure.get_figheight() + 0.16 * lines)
    figure.legend(
        *(handles, labels), loc="outside lower center", ncols=across, frameon=False, fontsize=7
    )


def count_across(axes: Axes) -> None:
    """Label the x axis with a few whole numbers, large ones with their unit (20k)."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    if axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def bars(values: Mapping[str, Ends], *, up: str, chance: float) -> str:
    """Return an SVG of shares with their intervals, one below the other, and a line at chance."""
    return forests({"": values}, is_share=True, across=up, line=chance)


def forest(differences: Mapping[str, Interval], *, is_share: bool, across: str) -> str:
    """Return an SVG of differences with their intervals, one below the other, and a line at 0."""
    return forests({"": differences}, is_share=is_share, across=across)


def forests(
    parts: Mapping[str, Mapping[str, Interval | Ends]],
    *,
    is_share: bool,
    across: str,
    styles: Mapping[str, int] | None = None,
    line: float = 0,
) -> str:
    """Return an SVG of intervals for each part, with its title, each part on an axis of its own.

    ``styles``: name to the index of its style, else ``styles_of`` them. ``line``: where a dotted
    line stands.
    """
    names = [name for values in parts.values() for name in values]
    places = styles_of(names) if styles is None else styles
    labels = {name: textwrap.fill(name, _LABEL) for name in names}

    def draw(axes: Axes, part: str, values: Mapping[str, Interval | Ends]) -> None:
        for i, (name, each) in enumerate(values.items()):
            colour, _, marker = STYLES[places[name]]
            middle, half = _middle_and_error(each)
            axes.errorbar(middle, -i, xerr=half, color=colour, marker=marker, capsize=3, lw=1.4)
        axes.axvline(line, color=INK, linewidth=0.8, linestyle=":")
        shown = [escape_label(labels[name]) for name in values]
        axes.set_yticks([-i for i in range(len(shown))], shown)
        axes.set(title=escape_label(part), ylim=(0.6 - len(shown), 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        if is_share:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.spines[["top", "right"]].set_visible(False)

    heights = []
    for values in parts.values():
        most = max((labels[name].count("\n") for name in values), default=0)
        heights.append((0.24 + 0.15 * most) * len(values))
    with matplotlib.rc_context({**RC, "axes.titlesize": 10}):
        size = (6.0, 0.5 + sum(heights) + 0.4 * len(parts))
        figure = Figure(figsize=size, layout="constrained")
        rows = figure.subplots(len(parts), squeeze=False, height_ratios=heights)
        for axes, (part, values) in zip(rows.flat, parts.items(), strict=True):
            draw(axes, part, values)
        axes.set_xlabel(escape_label(across))
        return in_ink_of_the_page(figure)


def _middle_and_error(value: Interval | Ends) -> tuple[float, Any]:
    """Return what matplotlib draws of an interval; of a single value it is infinite: the value."""
    if isinstance(value, Interval):
        return value.mean, value.half if math.isfinite(value.half) else None
    low, middle, high = value
    return middle, [[middle - low], [high - middle]]


def scatter(points: Sequence[Sequence[float]], labels: Sequence[int], names: Sequence[str]) -> Plot:
    """Return a plot of labelled points, without ticks, because positions have no meaning."""
    positions, label_array = np.array(points), np.array(labels)

    def plot(axes: Axes) -> None:
        for i, name in enumerate(names):
            colour, _, marker = STYLES[i % len(STYLES)]
            x, y = positions[label_array == i].T
            label = escape_label(name)
            axes.scatter(x, y, s=9, color=colour, marker=marker, label=label, linewidths=0)
        axes.set(xticks=[], yticks=[])
        axes.legend(frameon=False, markerscale=1.8, fontsize=8)

    return plot


def weights(matrix: np.ndarray, *, across: Sequence[str], up: Sequence[str]) -> str:
    """Return an SVG of a matrix of any numbers, NaN blank, with a name for each column and row."""
    limit = float(np.nanmax(np.abs(matrix))) or 1.0

    def draw(axes: Axes) -> None:
        image = axes.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
        for axis, names in ((axes.xaxis, across), (axes.yaxis, up)):
            ticks = _ticks(len(names), 2 * _MOST_TICKS)
            axis.set_ticks(ticks, [escape_label(names[i]) for i in ticks], fontsize=7)
        axes.tick_params(axis="x", rotation=90)
        axes.figure.colorbar(image, ax=axes, fraction=0.04)

    return drawing(draw, (4.8, 4.0), spines=True)


def heatmap(matrix: np.ndarray, *, across: str, up: str) -> str:
    """Return an SVG of ``shares``."""
    return drawing(shares(matrix, across=across, up=up), (3.6, 3.4), spines=True)


def shares(matrix: np.ndarray, *, across: str, up: str) -> Plot:
    """Return a plot of shares, with numbers in the cells if there is room; where a row is a
    "layer", which reads those up to it, of the lower triangle."""
    down, wide = matrix.shape
    shown = np.where(np.tri(wide, dtype=bool), matrix, np.nan) if up == "layer" else matrix

    def draw(axes: Axes) -> None:
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(np.isfinite(shown)) if max(down, wide) <= 12 else ():
            # A colour that contrasts with the cell, whatever the page's colour is.
            colour = "#ffffff" if shown[i, j] > 0.5 else "#1a2b3c"
            number = axes.text(j, i, f"{shown[i, j]:.2f}", ha="center", va="center", color=colour)
            number.set_fontsize(min(9.0, 64 / max(down, wide)))
        axes.set(xlabel=across, ylabel=up, xticks=_ticks(wide), yticks=_ticks(down))

    return draw


def _ticks(size: int, most: int = _MOST_TICKS) -> range:
    return range(0, size, -(-size // most))


def escape_label(text: str) -> str:
    """Keep matplotlib from reading $ as a formula, and from hiding labels that start with _."""
    text = f" {text}" if text.startswith("_") else text
    return text.replace("$", r"\$")
