"""Figures as inline SVG, with text and lines in the colour of the page, light or dark."""

import hashlib
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from layermem_bench.results.intervals import Interval

# (colour, dashes, marker): lines differ without colour too, and are visible on light and on dark.
STYLES = (
    ("#7a5195", ":", "P"),
    ("#2f7fc4", "-", "o"),
    ("#d9622b", "--", "s"),
    ("#2a9d5c", "-.", "^"),
    ("#9a5fd0", ":", "D"),
    ("#c2438d", "-", "v"),
    ("#7a8594", "--", "P"),
    ("#0f9aa7", "-.", "X"),
    ("#a37f1c", ":", "*"),
    ("#5566cc", "-", "<"),
    ("#8fae1b", "--", ">"),
    ("#a0522d", "-.", "p"),
    ("#d0475a", ":", "h"),
    ("#4fa3d9", "-", "d"),
    ("#6b8e6b", "--", "H"),
    ("#c98bd6", "-.", "8"),
)
# What variants are drawn in, in this order of the styles, wherever they are drawn.
_VARIANTS = (
    "lime_half",
    *("plain", "lime", "value_residual", "recipe", "mudd", "hyper_connections", "denseformer"),
    *("attention_residuals", "cla", "yoco", "fused_kv", "dca", "depth_attention", "mhc"),
    "lime_hidden",
)
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Name to the x and y values of its line, or to the lower and upper edge of its band."""
Plot = Callable[[Axes], None]
"""Draws into the axes that it is given."""
Scale = Literal["number", "share", "percent"]
"""Labels of the y axis: plain numbers, percent from 0% to 100%, or percent of any size."""
# Plots in a row of a file: two fill the column of a page.
_ACROSS = 2
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
_GROUNDS = (
    "<style>svg{background:#ffffff;color:#1a2b3c}"
    "@media(prefers-color-scheme:dark){svg{background:#1e2129;color:#dde3ea}}</style>"
)
_RC = {
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
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        plot(axes)
        if not spines:
            axes.spines[["top", "right"]].set_visible(False)
        return _in_ink_of_the_page(figure)


def _in_ink_of_the_page(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A prefix keeps the ids of several figures on one page apart.
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", text)


def check(path: Path) -> None:
    """Raise unless a file's suffix is that of a kind of figure."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"the file of a figure must end in .svg, .png or .pdf, got {path}")


