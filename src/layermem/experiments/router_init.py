"""What routers' first weights are worth in language modelling: plain, LIMe "paper", "identity".

Each of the three takes the best of three learning rates by validation loss, on a seed kept for
that; then five other seeds, paired: one seed, one order of data, one set of shared weights. Equal
tokens.

    layermem experiment router-init --source text.jsonl.xz --out runs/router-init --jobs 2

It does not know: how a run is done.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from layermem.config import Run
from layermem.experiments import presets
from layermem.experiments.sweep import complete
from layermem.intervals import interval, paired
from layermem.runs import RunFolder

ARMS = {
    "plain": ("plain", ()),
    "paper": ("lime", ("router_init=paper",)),
    "identity": ("lime", ("router_init=identity",)),
}
_CHOOSING_SEED = 1000


@dataclass(frozen=True, kw_only=True)
class RouterInit:
    """Compare routers' first weights."""

    out: Path = Path("runs/router-init")
    """Folder of all its runs."""
    source: str = "stdlib"
    """Text to train on, as in --data.source."""
    validation: str | None = None
    """Text to validate on; None: a share of the documents."""
    preset: str = "tiny-lm"
    """Preset the runs are derived from."""
    steps: int | None = None
    """Optimiser steps; None: the preset's."""
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    """Learning rates to choose from."""
    seeds: int = 5
    """Paired seeds, 0, 1, ..."""
    jobs: int = 1
    """Runs at once."""

    def run(self, arm: str, rate: float, seed: int) -> Run:
        """Return one run."""
        base = presets.lookup(self.preset)
        variant, options = ARMS[arm]
        return replace(
            base,
            variant=variant,
            seed=seed,
            max_steps=self.steps or base.max_steps,
            model=replace(base.model, options=options),
            data=replace(base.data, source=self.source, validation=self.validation),
            optim=replace(base.optim, lr=rate),
        )


def main(asked: RouterInit) -> None:
    """Do what is missing, then print the table."""
    choosing = {
        f"{arm}-lr{rate:g}-s{_CHOOSING_SEED}": asked.run(arm, rate, _CHOOSING_SEED)
        for arm in ARMS
        for rate in asked.rates
    }
    losses = _losses(complete(choosing, asked.out, asked.jobs))
    chosen = {arm: _best(arm, asked.rates, losses) for arm in ARMS}
    seeds = range(asked.seeds)
    runs = {
        f"{arm}-lr{chosen[arm]:g}-s{seed}": asked.run(arm, chosen[arm], seed)
        for seed in seeds
        for arm in ARMS
    }
    losses |= _losses(complete(runs, asked.out, asked.jobs))
    by_arm = {arm: [losses[f"{arm}-lr{chosen[arm]:g}-s{seed}"] for seed in seeds] for arm in ARMS}
    _show(asked, losses, chosen, by_arm)


def _best(arm: str, rates: Sequence[float], losses: Mapping[str, float]) -> float:
    """Return the rate of the lowest loss on the seed kept for choosing."""
    return min(rates, key=lambda rate: losses[f"{arm}-lr{rate:g}-s{_CHOOSING_SEED}"])


def _losses(folders: dict[str, RunFolder]) -> dict[str, float]:
    return {
        name: [row["val_loss"] for row in folder.rows() if "val_loss" in row][-1]
        for name, folder in folders.items()
    }


def _show(
    asked: RouterInit,
    losses: dict[str, float],
    chosen: dict[str, float],
    by_arm: dict[str, list[float]],
) -> None:
    run = asked.run("plain", asked.rates[0], 0)
    console = Console()
    console.print(
        f"{asked.preset} on {asked.source}: {run.max_steps * run.tokens_per_step:,} tokens, "
        f"{asked.seeds} paired seeds; 95% intervals"
    )
    table = Table("", "lr tried: validation loss", "lr", "loss", "against plain", box=None)
    for arm, values in by_arm.items():
        tried = "  ".join(
            f"{rate:g}: {losses[f'{arm}-lr{rate:g}-s{_CHOOSING_SEED}']:.4f}" for rate in asked.rates
        )
        gap = paired(values, by_arm["plain"])
        change = "" if arm == "plain" else f"{gap} ({math.expm1(gap.mean):+.1%} perplexity)"
        table.add_row(arm, tried, f"{chosen[arm]:g}", str(interval(values)), change)
    console.print(table)
