"""The run that `layermem train` and `layermem study` start from: a preset's or a config's.

layermem train tiny-lm --seed 2             the preset's options are the defaults
layermem train --config DIR/config.yaml     the config's options are the defaults
layermem train DIR --resume                 so are those of a run, which goes on
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro

from layermem_bench import presets
from layermem_bench.config.labels import Labels
from layermem_bench.config.run import Run, merged
from layermem_bench.results.run_folder import RunFolder

logger = logging.getLogger(__name__)
_T = TypeVar("_T", bound="StartingRun")


@dataclass(frozen=True, kw_only=True)
class StartingRun(Run):
    """Options of a command that starts from a preset or a config."""

    keeps_variant: ClassVar[bool] = True
    """Whether a config's options of its variant are taken, as by a command that trains it."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")] = ""
    """Preset to start from: a name that `layermem list presets` shows; or the folder of a run,
    whose config is taken. It comes first."""
    config: Path | None = None
    """Config to start from, in place of a preset: the config.yaml of a run."""


def with_base_run(kind: type[_T], command: str, args: Sequence[str]) -> _T:
    """Return a command's options with the defaults of the preset or the config in its arguments.

    The preset is the first argument, or the config follows --config.
    """
    config = _config_argument(args)
    if args and is_run_folder(args[0]):
        run = _load(RunFolder(args[0]).config, kind)
        return kind(**_fields(run) | {"preset": args[0]})
    if args and not args[0].startswith("-"):
        return kind(**_fields(presets.get_preset(args[0])) | {"preset": args[0]})
    if config is not None:
        return kind(**_fields(_load(Path(config), kind)) | {"preset": ""})
    if "--help" in args or "-h" in args:
        return kind()
    raise ValueError(
        f"name a preset first (layermem {command} PRESET [--option ...]) or give --config; "
        f"presets: {', '.join(presets.names())}"
    )


def resolve_run(options: StartingRun) -> Run:
    """Return the run of these options; options of the model or the task are added to the base's."""
    if options.config is not None and options.preset:
        raise ValueError(
            f"give a preset or --config, got {options.preset} and --config {options.config}"
        )
    if is_run_folder(options.preset):
        base = _load(RunFolder(options.preset).config, type(options))
    elif options.config is None:
        base = presets.get_preset(options.preset)
    else:
        base = _load(options.config, type(options))
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
    changed = {
        field.name: value
        for field in fields(run.data)
        if (value := getattr(run.data, field.name)) != getattr(base.data, field.name)
    }
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
    if run.data.validation is not None:
        check_no_share(changed.get("validation_share"), run.data.validation)


def check_no_share(share: float | None, validation: str) -> None:
    """Raise where a share to hold out is given beside a text of validation."""
    if share is not None:
        raise ValueError(
            f"data.validation_share={share:g} is for runs that hold out a share of their text, and "
            f"data.validation={validation} is given: leave one of them out"
        )


def is_run_folder(name: str) -> bool:
    """Return whether a name is the folder of a run."""
    return bool(name) and RunFolder(name).config.exists()


def _config_argument(args: Sequence[str]) -> str | None:
    """Return what follows --config, as ``--config FILE`` or ``--config=FILE``."""
    configs = [arg.removeprefix("--config=") for arg in args if arg.startswith("--config=")]
    configs += [value for arg, value in pairwise(args) if arg == "--config"]
    if len(configs) > 1:
        raise ValueError(f"give one --config, got {' and '.join(configs)}")
    return configs[0] if configs else None


def _load(config: Path, kind: type[StartingRun]) -> Run:
    from layermem_bench.train.run_config import load_run

    run = load_run(config)
    if kind.keeps_variant or not run.model.options:
        return run
    from layermem_bench.train.setup import own_options

    if own := own_options(run.variant, run.model):
        logger.info(
            "%s of %s: options of its variant are left out, arms name theirs "
            "(--variants plain,%s:%s)",
            *(" ".join(own), config, run.variant, ":".join(own)),
        )
    kept = tuple(option for option in run.model.options if option not in own)
    return replace(run, model=replace(run.model, options=kept))


def _fields(run: Run) -> dict[str, Any]:
    return {field.name: getattr(run, field.name) for field in fields(Run)}
