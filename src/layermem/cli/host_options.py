"""Options that commands share which go on training a model of transformers on text or a task."""

from dataclasses import dataclass
from typing import Literal

from layermem.number_ranges import SHARE, at_least, number


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """The model, its data, and how it is trained."""

    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    text: str | None = None
    """Text to train on: "stdlib", a file, a folder or a data set, as in `layermem train
    --data.source`."""
    validation: str | None = None
    """Text, or file of records, of the validation set; None: a share of the training set's."""
    validation_share: float | None = number(None, SHARE)
    """Share of the documents (0.02) or records (0.1) held out for validation, without
    --validation."""
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
