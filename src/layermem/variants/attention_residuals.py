"""Attention residuals: every sub-layer reads a softmax mixture of all earlier sub-layers' outputs.

v_0 is the embedding and v_i the output of sub-layer i (attention and mlp in turn). Each place, one
before every sub-layer and one before the final norm, has a vector w and an RMSNorm of its own:

    full     h = c sum_i a_i v_i,  a = softmax_i(w . RMSNorm(v_i))
             read by the sub-layer, through its norm; there is no other residual. c is the number of
             sources with ``scale_by_sources``, else 1
    block    the same over v_0, the sums of the completed blocks of ``block_size`` sub-layers each,
             and the sum so far of the open block. The sub-layer that opens a block finds the
             previous one completed and reads no open one
    delta    h = x + g sum_i a_i v_i over i >= 1, x the plain residual, g a learned number

Initial values:

    parameter      full, block      delta
    w              0                N(0, 0.02)
    RMSNorm gain   1                1
    g              -                gate_init

With w = 0 and c the number of sources, h is the sum of all outputs: the plain decoder. Multiplying
by c changes nothing but the size of h next to the norm's epsilon, and so is the default.

Sources: arXiv 2603.15031 (full, block); arXiv 2605.18855 and its code,
wdlctc/delta-attention-residuals-code (fc11c3e) (delta).

Deviations: ``scale_by_sources`` is on. A place with one source, whose softmax is constant, has no w
and no norm. Delta's gate starts at 0, where theirs is 1 from the start and adds the mean of the
outputs; its w is not 0, or the gain had no gradient behind the closed gate until the third step.

The first tensor of the state, which hooks see as the hidden state, is the open block's sum (full:
the newest output); delta's is the residual.
"""

from collections.abc import Sequence
from typing import Any, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import (
    Connection,
    DepthWeights,
    Norm,
    ParameterOverride,
    State,
    Stream,
    SubLayer,
    Variant,
    draw,
)
from layermem.ops.depth import append, mix, score
from layermem_base.number_ranges import FINITE, at_least, number

_SUB_LAYERS: tuple[SubLayer, ...] = ("attention", "mlp")


@strict
class AttentionResidualsConfig(DecoderConfig):
    """The fields of a LLaMA, and what is mixed at each place."""

    residual_form: Literal["full", "block", "delta"] = "full"
    """Sources: "full" all outputs; "block" sums of blocks; "delta" all outputs, added to the plain
    residual behind a gate."""
    block_size: int | None = number(None, at_least(1))
    """Sub-layers in a block for residual_form="block", a divisor of 2 * num_hidden_layers; None:
    the fewest with which there are at most 8 blocks."""
    scale_by_sources: bool = True
    """Whether a mixture is multiplied by the number of its sources (full and block)."""
    gate_init: float = number(0.0, FINITE)
    """Initial gate of residual_form="delta"; with 0 a new model computes what the plain decoder
    does."""

    def validate_block_size(self) -> None:
        """Raise ``ValueError`` unless ``block_size`` divides the sub-layers and has its form."""
        size, count = self.block_size, 2 * self.num_hidden_layers
        if size is None:
            return
        if count % size:
            choices = ", ".join(str(d) for d in range(1, count + 1) if count % d == 0)
            raise ValueError(
                f"block_size must divide the number of sub-layers, 2 * num_hidden_layers = {count}:"
                f" one of {choices}; got {size}"
            )

    def validate_form(self) -> None:
        """Raise ``ValueError`` for a field that ``residual_form`` does not have."""
        is_delta = self.residual_form == "delta"
        for name, value, is_absent in (
            ("block_size", self.block_size, self.residual_form != "block"),
            ("gate_init", self.gate_init, not is_delta),
            ("scale_by_sources", not self.scale_by_sources, is_delta),
        ):
            if value and is_absent:
                raise ValueError(
                    f'residual_form="{self.residual_form}" has no {name}, got '
                    f"{name}={getattr(self, name)}; leave it out"
                )

    def sub_layers_per_block(self) -> int:
        """Return the block size in use; every sub-layer is a block in the full form."""
        count = 2 * self.num_hidden_layers
        if self.residual_form != "block":
            return 1
        divisors = (d for d in range(1, count + 1) if count % d == 0 and count <= 8 * d)
        return next(divisors) if self.block_size is None else self.block_size


