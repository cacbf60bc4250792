"""What one process of a training step holds at its peak, in closed form, by what it is for.

Counted in bytes, as eager PyTorch allocates them. An example of one layer in float32, for a token:

    kept for the backward        numbers
    norms                        4 D      input and output of each
    attention                    2 H E + 2 G E + H      query, key, value, output, its sums
    mlp                          4 F      gate, its activation, up, their product
    slots of a memory            ``Variant.extra_saved``, over all layers

Under autocast the residual stays in float32, each projection keeps its input in bfloat16, and so it
keeps its weight. A step has three moments at which its peak may be: at the loss, in the backward of
the last layer, and in that of the first, when all gradients are there. The tests compare the peaks
with measured ones. Not counted: what the device's driver, kernels and communication library take,
and blocks that the allocator cannot use. Compiled code keeps less.

Letters: D width, H query heads, G key-value heads, E head width, F width inside the mlp,
V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from layermem_base.number_ranges import at_least, check_numbers
from layermem_bench.config.counting import Additions, Sizes, count_linear_weights, count_parameters

_WIDE = 4
# Of AdamW, two moments of each parameter.
_MOMENTS = 2 * _WIDE
Memory = Mapping[str, float]
"""Bytes by what they are for."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """How one process computes a step; fields are as in ``config.Compute``."""

    sequences: int = field(metadata=at_least(1))
    """Sequences at once."""
    tokens: int = field(metadata=at_least(1))
    """Tokens of a sequence."""
    micro_batches: int = field(default=1, metadata=at_least(1))
    """Micro-batches whose gradients are accumulated."""
    processes: int = field(default=1, metadata=at_least(1))
    """Processes of the run."""
    half: bool = False
    """Whether it computes in bfloat16."""
    checkpointed: bool = False
    """Whether layers are computed again in the backward."""
    loss_chunk: int = 0
    """Tokens whose logits are in memory at once; 0: all."""
    shard: bool = False
    """Whether parameters are sharded over the processes, or copied to each."""
    replicas: int = field(default=1, metadata=at_least(1))
    """Copies of a sharded model, each over its share of the processes."""
    keep_whole: Literal["nothing", "gradients", "all"] = "nothing"
    """What a sharded run keeps unsharded between micro-batches."""

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def all_tokens(self) -> int:
        """Tokens at once."""
        return self.sequences * self.tokens

    @property
    def width(self) -> int:
        """Bytes of a number that is computed with."""
        return 2 if self.half else _WIDE

    @property
    def shards(self) -> int:
        """Processes that a parameter is divided over."""
        return self.processes // self.replicas if self.shard else 1


def step_memory(config: Sizes, variant: Additions | None, step: Step) -> dict[str, float]:
    """Return what a process holds at its peak; raise where a variant's slots are not counted."""
    extra = 0 if variant is None else variant.extra_saved(config)
    if extra is None:
        raise ValueError(
            f"what {getattr(variant, '__name__', 'the variant')} keeps for the backward with these "
            "fields is not counted in closed form; plain and lime, whose layers read all before "
            "them, are, and layermem costs --measure measures any variant"
        )
    model = _Model(config, count_parameters(config, variant), extra)
    moments = (_at_the_loss(model, step), _in_last_layer(model, step), _in_first_layer(model, step))
    most = max(moments, key=lambda moment: sum(moment.values()))
    return {**_held_throughout(model, step), **most}


def parameter_memory(config: Sizes, variant: Additions | None, step: Step) -> float:
    """Return what a process holds when all gradients are there, without activations."""
    model = _Model(config, count_parameters(config, variant), 0)
    return sum(_held_throughout(model, step).values()) + _gradients(model, step, model.parameters)


def count_root(config: Sizes) -> int:
    """Count the weights that belong to no layer: embeddings, head and last norm."""
    copies = 1 if config.tie_word_embeddings else 2
    return (copies * config.vocab_size + 1) * config.hidden_size


@dataclass(frozen=True)
class _Model:
    """Sizes, and what is counted once."""

    config: Sizes
    parameters: int
    extra: int
    """Numbers of slots, for a token, of all layers."""

    @property
    def vocabulary(self) -> int:
        """Weights of the embedding or of the head."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def root(self) -> int:
        """Weights that belong to no layer."""
        return count_root(self.config)

    @property
    def linear_of_layer(self) -> float:
        """Weights of one layer's projections and mlp."""
        return count_linear_weights(self.config) / self.config.num_hidden_layers


def _held_throughout(model: _Model, step: Step) -> dict[str, float]:
    """Return what is there during the whole step; gradients are counted by moment."""
    own = model.parameters / step.shards
    held = {"weights": _WIDE * own, "optimiser": _MOMENTS * own, "communication": 0.0}
    if step.processes > 1 and not step.shard:
        # DistributedDataParallel sums gradients in buckets of its own.
        held["communication"] = _WIDE * model.parameters
    if step.shards > 1:
        held["communication"] = _unsharded_weights(model, step)
    return held


