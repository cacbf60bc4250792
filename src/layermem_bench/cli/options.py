"""Options of commands, read by tyro, and the run that `train` and `study` start from.

layermem train tiny-lm --seed 2             the preset's options are the defaults
layermem train --config DIR/config.yaml     the config's options are the defaults
layermem train DIR --resume                 so are those of a run, which goes on
layermem train --host.model MODEL           a model of transformers goes on, on any text or task
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from layermem_bench import presets
from layermem_bench.config.named import merged
from layermem_bench.config.run import Labels, Optim, Run
from layermem_bench.run.folder import RunFolder, load_run

FINETUNE = Run(preset="finetune", optim=Optim(lr=5e-5, weight_decay=0.0))
"""What a model of transformers starts from where no preset is named."""
_T = TypeVar("_T")


def read_options(
    kind: type[_T], command: str, args: Sequence[str], default: Any = MISSING_NONPROP
) -> _T:
    """Return the options of a command, an instance of its dataclass.

    ``--help`` prints them, below what the command does, and exits.
    """
    if issubclass(kind, StartingRun):
        default = _with_base_run(kind, command, args)
    if {"-h", "--help"} & set(args):
        width = shutil.get_terminal_size().columns
        paragraphs = cleandoc(kind.__doc__ or "").split("\n\n")
        sys.stdout.writelines(f"{textwrap.fill(each, width)}\n\n" for each in paragraphs)
    return tyro.cli(
        kind,
        prog=f"layermem {command}",
        # tyro does not wrap a description.
        description="",
        args=list(args),
        default=default,
        registry=_registry(),
    )


def _registry() -> ConstructorRegistry:
    """Return tyro's rules with help texts of one paragraph for each field of a dataclass.

    tyro keeps a line break before an indented line, and docstrings of fields are indented.
    """
    registry, inside = ConstructorRegistry(), list[Any]()

    @registry.struct_rule
    def with_paragraphs(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not is_dataclass(info.type) or inside:
            return None
        inside.append(info)
        spec = ConstructorRegistry.get_struct_spec(info)
        inside.clear()
        if not isinstance(spec, StructConstructorSpec):
            return None
        fields = (replace(each, helptext=partial(_paragraph, each)) for each in spec.fields)
        return replace(spec, fields=tuple(fields))

    return registry


def _paragraph(field: StructFieldSpec) -> str | None:
    text = field.helptext() if callable(field.helptext) else field.helptext
    return text and " ".join(text.split())


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


def _with_base_run(kind: type["StartingRun"], command: str, args: Sequence[str]) -> "StartingRun":
    """Return a command's options with the defaults of what its arguments start from.

    The preset is the first argument, or a config follows --config, a model --host.model.
    """
    preset = args[0] if args and not args[0].startswith("-") else ""
    config, host = value_of("--config", args), value_of("--host.model", args)
    if not (preset or config or host):
        if {"--help", "-h"} & {*args}:
            return kind()
        raise ValueError(
            f"name a preset first (layermem {command} PRESET [--option ...]), or give --config or "
            f"--host.model; presets: {', '.join(presets.names())}"
        )
    base = _base_run(kind, preset, Path(config) if config else None, host)
    return kind(**vars(base) | {"preset": preset})


def _base_run(kind: type[StartingRun], preset: str, config: Path | None, host: str | None) -> Run:
    if config is not None and preset:
        raise ValueError(f"give a preset or --config, got {preset} and --config {config}")
    config = RunFolder(preset).config if is_run_folder(preset) else config
    if config is None:
        run = presets.get_preset(preset) if preset else FINETUNE
    else:
        run = load_run(config)
        if run.model.options and not kind.keeps_variant:
            from layermem_bench.run.setup import plain_options

            run = replace(run, model=replace(run.model, options=plain_options(run.model.options)))
    return run if host is None else run.started_from(host)


def resolve_run(options: StartingRun) -> Run:
    """Return the run of these options; options of the model or the task are added to the base's."""
    base = _base_run(type(options), options.preset, options.config, options.host.model)
    run = replace(part_of(options, Run), preset=base.preset)
    for name, value in vars(run.data).items() if run.task.name else ():
        # The block size is also the number of positions that the model has.
        if value != getattr(base.data, name) and name not in ("block_size", "cache"):
            raise ValueError(
                f"data.{name}={value} is for runs on text, and this run is on a task, "
                f"{run.task.name}: leave {name} out, or choose a preset of text"
            )
    if run.model.pretrained and run.model.sizes() != base.model.sizes():
        raise ValueError("--model.pretrained has sizes of its own: leave other sizes out")
    model = replace(run.model, options=merged(base.model.options, run.model.options))
    task = replace(run.task, options=merged(base.task.options, run.task.options))
    run = replace(run, model=model, task=task)
    # Another run than the config's, but for the seed, is of no board and arm of its.
    if run.labels == base.labels and replace(run, seed=base.seed).id != base.id:
        run = replace(run, labels=Labels())
    return run


def is_run_folder(name: str) -> bool:
    """Return whether a name is the folder of a run."""
    return bool(name) and RunFolder(name).config.exists()


def value_of(option: str, args: Sequence[str]) -> str | None:
    """Return what follows an option, as ``--config FILE`` or ``--config=FILE``."""
    values = [arg.partition("=")[2] for arg in args if arg.startswith(f"{option}=")]
    values += [value for arg, value in pairwise(args) if arg == option]
    return values[-1] if values else None


def part_of(options: Any, kind: type[_T]) -> _T:
    """Return the fields of a command's options that it has from another dataclass."""
    of_kind: Any = kind
    return kind(**{field.name: getattr(options, field.name) for field in fields(of_kind)})
