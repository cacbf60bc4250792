"""The parts of a run's config: model, data, task, optimizer, host, computing and labels.

Every field's docstring is its help text. A ``Run`` checks the numbers of its parts.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

from layermem_base.number_ranges import SHARE, at_least, below, number
from layermem_bench.config.named import check_options, parse_options

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


@dataclass(frozen=True, kw_only=True)
class Task:
    """Generated problems that the run is trained on in place of text."""

    name: str | None = None
    """Name of the task, as `layermem list tasks` has it; None: the run is trained on text."""
    examples: int = number(50_000, at_least(1))
    """Problems in the training set."""
    repeated: int = number(0, at_least(0))
    """How many of these, the first, stand there `repeats` times, the others once: what small models
    do not find among many problems they may find among few that they see often."""
    repeats: int = number(1, at_least(1))
    """How often the first `repeated` stand in the training set."""
    validation: int = number(500, at_least(1))
    """Problems in the validation set, solved at every validation."""
    test: int = number(2_000, at_least(1))
    """Problems in the test set, solved at the end."""
    seed: int = number(0, at_least(0))
    """Seed of the problems; it does not depend on the run's seed."""
    tokenizer: str | None = None
    """Tokenizer, as in --data.tokenizer; None: the task's own, a token for each word."""
    options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE (operands=6), added to the preset's; an option replaces
    the preset's option of the same name. `layermem list tasks` shows them with their defaults; that
    of what is held out or drawn is the strict one (held_out=strict, graphs=crossed)."""

    def __post_init__(self) -> None:
        if (self.repeated > 0) != (self.repeats > 1) or self.repeated >= self.examples:
            raise ValueError(
                f"task.repeated={self.repeated} and task.repeats={self.repeats} have an effect "
                f"together: fewer problems than task.examples ({self.examples}), at least twice"
            )
        check_options("task", self.options)

    def fields(self) -> dict[str, Any]:
        """Return ``options`` as a dict."""
        return parse_options(self.options)


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


@dataclass(frozen=True, kw_only=True)
class Host:
    """A pretrained model of transformers that a run goes on training, with attached layer memory or
    without, in place of a decoder of ours."""

    model: str | None = None
    """Folder or hub name of the model; None: the run trains a decoder of ours."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub; None: the newest."""
    memory: Literal["full", "last", "first", "none"] = "full"
    """Earlier layers that a layer reads, as in `layermem.attach`; "none": no memory is attached."""
    window: int | None = number(None, at_least(1))
    """Number of layers that are read, the layer's own counted; with memory=last or first."""
    shares_kv: bool = True
    """Whether one router is for keys and values; False: each has its own."""
    grain: Literal["pair", "layer"] = "pair"
    """For what a router has a number at each layer read: a pair of heads, or all heads."""
    train: Literal["routers", "all", "lora"] = "routers"
    """What is trained: "routers" alone; "all" weights; or "lora" (PEFT) on keys and values without
    memory, of the smallest rank that has at least as many parameters as routers of memory=full."""

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if self.model is None and given:
            raise ValueError(f"host.{given[0]} needs a model of transformers: --host.model MODEL")
        if (self.memory in ("last", "first")) != (self.window is not None):
            raise ValueError(
                f"host.memory={self.memory} and host.window={self.window} do not go together: "
                "memory=last and memory=first have a window, full and none have none"
            )
        trained = ("all", "lora") if self.memory == "none" else ("routers", "all")
        if self.model is not None and self.train not in trained:
            raise ValueError(
                f"host.train={self.train} does not go with host.memory={self.memory}: choose "
                f"{' or '.join(trained)}, or another memory"
            )


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


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of a run: with its seed, its place in every table. They do not decide its id."""

    board: str = ""
    """Board whose tables the run is in; empty: PRESET (DATA)."""
    conditions: tuple[str, ...] = ()
    """What is equal between it and the board's other runs: tokens, time, parameters. A run of a
    board without any tried a learning rate; a run without a board counts as it is."""
    arm: str = ""
    """Arm that it is a seed of; empty: the variant with its options."""
