"""What variants cost, as tables and curves, from the figures alone.

It does not know: torch, how anything was counted or measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from layermem.report import figures
from layermem.report.page import Figure, Section, Table

COUNTED = (
    "FLOPs of the forward of one sequence, in closed form: two a multiply-add, attention to the "
    "keys a causal query sees. The paper's (Table 8): one a multiply-add of linear layers and "
    "routers, two of attention, all keys."
)
# What is counted, and how.
_COUNTS = (("honest", "parameters"), ("honest", "forward"), ("paper", "forward"))
Point = Mapping[str, Any]
"""Sizes, and costs of variants at them."""
# Along what costs are drawn, and what else then tells points apart.
_AXES = {"layers": "width", "width": "layers"}


def counted(points: Sequence[Point]) -> Table:
    """Return parameters and FLOPs, in the form of the paper's Table 8."""
    rows = []
    for point in points:
        variants = point["variants"]
        base: Any = None
        for name, cost in variants.items():
            cells = []
            for how, what in _COUNTS:
                cells += _against(cost[how][what], base and base[how][what])
            rows.append(["" if base else _where(point), name, *cells])
            base = base or cost
    header = ["", "variant", "parameters", "more", "FLOPs", "more", "paper's FLOPs", "more"]
    return Table(header=header, rows=rows, caption=COUNTED)


def measured(found: Mapping[str, Any]) -> Table:
    """Return the time and memory of a step, in the form of the paper's Table 9."""
    rows = []
    for point in found["points"]:
        for mode, variants in point["measured"].items():
            base: Any = None
            for name, one in variants.items():
                middle, low, high = (f"{1e3 * one[q]:.4g}" for q in ("seconds", "low", "high"))
                _, more = _against(one["seconds"], base and base["seconds"])
                memory = ["unknown", ""]
                if one["peak"] is not None:
                    memory = _against(one["peak"], base and base["peak"], 4, "B")
                where = "" if base else f"{_where(point)}, {mode}"
                rows.append([where, name, f"{middle} ms ({low} to {high})", more, *memory])
                base = base or one
    asked = found["asked"]
    return Table(
        header=["", "variant", "step, median (quartiles)", "more", "peak memory", "more"],
        rows=rows,
        caption=f"{found['machine']}, {found['precision']}; {asked['batch']} sequences a step, "
        f"{asked['repeats']} rounds side by side in one process after a warm-up; a step is "
        "forward, backward, AdamW. On a CPU, time is the process's own. Peak: model, optimiser and "
        "a step, in a process of its own.",
    )


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the curves side by side into a file."""
    figures.save([plot for plot, _ in drawings(found["points"])], path)


def drawings(points: Sequence[Point]) -> Iterator[tuple[Callable[[Axes], None], str]]:
    """Yield what plots costs along depth and along width, where there is more than one of it."""
    if all(len(point["variants"]) < 2 for point in points):
        return
    for axis, other in _AXES.items():
        if len({point[axis] for point in points}) < 2:
            continue
        yield _plot(points, axis, other, _flops, "FLOPs"), f"FLOPs of a forward by {axis}"
        if all("measured" in point for point in points):
            *_, mode = points[0]["measured"]
            what = f"time of a step by {axis} ({mode})"
            yield _plot(points, axis, other, _seconds, "time"), what


def section(
    title: str, points: Sequence[Point], along: Sequence[Sequence[Point]], missing: str
) -> Section:
    """Return the part of a page about what is counted: ``points`` are of the runs' own sizes,
    ``along`` of others; ``missing`` says what would measure."""
    drawn = [pair for line in along for pair in drawings(line)]
    lacks = [missing] if missing else []
    if not drawn:
        lacks.append("Curves along depth and width want a second variant of the same sizes.")
    return Section(
        title=title, paragraphs=lacks, tables=[counted(points)], figures=_figures(drawn, points)
    )


def given(title: str, found: Mapping[str, Any], command: str) -> Section:
    """Return the part of a page about a file that ``layermem costs`` has written."""
    points = found["points"]
    was = bool(found["machine"])
    return Section(
        title=title,
        paragraphs=[] if was else ["Counted, not measured: it was written without --measure."],
        tables=[measured(found) if was else counted(points)],
        figures=_figures(list(drawings(points)), points),
        commands=[command] if command else [],
    )


def _figures(
    drawn: Sequence[tuple[Callable[[Axes], None], str]], points: Sequence[Point]
) -> list[Figure]:
    names = ", ".join(dict.fromkeys(point["preset"] for point in points))
    first = next(iter(points[0]["variants"]))
    return [
        Figure(svg=figures.drawing(plot), caption=f"{names}: {what}, more than {first}.")
        for plot, what in drawn
    ]


def _plot(
    points: Sequence[Point],
    axis: str,
    other: str,
    costs: Callable[[Point], Mapping[str, float]],
    what: str,
) -> Callable[[Axes], None]:
    """Return what draws how much more than the first each variant costs, a line for each."""
    apart = [key for key in ("preset", other) if len({point[key] for point in points}) > 1]
    lines: dict[str, tuple[list[float], list[float]]] = {}
    styles: dict[str, int] = {}
    for point in sorted(points, key=lambda point: point[axis]):
        found = costs(point)
        first, *others = found
        for i, name in enumerate(others, 1):
            told = [f"{point[key]}" if key == "preset" else f"{key} {point[key]}" for key in apart]
            label = ", ".join([name, *told])
            # The first variant's style is its own, though it is not drawn.
            styles.setdefault(label, len(styles) if apart else i)
            across, up = lines.setdefault(label, ([], []))
            across.append(point[axis])
            up.append(found[name] / found[first] - 1)
    return lambda axes: figures.plot_curves(
        axes,
        lines,
        across=axis,
        up=f"{what}, more than {first}",
        scale="percent",
        styles=styles,
    )


def _flops(point: Point) -> dict[str, float]:
    return {name: cost["honest"]["forward"] for name, cost in point["variants"].items()}


def _seconds(point: Point) -> dict[str, float]:
    # Of several modes, the last: what the user names last is the one that is meant.
    *_, variants = point["measured"].values()
    return {name: one["seconds"] for name, one in variants.items()}


def _where(point: Point) -> str:
    heads = f"{point['heads']} heads"
    if point["kv_heads"] != point["heads"]:
        heads += f" ({point['kv_heads']} kv)"
    return f"{point['preset']}: {point['layers']} x {point['width']}, {heads}, T {point['tokens']}"


def _against(value: float, base: float | None, digits: int = 6, unit: str = "") -> list[str]:
    """Return a number and by how much it is more than another; None: it is the first."""
    return [f"{short(value, digits)}{unit}", f"{value / base - 1:+.2%}" if base else ""]


def short(number: float, digits: int = 6) -> str:
    """Write a large number with its unit."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.{digits}g}"
