"""The options of `layermem train --host MODEL`, and the run that they describe."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from layermem_base.number_ranges import SEED, SHARE, at_least, number
from layermem_bench.config.host import VARIANT
from layermem_bench.config.named_options import merged
from layermem_bench.config.run import Compute, Data, Host, Optim, Run, Task

# Options that are fields of a run, or of its optimizer, under the same names.
_OF_RUN = (
    *("seed", "max_steps", "log_every", "eval_every", "eval_blocks", "save_every", "keep"),
    "track",
)
_OF_OPTIM = ("lr", "router_lr", "weight_decay", "schedule", "warmup_steps", "batch_size")
# Options that each kind of data takes; those of another kind would have no effect on it.
_OF_DATA = {
    "text": (
        *("validation", "validation_share", "text_field", "block_size", "max_documents"),
        *("eval_blocks", "cache"),
    ),
    "task": ("task_options", "examples", "test", "validation_problems"),
}


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options of every command that goes on training a model on text or a task: the model, its
    data, and how it is trained."""

    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    text: str | None = None
    """Text to train on: "stdlib", a file, a folder or a data set, as in `layermem train
    --data.source`."""
    validation: str | None = None
    """Text of the validation set; None: a share of the training set's."""
    validation_share: float | None = number(None, SHARE)
    """Share of the documents held out for validation, without --validation; None: 0.02."""
    text_field: str = "text"
    """Column that holds the text."""
    block_size: int = number(256, at_least(2))
    """Tokens in a block of text."""
    max_documents: int | None = number(None, at_least(1))
    """Most documents that are read; None: all."""
    eval_blocks: int | None = number(None, at_least(1))
    """Validation blocks used; None: all."""
    cache: str | None = None
    """Folder of prepared blocks; None: ~/.cache/layermem, or LAYERMEM_CACHE."""
    task: str | None = None
    """Task to train on, in place of text, as `layermem list tasks` has it."""
    task_options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE; `layermem list tasks` lists them."""
    examples: int = number(50_000, at_least(1))
    """Problems in the training set of a task."""
    test: int = number(2_000, at_least(1))
    """Problems in its test set."""
    validation_problems: int = number(500, at_least(1))
    """Problems in its validation set."""
    window: int | None = number(None, at_least(1))
    """Number of layers that are read, the layer's own counted; with --memory last or first."""
    weight_decay: float = number(0.0, at_least(0))
    """Weight decay of weight matrices; routers have none."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How learning rates fall after the warm-up."""
    warmup_steps: int = number(200, at_least(0))
    """Steps over which learning rates rise; at most a tenth of all steps."""
    batch_size: int = number(32, at_least(1))
    """Sequences in one step."""
    micro_batch: int = number(32, at_least(1))
    """Sequences computed at once; gradients are accumulated to --batch-size."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Floating-point format."""
    max_steps: int = number(1000, at_least(1))
    """Training steps."""
    eval_every: int = number(100, at_least(1))
    """Steps between two validations; there is one before the first step and after the last."""


@dataclass(frozen=True, kw_only=True)
class TrainHost(HostOptions):
    """Go on training a model of transformers: routers alone, all weights, or LoRA as a control
    without memory, on text or a task.

    The folder is that of any run; `layermem report` compares folders.
    """

    host: str
    """Folder or hub name of a model of transformers, which may have attached memory."""
    memory: Literal["full", "last", "first", "none"] | None = None
    """Earlier layers that a layer reads; None: full, but none with --train lora."""
    shares_kv: bool = True
    """Whether one router of a layer is for keys and values; --no-shares-kv: each has its own."""
    grain: Literal["pair", "layer"] = "pair"
    """For what a router has a number at each layer read: a pair of heads, or all heads."""
    train: Literal["routers", "all", "lora"] = "routers"
    """What is trained; with --memory none, "all" is plain continued training."""
    router_lr: float | None = number(None, at_least(0))
    """Peak learning rate of routers, which have no weight decay; None: 5e-3."""
    lr: float = number(5e-5, at_least(0))
    """Peak learning rate of everything else."""
    checkpoint_activations: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Compute layers again in the backward pass instead of keeping their activations."""
    seed: int = number(0, SEED)
    """Seed of the order of the data and of LoRA."""
    log_every: int = number(1, at_least(1))
    """Steps between two rows of metrics."""
    save_every: int = number(0, at_least(0))
    """Steps between two checkpoints; 0: that of the last step alone, until the final model is
    there."""
    keep: int = number(2, at_least(1))
    """Number of newest checkpoints that are kept."""
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers that get the metrics as metrics.jsonl does (pip install layermem[track])."""
    out: Path | None = None
    """Folder of the run; default: runs/MODEL-TRAIN-MEMORY-sSEED, with the task."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print how long the run would take here; train nothing but some timed steps."""


