"""`layermem train`: one run, from a preset or a config with options on top.

It does not know: how a run is trained.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from layermem.cli.starting_run import StartingRun, resolve_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Train(StartingRun):
    """Train one model: a preset, or the config of a run, with options on top.

    Every option but --out and --resume is a field of the run's config.
    """

    out: Path | None = None
    """Folder of the run; default: runs/PRESET-VARIANT-sSEED."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder."""


def train(options: Train, command: str) -> None:
    """Train a run and print its folder."""
    from transformers.utils import logging as transformers_logging

    from layermem.evals.solving import evaluate
    from layermem.models.registry import lookup
    from layermem.train.run import train as train_run

    run = resolve_run(options)
    if run.host.model is None:
        lookup(run.variant)
    # One progress display is enough.
    transformers_logging.disable_progress_bar()
    out = options.out or Path("runs") / f"{run.preset}-{run.variant}-s{run.seed}"
    folder = train_run(run, out, resume=options.resume, evaluate=evaluate)
    logger.info("%s", folder.path)
