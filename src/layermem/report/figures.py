"""Figures as inline SVG, in the page's own colours, readable on light and on dark.

It does not know: torch, run folders, pages.
"""

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Told apart without colour too: by dashes and markers. Read on light and on dark.
STYLES = (
    ("#2f7fc4", "-", "o"),
    ("#d9622b", "--", "s"),
    ("#2a9d5c", "-.", "^"),
    ("#9a5fd0", ":", "D"),
    ("#c2438d", "-", "v"),
    ("#7a8594", "--", "P"),
    ("#0f9aa7", "-.", "X"),
    ("#a37f1c", ":", "*"),
)
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Name to where a line goes: across, up."""
Bands = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Name to lower and upper edge of its band."""
Scale = Literal["number", "share", "percent"]
"""How the upward axis reads: as it is, from 0% to 100%, in percent of any size."""
# Stands for the page's own colour, and occurs nowhere else.
_INK = "#010203"
_RC = {
    "svg.hashsalt": "layermem",
    "svg.fonttype": "none",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "font.size": 10,
}


def curves(
    series: Series,
    *,
    across: str,
    up: str,
    scale: Scale = "number",
    bands: Bands | None = None,
    styles: Mapping[str, int] | None = None,
) -> str:
    """Draw one line for each name, in its band; ``styles``: which style is whose."""
    return drawing(
        lambda axes: plot_curves(
            axes, series, across=across, up=up, scale=scale, bands=bands, styles=styles
        )
    )


def drawing(plot: Callable[[Axes], None]) -> str:
    """Draw what ``plot`` draws."""
    return _svg(plot, (6.0, 3.4))


def plot_curves(
    axes: Axes,
    series: Series,
    *,
    across: str,
    up: str,
    scale: Scale = "number",
    bands: Bands | None = None,
    styles: Mapping[str, int] | None = None,
) -> None:
    """Draw the same into given axes."""
    for i, (name, (x, y)) in enumerate(series.items()):
        colour, dashes, marker = STYLES[(styles or {}).get(name, i) % len(STYLES)]
        axes.plot(x, y, color=colour, linestyle=dashes, marker=marker, markersize=3)
        axes.lines[-1].set_label(_plain(name))
        if bands is not None:
            axes.fill_between(x, *bands[name], color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(across)
    axes.set_ylabel(_plain(up))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if scale != "number":
        _in_percent(axes, whole=scale == "share")
    axes.legend(frameon=False)


def bars(values: Mapping[str, tuple[float, float, float]], *, up: str, chance: float) -> str:
    """Draw shares with their intervals (low, middle, high), and what a guess is worth."""

    def draw(axes: Axes) -> None:
        for i, (low, middle, high) in enumerate(values.values()):
            colour, _, _ = STYLES[i % len(STYLES)]
            axes.bar(i, middle, 0.6, color=colour, alpha=0.75)
            axes.errorbar(i, middle, [[middle - low], [high - middle]], color=_INK, capsize=5)
        axes.axhline(chance, color=_INK, linewidth=0.8, linestyle=":")
        axes.text(-0.5, chance, "guess ", va="center", ha="right", fontsize=8)
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_xticks(range(len(values)), [_plain(name).replace(":", ":\n") for name in values])
        axes.set_ylabel(up)
        _in_percent(axes, whole=True)

    return _svg(draw, (3.6, 3.4))


def scatter(points: Sequence[Sequence[float]], labels: Sequence[int], names: Sequence[str]) -> str:
    """Draw labelled points; the axes mean nothing and are left out."""
    return _svg(lambda axes: plot_points(axes, points, labels, names), (4.2, 3.8), spines=True)


def plot_points(
    axes: Axes, points: Sequence[Sequence[float]], labels: Sequence[int], names: Sequence[str]
) -> None:
    """Draw the same into given axes."""
    where, kinds = np.array(points), np.array(labels)
    for i, name in enumerate(names):
        colour, _, marker = STYLES[i % len(STYLES)]
        x, y = where[kinds == i].T
        axes.scatter(x, y, s=9, color=colour, marker=marker, label=_plain(name), linewidths=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(frameon=False, markerscale=1.8, fontsize=8)


def rows(matrix: np.ndarray, *, across: str, up: str) -> str:
    """Draw a matrix of shares of any shape."""

    def draw(axes: Axes) -> None:
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        for axis, size in ((axes.xaxis, matrix.shape[1]), (axes.yaxis, matrix.shape[0])):
            axis.set_ticks(range(0, size, max(1, size // 16)))

    return _svg(draw, (4.2, 3.2), spines=True)


def heatmap(matrix: np.ndarray, *, across: str, up: str) -> str:
    """Draw a lower triangle of shares, the numbers in its cells where there is room."""
    size = len(matrix)
    shown = np.where(np.tri(size, dtype=bool), matrix, np.nan)

    def draw(axes: Axes) -> None:
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(np.isfinite(shown)) if size <= 12 else ():
            # In contrast with the cell, whatever the page's colour.
            ink = "#ffffff" if shown[i, j] > 0.5 else "#1a2b3c"
            axes.text(j, i, f"{shown[i, j]:.2f}", ha="center", va="center", color=ink)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.set_xticks(range(size) if size <= 32 else range(0, size, size // 16))
        axes.set_yticks(range(size) if size <= 32 else range(0, size, size // 16))

    return _svg(draw, (3.6, 3.4), spines=True)


def check(path: Path) -> None:
    """Refuse a file whose suffix is no kind of figure."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"a figure must end in .svg, .png or .pdf, got {path}")


def save(
    panels: Sequence[Callable[[Axes], None]], path: Path, size: tuple[float, float] = (3.4, 3.1)
) -> None:
    """Draw panels side by side into a file; its suffix (svg, png, pdf) is its kind."""
    with matplotlib.rc_context(
        {"svg.hashsalt": "layermem", "svg.fonttype": "none", "font.size": 9}
    ):
        figure = Figure(figsize=(size[0] * len(panels), size[1]), layout="constrained")
        for axes, draw in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            draw(axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _plain(text: str) -> str:
    """Keep a name from being read as a formula, or as one to hide, which starts with a line."""
    text = f" {text}" if text.startswith("_") else text
    return text.replace("$", r"\$")


def _in_percent(axes: Axes, *, whole: bool) -> None:
    if whole:
        # Room above, so that a line at 1 is seen.
        axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _svg(draw: Callable[[Axes], None], size: tuple[float, float], *, spines: bool = False) -> str:
    """Return a figure as an svg element."""
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if not spines:
            axes.spines[["top", "right"]].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids of several figures on one page must not meet.
    mark = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r'\bid="', f'id="{mark}', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{mark}", text)
