"""Figures as inline SVG, with text and lines in the colour of the page, light or dark.

A ``Plot`` draws into axes: ``curves``, ``intervals``, ``scatter`` and ``heatmap`` make some, of
which ``drawing`` makes a figure of a page.
"""

import hashlib
import io
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from layermem_bench.pages.page import Figure
from layermem_bench.statistics import Interval

Style = tuple[str, str, str]
"""Colour, dashes, marker: lines differ without colour too, and are visible on light and on dark."""
_COLOURS = (
    *("#7a5195", "#2f7fc4", "#d9622b", "#2a9d5c", "#9a5fd0", "#c2438d", "#7a8594", "#0f9aa7"),
    *("#a37f1c", "#5566cc", "#8fae1b", "#a0522d", "#d0475a", "#4fa3d9", "#6b8e6b", "#c98bd6"),
    *("#b8572f", "#3c7d7d", "#6a3d5b", "#1f6f3f", "#e0891e", "#3f5f8a", "#c06a9a"),
)
_DASHES, _MARKERS = (":", "-", "--", "-."), "Pos^DvPX*<>phdH8sDv^"
# What variants are drawn in, in this order of the styles, wherever they are drawn.
_VARIANTS = (
    *("lime_half", "plain", "lime", "value_residual", "recipe", "mudd", "hyper_connections"),
    *("denseformer", "attention_residuals", "cla", "yoco", "fused_kv", "dca", "depth_attention"),
    *("mhc", "lime_hidden", "midpoint", "value_embeddings", "laurel", "gated_residual"),
    *("recipe+mudd", "recipe_half", "value_residual+mudd"),
)
Ends = tuple[float, float, float]
"""Lower end of an interval, middle, upper end."""
Curves = Mapping[str, Sequence[tuple[float, Ends]]]
"""Name to the points of its line: where each stands across, its value and the ends of its band."""
Intervals = Mapping[str, Interval | Ends]
Plot = Callable[[Axes], None]
"""Draws into the axes that it is given."""
SQUARE = (3.8, 3.5)
"""Inches of a map and of points."""
# A placeholder that occurs nowhere else; in the SVG it is replaced by the page's colour.
INK = "#010203"
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
RC = {"svg.hashsalt": "layermem", "svg.fonttype": "none", "font.size": 10}
RC |= dict.fromkeys(_INKED, INK)


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """Return each name's style: a variant has one colour wherever it is drawn.

    Arms with options of a variant ("lime:router=last") have shades of its colour. All other names
    share the styles that are left.
    """
    names, styles = list(dict.fromkeys(names)), {}
    shades = Counter[int]()
    for name in names:
        variant = re.split(r"[^a-z_+]", name.lower())[0]
        if (known := variant if variant in _VARIANTS else variant.partition("+")[0]) in _VARIANTS:
            at = _VARIANTS.index(known)
            is_shade = known != name.lower()
            shades[at] += is_shade
            styles[name] = _style(at, shades[at] if is_shade else 0)
    order = map(_style, reversed(range(len(_COLOURS))))
    free = cycle([style for style in order if style not in styles.values()] or [_style(0)])
    return styles | {name: next(free) for name in names if name not in styles}


def _style(at: int, shade: int = 0) -> Style:
    """Return a style; its shades are lighter and darker in turn, with other dashes and markers."""
    # Lighter by a share of what is left to white, darker by a share of all.
    share, colour = (0.0, 0.4, -0.4, 0.55, -0.6)[shade % 5], _COLOURS[at % len(_COLOURS)]
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = (round(c + share * (255 - c if share > 0 else c)) for c in rgb)
    look = _DASHES[(at + shade) % 4], _MARKERS[(at + shade) % 20]
    return "#" + "".join(f"{c:02x}" for c in mixed), *look


def drawing(plot: Plot, caption: str = "", size: tuple[float, float] = (6.0, 3.4)) -> Figure:
    """Return a figure of what is plotted, of ``size`` in inches."""
    with matplotlib.rc_context(RC):
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.add_subplot()
        plot(axes)
        # Maps, and points that have no places, stand in a frame.
        if not axes.images and axes.get_xticks().size:
            axes.spines[["top", "right"]].set_visible(False)
        return Figure(svg=in_ink_of_the_page(canvas), caption=caption)