def to_run(options: TrainHost) -> Run:
    """Return the run that a command's options describe."""
    _check_data(options)
    memory = options.memory or ("none" if options.train == "lora" else "full")
    return Run(
        preset="finetune",
        variant=VARIANT,
        data=_data(options),
        task=_task(options),
        optim=Optim(**_take(options, *_OF_OPTIM)),
        host=Host(
            model=options.host,
            memory=memory,
            **_take(options, "revision", "window", "shares_kv", "grain", "train"),
        ),
        compute=Compute(**_take(options, "micro_batch", "precision", "checkpoint_activations")),
        **_take(options, *_OF_RUN),
    )


def _take(options: TrainHost, *names: str) -> dict[str, Any]:
    """Return options that are fields of a config under the same names."""
    return {name: getattr(options, name) for name in names}


def _check_data(options: TrainHost) -> None:
    """Raise unless there is one of text and a task, with options of its own alone."""
    given = {
        "--text SOURCE": options.text,
        "--task NAME": options.task,
    }
    named = [option.split()[0] for option, value in given.items() if value is not None]
    if len(named) != 1:
        raise ValueError(
            f"give one of {', '.join(given)}, got {' and '.join(named) if named else 'none'}"
        )
    kind = named[0].removeprefix("--")
    for name in dict.fromkeys(name for names in _OF_DATA.values() for name in names):
        value = getattr(options, name)
        if name not in _OF_DATA[kind] and value != getattr(TrainHost, name):
            shown = " ".join(value) if isinstance(value, tuple) else value
            others = " and ".join(
                f"--{other}" for other, names in _OF_DATA.items() if name in names
            )
            raise ValueError(
                f"--{name.replace('_', '-')} {shown} has no effect on {kind}, it is for {others}: "
                "leave it out"
            )
    if options.validation is not None and options.validation_share is not None:
        raise ValueError(
            f"--validation-share {options.validation_share} has no effect beside --validation "
            f"{options.validation}: leave one of them out"
        )


def _data(options: TrainHost) -> Data:
    taken = _take(options, "block_size", "cache")
    if options.text is not None:
        taken |= _take(options, "validation", "text_field", "max_documents") | {
            "source": options.text
        }
        if options.validation_share is not None:
            taken["validation_share"] = options.validation_share
    return Data(**taken)


def _task(options: TrainHost) -> Task:
    named: tuple[str, ...] = ()
    if options.task is not None:
        from layermem_bench.tasks.registry import get_task

        # A recorded config says how its problems were drawn.
        defaults = get_task(options.task).options()
        drawn = [name for name in ("held_out", "graphs") if name in defaults]
        named = merged([f"{name}={defaults[name]}" for name in drawn], options.task_options)
    return Task(
        name=options.task,
        validation=options.validation_problems,
        options=named,
        **_take(options, "examples", "test"),
    )


def default_folder(run: Run) -> Path:
    """Return the folder of a run whose command names none."""
    host = run.host
    apart, grain = "" if host.shares_kv else "apart", "" if host.grain == "pair" else host.grain
    parts = [Path(str(host.model)).name, run.task.name, host.train, host.memory, apart, grain]
    name = re.sub(r"[^\w.-]", "-", "-".join(filter(None, parts)))
    return Path("runs") / f"{name}-s{run.seed}"