def _unsharded_weights(model: _Model, step: Step) -> float:
    """Return what FSDP2 gathers: the root unit, and two layers at once or, kept whole, all."""
    layers = model.config.num_hidden_layers if step.keep_whole == "all" else 2
    return _WIDE * model.root + step.width * layers * model.linear_of_layer


def _gradients(model: _Model, step: Step, now: float) -> float:
    """Return the gradients of a process that has just computed those of ``now`` parameters."""
    before = step.micro_batches > 1
    if step.shards == 1:
        return _WIDE * (model.parameters if before else now)
    # Of the root unit they are whole until the backward ends.
    own = (model.parameters if before else now) / step.shards
    whole = model.root + 2 * model.linear_of_layer
    if step.keep_whole != "nothing" and before:
        # They are scattered at the end of the step alone, each when it is complete.
        own, whole = 0.0, model.parameters
    return _WIDE * (own + whole)


def _copies(model: _Model, step: Step, layers: int, of_loss: bool) -> float:
    """Return the weights that autocast has copied to bfloat16; FSDP2 gathers them so."""
    if not step.half:
        return 0.0
    of_layers = 0.0 if step.shards > 1 else layers * model.linear_of_layer
    return step.width * (of_layers + of_loss * model.vocabulary)


def _of_layer(config: Sizes, step: Step) -> float:
    """Return what a layer keeps of one token, without the slots of a memory."""
    heads = config.num_attention_heads + config.num_key_value_heads
    # Under autocast query, key, value, gate and up each have a copy of their input.
    inputs = 5 if step.half else 2
    computed = inputs * config.hidden_size + 4 * config.intermediate_size
    computed += 2 * heads * config.head_dim
    in_float32 = config.num_attention_heads + 2
    residual = 2 * config.hidden_size
    return step.width * computed + _WIDE * (in_float32 + residual)


def _all_layers(model: _Model, step: Step) -> tuple[float, float]:
    """Return what all layers keep from the forward on: activations, and slots."""
    config, tokens = model.config, step.all_tokens
    slots = step.width * model.extra * tokens
    if step.checkpointed:
        return _WIDE * config.num_hidden_layers * config.hidden_size * tokens, slots
    return config.num_hidden_layers * _of_layer(config, step) * tokens, slots


def _at_the_loss(model: _Model, step: Step) -> dict[str, float]:
    config, tokens = model.config, step.all_tokens
    activations, slots = _all_layers(model, step)
    # The last norm's input and output.
    activations += tokens * (_WIDE * (config.hidden_size + 1) + step.width * config.hidden_size)
    if step.loss_chunk:
        # Gradients of the hidden states and of the head, which is scaled into another tensor, and a
        # chunk's logits with theirs.
        loss = _WIDE * (tokens * config.hidden_size + 2 * model.vocabulary)
        loss += step.width * model.vocabulary
        narrow = step.width if step.half else 0
        loss += min(step.loss_chunk, tokens) * config.vocab_size * (_WIDE + narrow)
    else:
        # Log-probabilities, their gradient and that of the logits.
        loss = 3 * _WIDE * tokens * config.vocab_size
    copies = _copies(model, step, config.num_hidden_layers, of_loss=True)
    return {
        "gradients": _gradients(model, step, 0) if step.micro_batches > 1 else 0.0,
        "activations": activations + copies,
        "slots": slots,
        "logits and loss": loss,
    }


def _in_last_layer(model: _Model, step: Step) -> dict[str, float]:
    config = model.config
    activations, slots = _all_layers(model, step)
    layers = 1 if step.checkpointed else config.num_hidden_layers
    return {
        "gradients": _gradients(model, step, model.vocabulary),
        "activations": activations
        + _while_in_layer(model, step, recomputed=step.checkpointed)
        + _copies(model, step, layers, of_loss=False),
        "slots": slots,
        "logits and loss": 0.0,
    }


def _in_first_layer(model: _Model, step: Step) -> dict[str, float]:
    config, tokens = model.config, step.all_tokens
    own = step.width * 2 * config.num_key_value_heads * config.head_dim if model.extra else 0
    return {
        "gradients": _gradients(model, step, model.parameters),
        "activations": _while_in_layer(model, step, recomputed=True)
        + _WIDE * tokens * config.hidden_size * step.checkpointed
        + _copies(model, step, 1, of_loss=False),
        "slots": float(own * tokens),
        "logits and loss": 0.0,
    }


def _while_in_layer(model: _Model, step: Step, *, recomputed: bool) -> float:
    """Return what one layer's backward takes: gradients within the mlp, that of one matrix, and
    what the layer keeps, where that is not counted already."""
    config, tokens = model.config, step.all_tokens
    inner = tokens * step.width * (2 * config.intermediate_size + config.hidden_size)
    matrix = _WIDE * config.hidden_size * config.intermediate_size
    return inner + matrix + recomputed * tokens * _of_layer(config, step)
