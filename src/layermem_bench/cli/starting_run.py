"""The run that `layermem train` and `layermem study` start from: a preset's or a config's.

layermem train tiny-lm --seed 2             the preset's options are the defaults
layermem train --config DIR/config.yaml     the config's options are the defaults
layermem train DIR --resume                 so are those of a run, which goes on
layermem train --host.model MODEL           a model of transformers goes on, on any text or task
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro

from layermem_bench import presets
from layermem_bench.config.host import start_from_host
from layermem_bench.config.labels import Labels
from layermem_bench.config.run import Optim, Run, merged
from layermem_bench.run.folder import RunFolder, load_run

logger = logging.getLogger(__name__)
FINETUNE = Run(preset="finetune", optim=Optim(lr=5e-5, weight_decay=0.0))
"""What a model of transformers starts from where no preset is named."""
_T = TypeVar("_T", bound="StartingRun")


@dataclass(frozen=True, kw_only=True)
class StartingRun(Run):
    """Options of a command that starts from a preset, a config or a model of transformers."""

    keeps_variant: ClassVar[bool] = True
    """Whether a config's options of its variant are taken, as by a command that trains it."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")] = ""
    """Preset to start from: a name that `layermem list presets` shows; or the folder of a run,
    whose config is taken. It comes first; none: of --host.model alone."""
    config: Path | None = None
    """Config to start from, in place of a preset: the config.yaml of a run."""


def with_base_run(kind: type[_T], command: str, args: Sequence[str]) -> _T:
    """Return a command's options with the defaults of what its arguments start from.

    The preset is the first argument, or a config follows --config, a model --host.model.
    """
    preset = args[0] if args and not args[0].startswith("-") else ""
    config, host = _value_of("--config", args), _value_of("--host.model", args)
    if not (preset or config or host):
        if {"--help", "-h"} & {*args}:
            return kind()
        raise ValueError(
            f"name a preset first (layermem {command} PRESET [--option ...]), or give --config or "
            f"--host.model; presets: {', '.join(presets.names())}"
        )
    base = _base_run(kind, preset, Path(config) if config else None, host)
    return kind(**_fields(base) | {"preset": preset})


def _base_run(kind: type[StartingRun], preset: str, config: Path | None, host: str | None) -> Run:
    if config is not None and preset:
        raise ValueError(f"give a preset or --config, got {preset} and --config {config}")
    if is_run_folder(preset):
        run = _load(RunFolder(preset).config, kind)
    elif config is not None:
        run = _load(config, kind)
    else:
        run = presets.get_preset(preset) if preset else FINETUNE
    return run if host is None else start_from_host(run, host)


def resolve_run(options: StartingRun) -> Run:
    """Return the run of these options; options of the model or the task are added to the base's."""
    base = _base_run(type(options), options.preset, options.config, options.host.model)
    run = Run(**_fields(options) | {"preset": base.preset})
    _check_has_effect(run, base)
    model = replace(run.model, options=merged(base.model.options, run.model.options))
    task = replace(run.task, options=merged(base.task.options, run.task.options))
    run = replace(run, model=model, task=task)
    # Another run than the config's, but for the seed, is of no board and arm of its.
    if run.labels == base.labels and replace(run, seed=base.seed).id != base.id:
        run = replace(run, labels=Labels())
    return run


def _check_has_effect(run: Run, base: Run) -> None:
    """Raise where a size or an option of the text has none. What a preset or a recorded config
    holds beside what counts is left alone."""
    changed = {k: v for k, v in vars(run.data).items() if v != getattr(base.data, k)}
    sizes, usual = run.model.sizes(), base.model.sizes()
    if run.model.pretrained and sizes != usual:
        given = ", ".join(f"model.{k}={v}" for k, v in sizes.items() if v != usual[k])
        raise ValueError(f"{run.model.pretrained} has its own sizes: leave {given} out")
    for name, value in changed.items() if run.task.name else ():
        # The block size is also the number of positions that the model has.
        if name not in ("block_size", "cache"):
            raise ValueError(
                f"data.{name}={value} is for runs on text, and this run is on a task, "
                f"{run.task.name}: leave {name} out, or choose a preset of text"
            )


def is_run_folder(name: str) -> bool:
    """Return whether a name is the folder of a run."""
    return bool(name) and RunFolder(name).config.exists()


def _value_of(option: str, args: Sequence[str]) -> str | None:
    """Return what follows an option, as ``--config FILE`` or ``--config=FILE``."""
    values = [arg.partition("=")[2] for arg in args if arg.startswith(f"{option}=")]
    values += [value for arg, value in pairwise(args) if arg == option]
    if len(values) > 1:
        raise ValueError(f"give one {option}, got {' and '.join(values)}")
    return values[0] if values else None


def _load(config: Path, kind: type[StartingRun]) -> Run:
    run = load_run(config)
    if kind.keeps_variant or not run.model.options:
        return run
    from layermem_bench.run.setup import plain_options

    kept = plain_options(run.model.options)
    if left_out := [option for option in run.model.options if option not in kept]:
        logger.info(
            "%s of %s: options of its variant are left out; arms name theirs "
            "(--variants plain,%s:%s)",
            *(" ".join(left_out), config, run.variant, ":".join(left_out)),
        )
    return replace(run, model=replace(run.model, options=kept))


def _fields(run: Run) -> dict[str, Any]:
    return {field.name: getattr(run, field.name) for field in fields(Run)}