def source_names(config: AttentionResidualsConfig, place: int) -> tuple[str, ...]:
    """Return what is mixed at a place: that of sub-layer ``place``, or of the final norm."""
    size = config.sub_layers_per_block()
    outputs = [f"{kind} {i}" for i in range(config.num_hidden_layers) for kind in _SUB_LAYERS]
    if config.residual_form == "delta":
        return tuple(outputs[:place])
    if size > 1:
        outputs = [f"block {i}" for i in range(len(outputs) // size)]
    completed = ("embedding", *outputs[: place // size])
    return (*completed, "open block") if place % size else completed


@final
class SourceAttention(DepthWeights):
    """a_i of one place, times ``factor``: [B, T, 1, sources]."""

    readers = ("input",)

    def __init__(self, sources: tuple[str, ...], width: int, factor: int, salt: str | None) -> None:
        super().__init__()
        self.sources, self.factor, self.salt = sources, factor, salt
        self.query = nn.Parameter(torch.empty(width))
        self.gain = nn.Parameter(torch.empty(width))

    def forward(
        self, history: list[Tensor], inverse: Tensor, open_block: Tensor | None = None
    ) -> Tensor:
        """Return the weights, and replace the history by the one to read next."""
        # w . RMSNorm(v) = (w * gain) . v / rms(v)
        vector = self.query * self.gain
        scores, history[:] = score(tuple(history), vector[None])
        if open_block is not None:
            newest = open_block.to(scores.dtype) @ vector[:, None].to(scores.dtype)
            scores = torch.cat([scores, newest[..., None]], dim=-1)
        return self.factor * (scores * inverse[:, :, None]).softmax(-1)

    def reset_parameters(self) -> None:
        initialization.ones_(self.gain)
        if self.salt is None:
            initialization.zeros_(self.query)
        else:
            initialization.copy_(self.query, draw(self.query, 0.02, self.salt))


@final
class Gate(nn.Module):
    """g times a mixture."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.weight = nn.Parameter(torch.empty(1))

    def reset_parameters(self) -> None:
        initialization.constant_(self.weight, self.initial)

    def forward(self, mixture: Tensor) -> Tensor:
        return self.weight * mixture


class Place(nn.Module):
    """What is read at one place, of x and, once there are sources, of their 1 / rms [B, T, S] and
    their history."""

    def __init__(self, config: AttentionResidualsConfig, place: int) -> None:
        super().__init__()
        sources = source_names(config, place)
        delta = config.residual_form == "delta"
        factor = len(sources) if config.scale_by_sources and not delta else 1
        salt = f"attention residuals {place}" if delta else None
        self.eps = config.rms_norm_eps
        self.room = 1 + 2 * config.num_hidden_layers // config.sub_layers_per_block()
        self.delta = delta
        # Whether x, the open block, is completed here: delta keeps x and completes no block.
        self.completes = not delta and place % config.sub_layers_per_block() == 0
        self.weights = (
            SourceAttention(sources, config.hidden_size, factor, salt) if sources[1:] else None
        )
        self.gate = Gate(config.gate_init) if delta and sources else None

    def forward(self, x: Tensor, *completed: Tensor) -> tuple[Tensor, ...]:
        """Return the mixture and the completed sources, of which one may be new."""
        if self.completes:
            completed = self.complete(x, completed)
        if not completed:
            return (x,)
        inverse, *history = completed
        mixture, read = self.mixture(x, history, inverse)
        if self.gate is not None:
            mixture = x + self.gate(mixture)
        return mixture, inverse, *read

    def mixture(
        self, x: Tensor, history: list[Tensor], inverse: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the mixture, and the history to hand on."""
        if self.weights is None:
            # One source, which is the whole history.
            return x if self.completes else history[-1].view(x.shape).to(x.dtype), history
        if self.completes or self.delta:
            weights = self.weights(history, inverse)
            mixture, read = mix(tuple(history), weights, x.dtype)
            return mixture.squeeze(0), read
        # The open block is a source of this place alone.
        inverse = torch.cat([inverse, self.inverse_rms(x)], dim=-1)
        weights = self.weights(history, inverse, x)
        mixture, read = mix(tuple(history), weights[..., :-1], weights.dtype)
        own = weights[..., -1:] @ x[:, :, None].to(weights.dtype)
        return (mixture.squeeze(0) + own.squeeze(2)).to(x.dtype), read

    def complete(self, v: Tensor, completed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the completed sources with one more."""
        inverse = self.inverse_rms(v)
        if completed:
            inverse = torch.cat([completed[0], inverse], dim=-1)
        return inverse, *append(tuple(completed[1:]), v, self.room)

    def inverse_rms(self, v: Tensor) -> Tensor:
        """Return 1 / rms(v) of each token, [B, T, 1], in float32 at least."""
        wide = v.to(torch.promote_types(v.dtype, torch.float32))
        square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square()
        return torch.rsqrt(square / v.shape[-1] + self.eps)


@final
class OutputsStream(Stream):
    """The open block's sum (delta: the residual), then the sources' inverse rms and history."""

    def __init__(self, config: AttentionResidualsConfig) -> None:
        super().__init__()
        self.place = Place(config, 2 * config.num_hidden_layers)

    def end(self, state: State) -> Tensor:
        mixture: Tensor = self.place(*state)[0]
        return mixture


@final
class AttendOverDepth(Connection):
    """Reads a mixture at its place; writes the output into the open block, or as a delta."""

    def __init__(self, config: AttentionResidualsConfig, place: int) -> None:
        super().__init__()
        self.place = Place(config, place)

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        mixture, *completed = self.place(*state)
        return norm(mixture), (None if self.place.completes else state[0], completed)

    def write(self, carry: Any, y: Tensor) -> State:
        x, completed = carry
        if self.place.delta:
            completed = self.place.complete(y, completed)
        return (y if x is None else x + y, *completed)


@final
class AttentionResiduals(Variant[AttentionResidualsConfig]):
    """Differences from the plain decoder: what each sub-layer and the final norm read."""

    source = "2603.15031"
    released = ("Kimi K3", "Inkling-2")
    overrides = (ParameterOverride(module=SourceAttention), ParameterOverride(module=Gate))
    plain_fields = {"scale_by_sources": True, "gate_init": 0.0}

    @classmethod
    def stream(cls, config: AttentionResidualsConfig) -> Stream:
        return OutputsStream(config)

    @classmethod
    def connection(
        cls, config: AttentionResidualsConfig, layer_idx: int, sub_layer: SubLayer
    ) -> Connection:
        return AttendOverDepth(config, 2 * layer_idx + _SUB_LAYERS.index(sub_layer))

    @classmethod
    def extra_parameters(cls, config: AttentionResidualsConfig) -> int:
        """Return 2 D for each place with several sources, and the gates."""
        counts = cls._count_sources(config)
        gates = sum(n > 0 for n in counts) if config.residual_form == "delta" else 0
        return 2 * config.hidden_size * sum(n > 1 for n in counts) + gates

    @classmethod
    def extra_flops(cls, config: AttentionResidualsConfig) -> int:
        """Return 4 D for each source of each place: 2 D for its score and 2 D for the sum."""
        return 4 * config.hidden_size * sum(n for n in cls._count_sources(config) if n > 1)

    @classmethod
    def _count_sources(cls, config: AttentionResidualsConfig) -> list[int]:
        places = range(2 * config.num_hidden_layers + 1)
        return [len(source_names(config, place)) for place in places]


declare("attention_residuals", AttentionResidualsConfig, AttentionResiduals)
