"""Learning curves: of runs as they are, and of arms with their seeds as bands.

It does not know: torch, models, how a run was made.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes

from layermem.report import figures
from layermem.runs import RunFolder, unique_names

Rows = Sequence[Mapping[str, float]]
"""What a run's validations recorded."""


def of_arms(
    arms: Mapping[str, Sequence[Rows]], across: str, up: str
) -> tuple[figures.Series, figures.Bands]:
    """Return each arm's mean over its runs, in a band from the lowest to the highest of them.

    Only steps that all of an arm's runs have validated at count.
    """
    series, bands = {}, {}
    for arm, runs in arms.items():
        by_step = [
            {row["step"]: row for row in rows if across in row and up in row} for rows in runs
        ]
        steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
        if not steps:
            continue
        values = [[rows[step][up] for rows in by_step] for step in steps]
        where = [statistics.fmean(rows[step][across] for rows in by_step) for step in steps]
        series[arm] = where, [statistics.fmean(each) for each in values]
        bands[arm] = [min(each) for each in values], [max(each) for each in values]
    return series, bands


def draw_curves(runs: Sequence[Path], out: Path) -> None:
    """Draw the curves of run folders into a file; its suffix (svg, png, pdf) is its kind."""
    figures.check(out)
    if not runs:
        raise ValueError("name at least one run folder")
    found = [_read(path) for path in runs]
    names = [name for name, _, _ in found]
    # What is called alike (it differs in a rate, or in its data) is told apart by its folder.
    folders = unique_names([path.resolve().parts for path in runs])
    labels = [
        f"{name} ({folder})" if names.count(name) > 1 else name
        for name, folder in zip(names, folders, strict=True)
    ]

    def plot(axes: Axes) -> None:
        for i, (label, (_, state, rows)) in enumerate(zip(labels, found, strict=True)):
            colour, dashes, _ = figures.STYLES[i % len(figures.STYLES)]
            trained = [(row["tokens"], row["loss"]) for row in rows if "loss" in row]
            held = [(row["tokens"], row["val_loss"]) for row in rows if "val_loss" in row]
            axes.plot(*zip(*trained, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            if held:
                said = f"{label}: validation loss {held[-1][1]:.3f}{state}"
                axes.plot(*zip(*held, strict=True), color=colour, linestyle=dashes, label=said)
            else:
                axes.plot([], [], color=colour, label=f"{label}{state}")
        axes.set_xlabel("tokens")
        axes.set_ylabel("loss (thin: training)")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)

    figures.save([plot], out, size=(7.0, 4.0))


def _read(path: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """Return what a run is called, how far it is if not at its end, and its rows."""
    folder = RunFolder(path)
    rows = folder.rows()
    if not any("loss" in row for row in rows):
        raise ValueError(f"{path} is no run folder, or holds no metrics yet")
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    options = " ".join(config["model"]["options"])
    name = f"{config['variant']}{' ' * bool(options)}{options}, seed {config['seed']}"
    lost = any(not math.isfinite(row.get(key, 0.0)) for row in rows for key in ("loss", "val_loss"))
    if folder.diverged.exists() or lost:
        state = f" (diverged by step {rows[-1]['step']})"
    else:
        state = "" if folder.final.exists() else f" (at step {rows[-1]['step']})"
    return name, state, rows
