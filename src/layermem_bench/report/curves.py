"""Draws learning curves: of runs as they are, and of arms with their seeds as bands."""

import math
import statistics
from collections.abc import Mapping, Sequence
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


def draw_curves(runs: Sequence[Path], out: Path) -> None:
    """Draw the curves of run folders into a file; its suffix (svg, png, pdf) is its kind."""
    figures.check(out)
    if not runs:
        raise ValueError("name at least one run folder")
    read = [_read_run(path) for path in runs]
    names = [name for name, _, _ in read]
    # Runs of one name (they differ in a learning rate, or in their data) show their folder too.
    folders = unique_names([path.resolve().parts for path in runs])

    def plot(axes: Axes) -> None:
        for i, ((name, state, rows), folder) in enumerate(zip(read, folders, strict=True)):
            label = f"{name} ({folder})" if names.count(name) > 1 else name
            colour, dashes, _ = figures.STYLES[i % len(figures.STYLES)]
            trained, validated = (
                [(row["tokens"], row[key]) for row in rows if key in row]
                for key in ("loss", "val_loss")
            )
            axes.plot(*zip(*trained, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            if validated:
                text = f"{label}: validation loss {validated[-1][1]:.3f}{state}"
                axes.plot(*zip(*validated, strict=True), color=colour, linestyle=dashes, label=text)
            else:
                axes.plot([], [], color=colour, label=f"{label}{state}")
        axes.set(xlabel="tokens", ylabel="loss (thin: training)")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)

    figures.save([plot], out, size=(7.0, 4.0))


def _read_run(path: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """Return a run's variant, options and seed; how far it is, if not at its end; its metrics."""
    folder = RunFolder(path)
    rows = folder.rows()
    if not any("loss" in row for row in rows):
        raise ValueError(f"{path} is no run folder, or holds no metrics yet")
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    name = " ".join([config["variant"], *config["model"]["options"]])
    losses = [row[key] for row in rows for key in ("loss", "val_loss") if key in row]
    if folder.diverged.exists() or not all(map(math.isfinite, losses)):
        state = f" (diverged by step {rows[-1]['step']})"
    else:
        state = "" if folder.final.exists() else f" (at step {rows[-1]['step']})"
    return f"{name}, seed {config['seed']}", state, rows
