"""`layermem train`: one run, from a preset or a config with options on top.

layermem train tiny-lm --variant lime                         a decoder of ours
layermem train runs/x --resume                                a run goes on
layermem train --host.model MODEL --data.source FILE          a model of transformers goes on
layermem train tiny-aet-4 --host.model MODEL                  the same, on a preset's task
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from layermem_bench.cli.options import StartingRun, is_run_folder, resolve_run
from layermem_bench.cli.screen import show_estimates
from layermem_bench.config.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Train(StartingRun):
    """Train one model: a preset, or the config of a run, with options on top. With --host.model a
    model of transformers goes on training, with layer memory or without.

    Every option but --out, --resume and --dry-run is a field of the run's config.
    """

    out: Path | None = None
    """Folder of the run; default: runs/PRESET-VARIANT-sSEED, of a model of transformers
    runs/MODEL-TRAIN-MEMORY-sSEED with the task."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder, which may stand in place of a preset."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print what the run would take; train nothing."""


def train(options: Train, command: str) -> None:
    """Train a run and print its folder."""
    from layermem_bench.studies.boards import as_named_arm

    run = resolve_run(options)
    out = Path(options.preset) if is_run_folder(options.preset) else _default_folder(run)
    if run.host.model is None:
        run = as_named_arm(run)
    if options.dry_run:
        from layermem_bench.studies.estimates import estimate_run

        show_estimates([estimate_run(run)])
        return
    from layermem_bench.evals.solving import evaluate
    from layermem_bench.run.processes import restart_count
    from layermem_bench.run.training import train as train_run

    # torchrun starts all processes again with the same command when one of them has died.
    resume = options.resume or restart_count() > 0
    folder = train_run(run, options.out or out, resume=resume, evaluate=evaluate)
    logger.info("%s", folder.path)


def _default_folder(run: Run) -> Path:
    """Return the folder of a run whose command names none."""
    from layermem_bench.studies.planning import name_in_folders

    host, name = run.host, f"{run.preset}-{run.variant}"
    if host.model is not None:
        apart, grain = "" if host.shares_kv else "apart", "" if host.grain == "pair" else host.grain
        parts = [Path(host.model).name, run.task.name, host.train, host.memory, apart, grain]
        name = "-".join(filter(None, parts))
    return Path("runs") / f"{name_in_folders(name)}-s{run.seed}"
