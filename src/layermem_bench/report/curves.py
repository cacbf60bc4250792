"""Draws learning curves: of runs as they are, and of arms with their seeds as bands."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes

from layermem_bench.report import figures
from layermem_bench.results.run_folder import RunFolder, unique_names
from layermem_bench.results.study import Validation


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
                validation.step: (getattr(validation, across), getattr(validation, up))
                for validation in validations
                if None not in (getattr(validation, across), getattr(validation, up))
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


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """The rows of one run."""

    name: str
    """Its variant, options and seed."""
    state: str
    """How far it is, if not at its end."""
    rows: Sequence[Mapping[str, Any]]
    """Its metrics."""

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return tokens and value of the rows that have this value."""
        return [(row["tokens"], row[name]) for row in self.rows if name in row]


def draw_curves(runs: Sequence[Path], out: Path) -> None:
    """Draw the curves of run folders into a file; its suffix (svg, png, pdf) is its kind."""
    figures.check(out)
    if not runs:
        raise ValueError("name at least one run folder")
    curves = [_read_curve(path) for path in runs]
    names = [curve.name for curve in curves]
    # Runs of one name (they differ in a learning rate, or in their data) show their folder too.
    folders = unique_names([path.resolve().parts for path in runs])
    labels = [
        f"{name} ({folder})" if names.count(name) > 1 else name
        for name, folder in zip(names, folders, strict=True)
    ]

    def plot(axes: Axes) -> None:
        for i, (label, curve) in enumerate(zip(labels, curves, strict=True)):
            colour, dashes, _ = figures.STYLES[i % len(figures.STYLES)]
            trained, validated = curve.points("loss"), curve.points("val_loss")
            axes.plot(*zip(*trained, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            if validated:
                text = f"{label}: validation loss {validated[-1][1]:.3f}{curve.state}"
                axes.plot(*zip(*validated, strict=True), color=colour, linestyle=dashes, label=text)
            else:
                axes.plot([], [], color=colour, label=f"{label}{curve.state}")
        axes.set_xlabel("tokens")
        axes.set_ylabel("loss (thin: training)")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)

    figures.save([plot], out, size=(7.0, 4.0))


def _read_curve(path: Path) -> _Curve:
    folder = RunFolder(path)
    rows = folder.rows()
    if not any("loss" in row for row in rows):
        raise ValueError(f"{path} is no run folder, or holds no metrics yet")
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    options = " ".join(config["model"]["options"])
    name = f"{config['variant']}{' ' * bool(options)}{options}, seed {config['seed']}"
    losses = [row[key] for row in rows for key in ("loss", "val_loss") if key in row]
    if folder.diverged.exists() or not all(map(math.isfinite, losses)):
        state = f" (diverged by step {rows[-1]['step']})"
    else:
        state = "" if folder.final.exists() else f" (at step {rows[-1]['step']})"
    return _Curve(name=name, state=state, rows=rows)