def in_ink_of_the_page(canvas: Canvas) -> str:
    """Return what was drawn with ``RC`` as an svg element in the colour of its page."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids are hashes of numbers whose last digit is not the same in each layout: they are counted.
    hashed = list(dict.fromkeys(re.findall(r"\b[pm][0-9a-f]{10}\b", text)))
    text = re.sub(r"\b[pm][0-9a-f]{10}\b", lambda of: f"{of[0][0]}{hashed.index(of[0])}", text)
    # A prefix keeps the ids of several figures on one page apart.
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)


def curves(series: Curves, *, across: str, up: str, is_share: bool = False) -> Plot:
    """Return a plot of one line for each name, in its band; ``across`` and ``up`` label the axes.

    Places across that double are drawn equally far apart.
    """
    styles = styles_of(series)
    places = sorted({at for points in series.values() for at, _ in points if at > 0})
    doubles = len(places) > 2 and all(b >= 2 * a for a, b in pairwise(places))

    def plot(axes: Axes) -> None:
        for name, points in series.items():
            colour, dashes, marker = styles[name]
            x = [at for at, _ in points]
            low, middle, high = zip(*(ends for _, ends in points), strict=True)
            (line,) = axes.plot(x, middle, color=colour, ls=dashes, marker=marker, markersize=3)
            line.set_label(escape_label(name))
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=across, ylabel=escape_label(up))
        if doubles:
            # Below 1 it is linear: places may begin at 0.
            axes.set_xscale("symlog", base=2, linthresh=1)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            count_across(axes)
        if is_share:
            # Some room above, so that a line at 1 is visible.
            axes.set_ylim(0, 1.03)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend(axes)

    return plot


def means_of_curves(
    of_arms: Mapping[str, Sequence[Sequence[tuple[float | None, float | None]]]],
) -> Curves:
    """Return each arm's mean over its runs, in a band from the lowest to the highest of them.

    A run's curve is its points; those count at which all of an arm's runs have a value.
    """
    series: dict[str, list[tuple[float, Ends]]] = {}
    for arm, runs in of_arms.items():
        for points in zip(*runs, strict=False):
            places, values = (np.array(each, float) for each in zip(*points, strict=True))
            if np.isfinite([places, values]).all():
                ends = float(values.min()), float(values.mean()), float(values.max())
                series.setdefault(arm, []).append((float(places.mean()), ends))
    return series


def legend(axes: Axes) -> None:
    """Name what is drawn: within the axes, or, if that is too much, below."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    if len(labels) <= 8 and longest <= 60:
        axes.legend(frameon=False)
        return
    canvas, columns = axes.figure, 2 if longest <= 48 else 1
    assert isinstance(canvas, Canvas)
    # In as many lines as that takes: the figure grows.
    canvas.set_figheight(canvas.get_figheight() + 0.16 * math.ceil(len(labels) / columns))
    place = {"loc": "outside lower center", "ncols": columns}
    canvas.legend(handles, labels, frameon=False, fontsize=7, **place)


def count_across(axes: Axes) -> None:
    """Label the x axis with a few whole numbers, large ones with their unit (20k)."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    if axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def forest(values: Intervals, caption: str = "", *, line: float = 0, **look: Any) -> Figure:
    """Return a figure of ``intervals``, with a dotted line at 0 or where ``line`` says."""
    size = 6.0, 0.9 + height_of(values)
    return drawing(intervals(values, line=line, **look), caption, size)


def intervals(
    values: Intervals,
    *,
    is_share: bool,
    across: str,
    line: float = 0,
    styles: Mapping[str, Style] | None = None,
) -> Plot:
    """Return a plot of named intervals, one below the other, and of a dotted line.

    ``styles``: those of names, else ``styles_of`` them.
    """
    looks = styles or styles_of(values)

    def plot(axes: Axes) -> None:
        for i, (name, each) in enumerate(values.items()):
            ends = (each.ends[0], each.mean, each.ends[1]) if isinstance(each, Interval) else each
            low, middle, high = ends
            # A single value has no interval: its ends are infinite.
            error = [[middle - low], [high - middle]] if math.isfinite(high) else None
            colour, _, marker = looks[name]
            axes.errorbar(middle, -i, xerr=error, color=colour, marker=marker, capsize=3, lw=1.4)
        axes.axvline(line, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yticks([-i for i in range(len(values))], list(map(_wrapped, values)))
        axes.set(xlabel=escape_label(across), ylim=(0.6 - len(values), 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        if is_share:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))

    return plot


def height_of(names: Iterable[str]) -> float:
    """Return the inches that named intervals take one below the other."""
    breaks = [_wrapped(name).count("\n") for name in names]
    return (0.24 + 0.15 * max(breaks)) * len(breaks)


def _wrapped(name: str) -> str:
    return textwrap.fill(escape_label(name), 34)


def scatter(points: Sequence[Sequence[float]], labels: Sequence[int], names: Sequence[str]) -> Plot:
    """Return a plot of labelled points, without ticks, because positions have no meaning."""
    positions, label_array = np.array(points), np.array(labels)

    def plot(axes: Axes) -> None:
        for i, name in enumerate(names):
            colour, _, marker = _style(i)
            x, y = positions[label_array == i].T
            label = escape_label(name)
            axes.scatter(x, y, s=9, color=colour, marker=marker, label=label, linewidths=0)
        axes.set(xticks=[], yticks=[])
        axes.legend(frameon=False, markerscale=1.8, fontsize=8)

    return plot


def heatmap(shares: np.ndarray, *, across: str, up: str) -> Plot:
    """Return a plot of shares, with numbers in the cells if there is room; where a row is a
    "layer", which reads those up to it, of the lower triangle."""
    down, wide = shares.shape
    shown = np.where(np.tri(wide, dtype=bool), shares, np.nan) if up == "layer" else shares
    xticks, yticks = (range(0, size, -(-size // 12)) for size in (wide, down))

    def plot(axes: Axes) -> None:
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(np.isfinite(shown)) if max(down, wide) <= 12 else ():
            # A colour that contrasts with the cell, whatever the page's colour is.
            colour = "#ffffff" if shown[i, j] > 0.5 else "#1a2b3c"
            number = axes.text(j, i, f"{shown[i, j]:.2f}", ha="center", va="center", color=colour)
            number.set_fontsize(min(9.0, 64 / max(down, wide)))
        axes.set(xlabel=across, ylabel=up, xticks=xticks, yticks=yticks)

    return plot


def escape_label(text: str) -> str:
    """Keep matplotlib from reading $ as a formula, and from hiding labels that start with _."""
    text = f" {text}" if text.startswith("_") else text
    return text.replace("$", r"\$")
