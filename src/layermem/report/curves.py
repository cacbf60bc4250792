"""Learning curves of runs, side by side: loss against tokens, from their metrics alone.

It does not know: torch, models, how a run was made.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import yaml
from matplotlib.figure import Figure

from layermem.runs import RunFolder

# Told apart without colour too: by dashes.
_STYLES = (("#1f6fb4", "-"), ("#c2410c", "--"), ("#15803d", "-."), ("#7e22ce", ":"))


def draw_curves(runs: Sequence[Path], out: Path) -> None:
    """Draw the curves of run folders into a file; its suffix (svg, png, pdf) is its kind."""
    if not runs:
        raise ValueError("name at least one run folder")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, path in enumerate(runs):
        colour, dashes = _STYLES[i % len(_STYLES)]
        name, rows = _read(path)
        trained = [(row["tokens"], row["loss"]) for row in rows if "loss" in row]
        held = [(row["tokens"], row["val_loss"]) for row in rows if "val_loss" in row]
        axes.plot(*zip(*trained, strict=True), color=colour, alpha=0.25, linewidth=0.8)
        if held:
            label = f"{name}: validation loss {held[-1][1]:.3f}"
            axes.plot(*zip(*held, strict=True), color=colour, linestyle=dashes, label=label)
        else:
            axes.plot([], [], color=colour, label=name)
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss (thin: training)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    # The same picture gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "layermem", "svg.fonttype": "none"}):
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def _read(path: Path) -> tuple[str, list[dict[str, float]]]:
    folder = RunFolder(path)
    rows = folder.rows()
    if not any("loss" in row for row in rows):
        raise ValueError(f"{path} is no run folder, or holds no metrics yet")
    config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    options = " ".join(config["model"]["options"])
    name = f"{config['variant']}{' ' * bool(options)}{options}, seed {config['seed']}"
    return name, rows