def save(plots: Sequence[Plot], path: Path, size: tuple[float, float] = (3.4, 3.1)) -> None:
    """Draw into a file, a few in a row; its suffix (svg, png, pdf) decides the format."""
    is_svg = path.suffix == ".svg"
    with matplotlib.rc_context({**(_RC if is_svg else {}), "font.size": 9}):
        across = min(len(plots), _ACROSS)
        down = -(-len(plots) // across)
        figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
        for place, plot in enumerate(plots, 1):
            plot(figure.add_subplot(down, across, place))
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_svg:
            path.write_text(on_own_ground(_in_ink_of_the_page(figure)), encoding="utf-8")
        else:
            figure.savefig(path)


def on_own_ground(svg: str, title: str = "", description: str = "") -> str:
    """Return an SVG for a file of its own, with a ground for light and one for dark.

    It begins with the version of matplotlib that drew it, whose releases place text differently.
    """
    about = f"<title>{escape(title)}</title>" if title else ""
    about += f"<desc>{escape(description)}</desc>" if description else ""
    start, _, rest = svg.partition(">")
    return f"<!-- matplotlib {matplotlib.__version__} -->\n{start}>{about}{_GROUNDS}{rest}"


def curves(
    series: Series,
    *,
    across: str,
    up: str,
    scale: Scale = "number",
    bands: Series | None = None,
    styles: Mapping[str, int] | None = None,
) -> Plot:
    """Return a plot of one line for each name, in its band.

    ``across`` and ``up`` label the axes; ``styles``: name to the index of its style, else
    ``styles_of`` them. Places across that double are drawn equally far apart.
    """
    index = styles_of(series) if styles is None else styles
    places = sorted({at for across, _ in series.values() for at in across if at > 0})
    doubles = len(places) > 2 and all(b >= 2 * a for a, b in pairwise(places))

    def plot(axes: Axes) -> None:
        for name, (x, y) in series.items():
            colour, dashes, marker = STYLES[index[name]]
            axes.plot(x, y, color=colour, linestyle=dashes, marker=marker, markersize=3)
            axes.lines[-1].set_label(_escape_label(name))
            if bands is not None:
                axes.fill_between(x, *bands[name], color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=across, ylabel=_escape_label(up))
        if doubles:
            # Below 1 it is linear: places may begin at 0.
            axes.set_xscale("symlog", base=2, linthresh=1)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            count_across(axes)
        if scale != "number":
            _label_in_percent(axes, from_0_to_100=scale == "share")
        legend(axes)

    return plot


def legend(axes: Axes) -> None:
    """Name what is drawn: within the axes, or, if that is too much for the only ones, below."""
    _, labels = axes.get_legend_handles_labels()
    spec = axes.get_subplotspec()
    is_alone = spec is None or spec.get_gridspec().get_geometry() == (1, 1)
    longest = max(map(len, labels), default=0)
    if is_alone and (len(labels) > _MOST_WITHIN or longest > _LONGEST_WITHIN):
        _legend_below(axes)
    else:
        axes.legend(frameon=False)


def _legend_below(axes: Axes) -> None:
    """Name what is drawn below the axes, in as many lines as that takes: the figure grows."""
    handles, labels = axes.get_legend_handles_labels()
    across = 2 if max(map(len, labels)) <= _HALF_LINE_BELOW else 1
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


def bars(values: Mapping[str, tuple[float, float, float]], *, up: str, chance: float) -> str:
    """Return an SVG of shares with intervals (low, middle, high) and a line at ``chance``."""

    styles = styles_of(values)

    def draw(axes: Axes) -> None:
        for i, (name, (low, middle, high)) in enumerate(values.items()):
            colour, _, _ = STYLES[styles[name]]
            axes.bar(i, middle, 0.6, color=colour, alpha=0.75)
            axes.errorbar(i, middle, [[middle - low], [high - middle]], color=INK, capsize=5)
        axes.axhline(chance, color=INK, linewidth=0.8, linestyle=":")
        axes.text(-0.5, chance, "guess ", va="center", ha="right", fontsize=8)
        names = [_escape_label(name).replace(":", ":\n") for name in values]
        axes.set_xticks(range(len(names)), names)
        axes.set(xlim=(-0.5, len(names) - 0.5), ylabel=up)
        _label_in_percent(axes, from_0_to_100=True)

    return drawing(draw, (3.6, 3.4))


def grouped_bars(
    groups: Mapping[str, Mapping[str, tuple[float, float, float]]],
    marks: Mapping[tuple[str, str], float],
    chances: Mapping[str, float | None],
    *,
    up: str,
) -> str:
    """Return an SVG of shares with intervals (low, middle, high) by group and name.

    ``marks``: group and name to a number beside it; ``chances``: group to what a guess comes to.
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    styles = styles_of(names)
    width = 0.8 / max(1, len(names))

    def draw(axes: Axes) -> None:
        for i, (group, values) in enumerate(groups.items()):
            for name, (low, middle, high) in values.items():
                at = i + width * (names.index(name) - (len(names) - 1) / 2)
                colour = STYLES[styles[name]][0]
                axes.bar(at, middle, 0.9 * width, color=colour, alpha=0.75)
                errors = [[middle - low], [high - middle]]
                axes.errorbar(at, middle, errors, color=INK, capsize=2, linewidth=0.8)
                if (group, name) in marks:
                    axes.plot(at, marks[group, name], marker="D", markersize=4, color=INK)
            if (chance := chances.get(group)) is not None:
                axes.hlines(chance, i - 0.45, i + 0.45, color=INK, linewidth=0.8, linestyle=":")
        for name in names:
            axes.bar(0, 0, color=STYLES[styles[name]][0], label=_escape_label(name))
        axes.set_xticks(range(len(groups)), [_escape_label(textwrap.fill(g, 12)) for g in groups])
        axes.tick_params(axis="x", labelsize=7, rotation=30 if len(groups) > 4 else 0)
        axes.set_ylabel(up)
        _label_in_percent(axes, from_0_to_100=True)
        axes.legend(frameon=False, fontsize=8)

    return drawing(draw, (6.0, 3.4))


def forest(
    differences: Mapping[str, Interval],
    *,
    is_share: bool,
    across: str,
    styles: Mapping[str, int] | None = None,
) -> str:
    """Return an SVG of differences with their intervals, one below the other, and a line at 0.

    ``styles``: name to the index of its style, else ``styles_of`` them.
    """
    return forests({"": differences}, is_share=is_share, across=across, styles=styles)


def forests(
    parts: Mapping[str, Mapping[str, Interval]],
    *,
    is_share: bool,
    across: str,
    styles: Mapping[str, int] | None = None,
) -> str:
    """Return an SVG of a ``forest`` for each part, with its title, each on an axis of its own."""
    names = [name for differences in parts.values() for name in differences]
    places = styles_of(names) if styles is None else styles
    labels = {name: textwrap.fill(name, _LABEL) for name in names}

    def draw(axes: Axes, title: str, differences: Mapping[str, Interval]) -> None:
        for i, (name, each) in enumerate(differences.items()):
            # The interval of a single pair is infinite.
            half = each.half if math.isfinite(each.half) else None
            colour, _, marker = STYLES[places[name]]
            axes.errorbar(each.mean, -i, xerr=half, color=colour, marker=marker, capsize=3, lw=1.4)
        axes.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        shown = [_escape_label(labels[name]) for name in differences]
        axes.set_yticks([-i for i in range(len(shown))], shown)
        axes.set(title=_escape_label(title), ylim=(0.6 - len(shown), 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        if is_share:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))

    def height(differences: Mapping[str, Interval]) -> float:
        lines = max((labels[name].count("\n") for name in differences), default=0)
        return (0.24 + 0.15 * lines) * len(differences)

    heights = [height(differences) for differences in parts.values()]
    with matplotlib.rc_context({**_RC, "axes.titlesize": 10}):
        size = (6.0, 0.5 + sum(heights) + 0.4 * len(parts))
        figure = Figure(figsize=size, layout="constrained")
        rows = figure.subplots(len(parts), squeeze=False, height_ratios=heights)
        for axes, (title, differences) in zip(rows.flat, parts.items(), strict=True):
            draw(axes, title, differences)
            axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel(_escape_label(across))
        return _in_ink_of_the_page(figure)


def against(points: Mapping[str, tuple[float, Interval]], *, across: str, up: str) -> str:
    """Return an SVG of named values with intervals at places across."""

    styles = styles_of(points)
    room = 0.02 * max(x for x, _ in points.values())

    def draw(axes: Axes) -> None:
        for name, (x, value) in points.items():
            # Points of one place stand side by side.
            beside = [other for other, (place, _) in points.items() if place == x]
            x += room * (beside.index(name) - (len(beside) - 1) / 2)
            colour, _, marker = STYLES[styles[name]]
            # The interval of a single seed is infinite.
            half = value.half if math.isfinite(value.half) else None
            label = _escape_label(name)
            axes.errorbar(x, value.mean, half, color=colour, marker=marker, ls="none", capsize=3)
            axes.containers[-1].set_label(label)
        axes.set(xlabel=across, ylabel=_escape_label(up))
        axes.set_xlim(left=0)
        # Below, where no interval can lie behind it.
        _legend_below(axes)

    return drawing(draw, (6.0, 3.2))


def scatter(points: Sequence[Sequence[float]], labels: Sequence[int], names: Sequence[str]) -> Plot:
    """Return a plot of labelled points, without ticks, because positions have no meaning."""
    positions, label_array = np.array(points), np.array(labels)

    def plot(axes: Axes) -> None:
        for i, name in enumerate(names):
            colour, _, marker = STYLES[i % len(STYLES)]
            x, y = positions[label_array == i].T
            label = _escape_label(name)
            axes.scatter(x, y, s=9, color=colour, marker=marker, label=label, linewidths=0)
        axes.set(xticks=[], yticks=[])
        axes.legend(frameon=False, markerscale=1.8, fontsize=8)

    return plot


def rows(matrix: np.ndarray, *, across: str, up: str) -> str:
    """Return an SVG of a matrix of shares of any shape."""

    def draw(axes: Axes) -> None:
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set(xlabel=across, ylabel=up)
        for axis, size in ((axes.xaxis, matrix.shape[1]), (axes.yaxis, matrix.shape[0])):
            axis.set_ticks(range(0, size, -(-size // _MOST_TICKS)))

    return drawing(draw, (4.2, 3.2), spines=True)


def signed_rows(matrix: np.ndarray, across: Sequence[str], up: Sequence[str]) -> str:
    """Return an SVG of a matrix of any numbers, NaN blank, with a name for each column and row."""
    limit = float(np.nanmax(np.abs(matrix))) or 1.0

    def draw(axes: Axes) -> None:
        image = axes.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
        for axis, names in ((axes.xaxis, across), (axes.yaxis, up)):
            ticks = range(0, len(names), max(1, len(names) // 24))
            axis.set_ticks(ticks, [_escape_label(names[i]) for i in ticks], fontsize=7)
        axes.tick_params(axis="x", rotation=90)
        axes.figure.colorbar(image, ax=axes, fraction=0.04)

    return drawing(draw, (5.4, 4.4), spines=True)


def heatmap(matrix: np.ndarray, *, across: str, up: str) -> str:
    """Return an SVG of a ``triangle``."""
    return drawing(triangle(matrix, across=across, up=up), (3.6, 3.4), spines=True)


def triangle(matrix: np.ndarray, *, across: str, up: str) -> Plot:
    """Return a plot of a lower triangle of shares, with numbers in the cells if there is room."""
    size = len(matrix)
    shown = np.where(np.tri(size, dtype=bool), matrix, np.nan)

    def draw(axes: Axes) -> None:
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(np.isfinite(shown)) if size <= 12 else ():
            # A colour that contrasts with the cell, whatever the page's colour is.
            colour = "#ffffff" if shown[i, j] > 0.5 else "#1a2b3c"
            number = axes.text(j, i, f"{shown[i, j]:.2f}", ha="center", va="center", color=colour)
            number.set_fontsize(min(9.0, 64 / size))
        ticks = range(0, size, -(-size // _MOST_TICKS))
        axes.set(xlabel=across, ylabel=up, xticks=ticks, yticks=ticks)

    return draw


def _escape_label(text: str) -> str:
    """Keep matplotlib from reading $ as a formula, and from hiding labels that start with _."""
    text = f" {text}" if text.startswith("_") else text
    return text.replace("$", r"\$")


def _label_in_percent(axes: Axes, *, from_0_to_100: bool) -> None:
    if from_0_to_100:
        # Some room above, so that a line at 1 is visible.
        axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
