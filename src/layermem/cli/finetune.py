"""`layermem finetune`: go on training a model of transformers, with layer memory or without.

It does not know: how a model is attached or trained.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from layermem.config import Compute, Data, Host, Optim, Run, Task
from layermem.host_config import VARIANT
from layermem.named_options import merged

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Go on training a decoder of transformers on text or a task: routers alone, all weights, or
    LoRA as a control without memory.

    The folder is that of `layermem train`; `layermem report` compares folders.
    """

    model: tyro.conf.Positional[str]
    """Folder or hub name of the model, or a checkpoint with attached memory."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    text: str | None = None
    """Text to train on: "stdlib", a file, a folder or a data set, as in `layermem train
    --data.source`."""
    validation: str | None = None
    """Text of the validation set; None: a share of the documents."""
    validation_share: float = 0.02
    """Share of the documents held out for validation, without --validation."""
    text_field: str = "text"
    """Column that holds the text."""
    block_size: int = 256
    """Tokens in a block of text."""
    max_documents: int | None = None
    """Most documents that are read; None: all."""
    eval_blocks: int | None = None
    """Validation blocks used; None: all."""
    cache: str | None = None
    """Folder of prepared blocks; None: ~/.cache/layermem, or LAYERMEM_CACHE."""
    task: Literal["arithmetic", "prosqa", "mqar", "chains", "mad"] | None = None
    """Task to train on, in place of text."""
    task_options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE; `layermem tasks` lists them."""
    examples: int = 50_000
    """Problems in the training set of a task."""
    test: int = 2_000
    """Problems in its test set."""
    validation_problems: int = 500
    """Problems in its validation set."""
    memory: Literal["full", "last", "first", "none"] | None = None
    """Earlier layers that a layer reads; None: full, but none with --train lora."""
    window: int | None = None
    """Number of layers that are read, the layer's own counted; with --memory last or first."""
    train: Literal["routers", "all", "lora"] = "routers"
    """What is trained; with --memory none, "all" is plain continued training."""
    router_lr: float = 5e-3
    """Peak learning rate of routers, which have no weight decay."""
    lr: float = 5e-5
    """Peak learning rate of everything else."""
    weight_decay: float = 0.0
    """Weight decay of weight matrices."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How learning rates fall after the warm-up."""
    warmup_steps: int = 200
    """Steps over which learning rates rise; at most a tenth of all steps."""
    batch_size: int = 32
    """Sequences in one step."""
    micro_batch: int = 32
    """Sequences computed at once; gradients are accumulated to --batch-size."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Floating-point format."""
    checkpoint_activations: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Compute layers again in the backward pass instead of keeping their activations."""
    steps: int = 1000
    """Training steps."""
    seed: int = 0
    """Seed of the order of the data and of LoRA."""
    log_every: int = 1
    """Steps between two rows of metrics."""
    eval_every: int = 100
    """Steps between two validations; there is one before the first step and after the last."""
    save_every: int = 0
    """Steps between two checkpoints; 0: none but the final model."""
    out: Path | None = None
    """Folder of the run; default: runs/finetune-MODEL-TRAIN-MEMORY-sSEED."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder."""


def finetune(options: Finetune, command: str) -> None:
    """Train a run and print its folder."""
    run = to_run(options)
    from transformers.utils import logging as transformers_logging

    from layermem.experiments.finetuning import finetune as finetune_run

    transformers_logging.disable_progress_bar()
    folder = finetune_run(run, options.out or _default_folder(run), resume=options.resume)
    logger.info("%s", folder.path)


def to_run(options: Finetune) -> Run:
    """Return the run that a command's options describe."""
    _check_data(options)
    memory = options.memory or ("none" if options.train == "lora" else "full")
    data = Data(block_size=options.block_size, cache=options.cache)
    if options.text is not None:
        data = Data(
            source=options.text,
            validation=options.validation,
            validation_share=options.validation_share,
            text_field=options.text_field,
            max_documents=options.max_documents,
            block_size=options.block_size,
            cache=options.cache,
        )
    return Run(
        preset="finetune",
        variant=VARIANT,
        seed=options.seed,
        max_steps=options.steps,
        log_every=options.log_every,
        eval_every=options.eval_every,
        eval_blocks=options.eval_blocks,
        save_every=options.save_every,
        data=data,
        task=Task(
            name=options.task,
            examples=options.examples,
            validation=options.validation_problems,
            test=options.test,
            options=_task_options(options),
        ),
        optim=Optim(
            lr=options.lr,
            router_lr=options.router_lr,
            weight_decay=options.weight_decay,
            schedule=options.schedule,
            warmup_steps=options.warmup_steps,
            batch_size=options.batch_size,
        ),
        host=Host(
            model=options.model,
            revision=options.revision,
            memory=memory,
            window=options.window,
            train=options.train,
        ),
        compute=Compute(
            micro_batch=options.micro_batch,
            precision=options.precision,
            checkpoint_activations=options.checkpoint_activations,
        ),
    )


def _check_data(options: Finetune) -> None:
    """Raise unless there is either text or a task."""
    if (options.text is None) == (options.task is None):
        given = "both" if options.text is not None else "neither"
        raise ValueError(f"give --text SOURCE or --task NAME, got {given}")
    if options.task is None and options.task_options:
        raise ValueError(
            f"--task-options {' '.join(options.task_options)} are for a task: add --task NAME, or "
            "leave them out"
        )


def _task_options(options: Finetune) -> tuple[str, ...]:
    """Return the task's options, with those named that recorded configs must name."""
    if options.task is None:
        return ()
    from layermem.tasks.registry import get_task

    defaults = get_task(options.task).options()
    named = tuple(f"{name}={defaults[name]}" for name in ("held_out", "graphs") if name in defaults)
    return merged(named, options.task_options)


def _default_folder(run: Run) -> Path:
    name = re.sub(r"[^\w.-]", "-", Path(str(run.host.model)).name)
    return Path("runs") / f"finetune-{name}-{run.host.train}-{run.host.memory}-s{run.seed}"
