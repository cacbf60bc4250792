"""Options that commands share which go on training a model of transformers on text or a task.

It does not know: what a command does with them.
"""

from dataclasses import dataclass
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """The model, its data, and how it is trained."""

    model: tyro.conf.Positional[str]
    """Folder or hub name of a model of transformers."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    text: str | None = None
    """Text to train on: "stdlib", a file, a folder or a data set, as in `layermem train
    --data.source`."""
    validation: str | None = None
    """Text, or file of records, of the validation set; None: a share of the training set's."""
    validation_share: float | None = None
    """Share of the documents (0.02) or records (0.1) held out for validation, without
    --validation."""
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
    window: int | None = None
    """Number of layers that are read, the layer's own counted; with --memory last or first."""
    weight_decay: float = 0.0
    """Weight decay of weight matrices; routers have none."""
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
    steps: int = 1000
    """Training steps."""
    eval_every: int = 100
    """Steps between two validations; there is one before the first step and after the last."""
