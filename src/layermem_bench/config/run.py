"""A run as data: frozen dataclasses whose fields document and check themselves, and a run id.

Every field's docstring is its help text. A preset is a function that returns a ``Run``; a derived
run is ``dataclasses.replace`` of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from layermem_base.number_ranges import (
    SEED,
    SHARE,
    at_least,
    below,
    check_numbers,
    number,
)
from layermem_bench.config.host import Host, check_run
from layermem_bench.config.labels import Labels
from layermem_bench.config.named_options import check_options, merged, parse_options
from layermem_bench.config.run_identity import run_id
from layermem_bench.config.task import Task
from layermem_bench.config.typed_dicts import checked, from_dict, to_dict

_NOT_SIZES = ("options", "pretrained")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of the decoder, under LLaMA's names, and the options of the variant."""

    hidden_size: int = number(128, at_least(1))
    """Width of the residual stream."""
    intermediate_size: int = number(512, at_least(1))
    """Width inside the mlp."""
    num_hidden_layers: int = number(8, at_least(1))
    """Number of layers."""
    num_attention_heads: int = number(8, at_least(1))
    """Number of query heads."""
    num_key_value_heads: int | None = number(None, at_least(1))
    """Number of key-value heads; None: as many as query heads."""
    vocab_size: int | None = number(None, at_least(1))
    """Number of token ids; None: the tokenizer's."""
    pretrained: str | None = None
    """Folder of a saved model of the variant or of a LLaMA, or a hub name: the run starts from its
    weights, sizes and tokenizer, and what the variant adds has no effect at first; None: new
    weights."""
    tie_word_embeddings: bool = False
    """Whether the output head shares the embedding's weights."""
    options: tuple[str, ...] = ()
    """Further fields of the variant's config, each NAME=VALUE (router_init=identity), added to the
    preset's; an option replaces the preset's option of the same name."""

    def __post_init__(self) -> None:
        check_numbers(self, "model.")
        check_options("model", self.options)

    def sizes(self) -> dict[str, Any]:
        """Return the sizes under the names that they have in the model's config."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_SIZES}

    def variant_fields(self) -> dict[str, Any]:
        """Return ``options`` as a dict."""
        return parse_options(self.options)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The text of a run, and how it is cut into blocks of tokens."""

    source: str = "stdlib"
    """"stdlib" (the Python standard library's own sources), a file or folder of JSON lines, Parquet
    or text (plain, .xz, .gz, .bz2 or .zst), or a Hugging Face dataset: NAME, or NAME:SPLIT for
    another split than train."""
    validation: str | None = None
    """Source of the validation set, as in --data.source, with other text (wikitext:validation);
    documents that are in both are left out of training. None: a share of the documents is held out
    for validation."""
    validation_share: float = number(0.02, SHARE)
    """Share of the documents held out for validation, where it has no source of its own. Copies
    that differ in white space around them are left out of training."""
    subset: str | None = None
    """Configuration of a Hugging Face dataset, such as sample-10BT; of --data.validation too where
    it is a split of the same dataset."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face dataset; of --data.validation too where it is a split
    of the same dataset. None: the newest."""
    text_field: str = "text"
    """Column that holds the text."""
    streaming: bool = False
    """Whether a Hugging Face dataset is read without downloading it whole; copies that differ in
    white space may then be on both sides of a held-out share."""
    max_documents: int | None = number(None, at_least(1))
    """Most documents that are read; None: all. A document of more than a million characters is
    split, and each part counts as one."""
    tokenizer: str = "bytes"
    """"bytes", a folder of GPT-2 files (vocab.json, merges.txt) or of a saved tokenizer, or a hub
    name."""
    block_size: int = number(256, at_least(2))
    """Tokens in a block, the length of a training sequence."""
    isolate_documents: bool = False
    """Whether documents in one block are kept apart: no attention across, positions from zero."""
    cache: str | None = None
    """Folder of prepared blocks; None: ~/.cache/layermem, or LAYERMEM_CACHE."""

    def __post_init__(self) -> None:
        check_numbers(self, "data.")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """AdamW with a learning-rate schedule. A variant may override both for its own parameters."""

    lr: float = number(1e-3, at_least(0))
    """Peak learning rate of everything the variant does not override."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How learning rates fall after the warm-up."""
    min_lr: float = number(1e-6, at_least(0))
    """Learning rate at the end: an absolute number, the same in every parameter group."""
    warmup_steps: int = number(200, at_least(0))
    """Steps over which learning rates rise from zero; at most a tenth of the run's steps."""
    router_lr: float | None = number(None, at_least(0))
    """Learning rate of the variant's own parameters; None: what the variant says."""
    weight_decay: float = number(0.1, at_least(0))
    """Weight decay of weight matrices; norms, embeddings and routers have none."""
    beta1: float = number(0.9, below(0, 1))
    """Decay of the running mean of gradients."""
    beta2: float = number(0.95, below(0, 1))
    """Decay of the running mean of squared gradients."""
    eps: float = number(1e-8, at_least(0))
    """Added to the square root of that mean."""
    clip: float = number(1.0, at_least(0))
    """Norm that gradients are clipped to; 0: not clipped."""
    batch_size: int = number(32, at_least(1))
    """Sequences in one optimizer step, over all processes."""

    def __post_init__(self) -> None:
        check_numbers(self, "optim.")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How the run is carried out; except for rounding this does not change what is computed. With
    another precision it is another run."""

    micro_batch: int = number(32, at_least(1))
    """Sequences that a process computes at once; gradients are accumulated to optim.batch_size."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Floating-point format; "auto": bfloat16 on a GPU that supports it, else float32. On a CPU
    that multiplies bfloat16 natively, bfloat16 is faster from a width of about 200 on."""
    compile: bool = False
    """Whether the model is compiled with torch.compile."""
    checkpoint_activations: bool = False
    """Gradient checkpointing: layers are computed again in the backward pass instead of keeping
    their activations."""
    checkpoint_every: int = number(1, at_least(1))
    """Of how many layers one is computed again (checkpoint_activations); 1: all are. With a larger
    number a step takes less time and more memory."""
    shard: bool = False
    """Whether parameters are sharded over processes (FSDP2) or copied to each (DDP)."""
    loss_chunk: int | None = number(None, at_least(0))
    """Tokens of a micro-batch whose logits are in memory at once; 0: all; None: all where they take
    at most 1 GiB in float32, else as many as take a quarter of that."""
    workers: int = number(0, at_least(0))
    """Processes that read and cut batches ahead of a training process; 0: it does so itself. The
    batches are the same."""

    def __post_init__(self) -> None:
        check_numbers(self, "compute.")
        if self.checkpoint_every > 1 and not self.checkpoint_activations:
            raise ValueError(
                f"compute.checkpoint_every={self.checkpoint_every} has no effect, since "
                "compute.checkpoint_activations is off: add it, or leave checkpoint_every out"
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """The full config of one training."""

    preset: str = "custom"
    """Name of the preset it came from."""
    variant: str = "lime"
    """Architecture: a name that `layermem list variants` lists. `layermem train` takes the arms of
    a study too: recipe, recipe_half, recipe+mudd."""
    seed: int = number(0, SEED)
    """Seed of weights and order of the data. Two variants of one seed share both."""
    max_steps: int = number(1000, at_least(1))
    """Training steps; the schedule is scaled to them."""
    log_every: int = number(1, at_least(1))
    """Steps between two rows of metrics."""
    eval_every: int = number(100, at_least(1))
    """Steps between two validations; the last step is always followed by one."""
    eval_blocks: int | None = number(None, at_least(1))
    """Validation blocks used, from the first on; None: all."""
    save_every: int = number(0, at_least(0))
    """Steps between two checkpoints; 0: that of the last step alone, until the final model is
    there."""
    keep: int = number(2, at_least(1))
    """Number of newest checkpoints that are kept. The one with the lowest validation loss is kept
    too, if the run saved at that step (it does at each validation where save_every divides
    eval_every)."""
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers that get the metrics as metrics.jsonl does (pip install layermem[track]);
    TensorBoard's files are in the run folder."""
    model: Model = field(default_factory=Model)
    """Sizes and options of the model."""
    data: Data = field(default_factory=Data)
    """Text and its tokenization."""
    task: Task = field(default_factory=Task)
    """Generated problems in place of text."""
    optim: Optim = field(default_factory=Optim)
    """Optimizer and learning-rate schedule."""
    host: Host = field(default_factory=Host)
    """Model of transformers to go on training, in place of a decoder of ours."""
    compute: Compute = field(default_factory=Compute)
    """Precision, compilation and memory."""
    labels: Labels = field(default_factory=Labels)
    """What the run is in tables; a study writes them."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_run(self)

    @property
    def id(self) -> str:
        """What stands for what the run trains and records, and not for how (``run_identity``)."""
        return run_id(self)


def run_from_dict(values: Mapping[str, Any]) -> Run:
    """Return the run of a dict that ``to_dict`` returned; missing fields have their defaults."""
    return from_dict(Run, values, "")


__all__ = [
    "Compute",
    "Data",
    "Host",
    "Labels",
    "Model",
    "Optim",
    "Run",
    "Task",
    "checked",
    "merged",
    "run_from_dict",
    "to_dict",
]
