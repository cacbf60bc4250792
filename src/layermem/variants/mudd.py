"""MUDD: queries, keys, values and the residual each read their own mixture of all layers' outputs.

X_0 is the embedding and X_i the output of layer i, counted from 1. Layer i + 1 reads, for each way
c of {q, k, v, r}, per token:

    A = GELU(RMSNorm(X_i) W1) W2 + a           [4, i + 1]; RMSNorm without a gain
    X^c = sum over j <= i of A[c, j] X_j
    attention(norm_q X^q, norm_k X^k, norm_v X^v) + X^r, then the mlp as ever

The first layer reads X_0 alone, the final norm X^r alone, and in a pair a layer without projections
of keys or values has none of these ways. The hidden width of the weights is 4
(i + 1), for the final norm too. With ``pre_post_norm`` the sources are normed before and the sums
after, and added to the newest output:

    X^c = X_i + norm_c(sum over j <= i of A[c, j] norm_j(X_j))

Initial values:

    parameter                 plain                       pre_post_norm
    W1                        N(0, 1 / D)                 N(0, 1 / D)
    W2                        0                           0
    a                         1 on X_i, 0 on others       0
    gains of the key's and    1                           1
    the value's norm
    gain of norm_j, norm_c    -                           1, 1e-3

Source: arXiv 2502.12170, Caiyun-AI/MUDDFormer (fc067b2).

Deviations: the hidden width is not rounded up to a multiple of 64. Layers are equally wide (the
paper also re-allocates mlp widths over depth). The norms of keys and values share the layer's norm,
times a gain of their own: the same functions, which start equal to the query's also where that one
is pretrained. Gains have no weight decay, as all norms here (theirs decays everything).
"""

from typing import Any, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.layers import RMSNorm
from layermem.models.registry import declare
from layermem.models.seams import (
    Connection,
    DepthWeights,
    Norm,
    ParameterOverride,
    Part,
    State,
    Stream,
    SubLayer,
    Variant,
    forked_generator,
)
from layermem.ops.depth import append, count, mix
from layermem.ops.gradients import is_traced
from layermem.ops.norm import rms_norm

# Up to this many numbers in an input without gradients, as at decoding, a call costs more than its
# arithmetic.
_FEW = 16384


@strict
class MuddConfig(DecoderConfig):
    """The fields of a LLaMA, and the form of the mixtures."""

    shape_fields = (*DecoderConfig.shape_fields, "pre_post_norm")

    pre_post_norm: bool = False
    """Whether sources are normed before they are mixed and mixtures after, and then added to the
    newest output: the stable form at depth."""


@final
class MuddWeights(DepthWeights):
    """A of the equations, [B, T, ways, sources]."""

    def __init__(self, config: MuddConfig, layers: int, readers: tuple[str, ...]) -> None:
        super().__init__()
        self.sources = ("embedding", *(f"layer {i}" for i in range(layers)))
        self.readers = readers
        self.eps, self.starts_at_newest = config.rms_norm_eps, not config.pre_post_norm
        hidden, count = 4 * len(self.sources), len(readers) * len(self.sources)
        self.inner = nn.Parameter(torch.empty(hidden, config.hidden_size))
        self.outer = nn.Parameter(torch.empty(count, hidden))
        self.static = nn.Parameter(torch.empty(len(readers), len(self.sources)))

    def forward(self, x: Tensor) -> Tensor:
        linear, shape = nn.functional.linear, (*x.shape[:-1], *self.static.shape)
        if torch.is_grad_enabled() or is_traced() or not x.is_cpu or x.numel() > _FEW:
            unit = rms_norm(x, x.new_ones(x.shape[-1]), self.eps)
            hidden = nn.functional.gelu(linear(unit, self.inner))
        else:
            hidden = linear(torch.rms_norm(x, x.shape[-1:], None, self.eps), self.inner)
            # torch's own calls oneDNN, whose set-up costs more than the arithmetic of a few tokens.
            hidden = hidden * torch.special.ndtr(hidden)
        return linear(hidden, self.outer).view(shape) + self.static

    def reset_parameters(self) -> None:
        """Initialise as in the table above."""
        inner = torch.empty(self.inner.shape, device="cpu")
        generator = forked_generator(f"mudd {len(self.sources)}")
        initialization.copy_(
            self.inner, inner.normal_(std=inner.shape[1] ** -0.5, generator=generator)
        )
        initialization.zeros_(self.outer)
        static = torch.zeros(self.static.shape, device="cpu")
        static[:, -1] = float(self.starts_at_newest)
        initialization.copy_(self.static, static)


@final
class SourceNorm(RMSNorm):
    """norm_j."""

    def reset_parameters(self) -> None:
        """Initialise as in the table above."""
        initialization.ones_(self.weight)


@final
class MixtureNorm(RMSNorm):
    """norm_c."""

    def reset_parameters(self) -> None:
        """Initialise as in the table above."""
        initialization.constant_(self.weight, 1e-3)


class Place(nn.Module):
    """What layer ``layers`` + 1 or the final norm reads, of X_i and the history of those before."""

    def __init__(self, config: MuddConfig, layers: int, readers: tuple[str, ...]) -> None:
        super().__init__()
        self.room = config.num_hidden_layers + 1
        width, eps, normed = config.hidden_size, config.rms_norm_eps, config.pre_post_norm
        self.weights = MuddWeights(config, layers, readers) if layers else None
        self.source_norm = SourceNorm(width, eps) if normed else None
        norms = (MixtureNorm(width, eps) for _ in readers)
        self.mixture_norms = nn.ModuleList(norms) if normed and layers else None

    def forward(self, x: Tensor, *history: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what the ways read, [ways, B, T, D], and the history with X_i."""
        newest = x if self.source_norm is None else self.source_norm(x)
        history = append(history, newest, self.room)
        if self.weights is None:
            return x[None], history
        mixtures, history = mix(history, self.weights(x), newest.dtype)
        if self.mixture_norms is not None:
            pairs = zip(self.mixture_norms, mixtures.unbind(), strict=True)
            mixtures = torch.stack([x + norm(mixture) for norm, mixture in pairs])
        return mixtures, history


@final
class Gains(nn.Module):
    """The gains of the norms of keys and values, relative to the query's; of what is projected."""

    def __init__(self, width: int, parts: tuple[Part, ...]) -> None:
        super().__init__()
        self.parts = parts
        for part in parts:
            self.register_parameter(part, nn.Parameter(torch.empty(width)))

    def reset_parameters(self) -> None:
        """Initialise as in the table above."""
        for gain in self.parameters():
            initialization.ones_(gain)

    def forward(self, *inputs: Tensor) -> dict[Part, Tensor]:
        return {part: x * getattr(self, part) for part, x in zip(self.parts, inputs, strict=True)}


@final
class OutputsStream(Stream):
    """The residual, then the history of the embedding and the output of every completed layer."""

    def __init__(self, config: MuddConfig) -> None:
        super().__init__()
        self.place = Place(config, config.num_hidden_layers, ("residual",))
        self.layers = config.num_hidden_layers

    def end(self, state: State) -> Tensor:
        """Return the last mixture.

        A decoder that leaves out its last layers, as one that drafts for itself does, has none for
        the sources it has: it ends with its newest output.
        """
        if count(state[1:]) != self.layers:
            return state[0]
        mixtures: Tensor = self.place(*state)[0]
        return mixtures.squeeze(0)


@final
class ReadFourWays(Connection):
    """The connection of attention."""

    def __init__(self, config: MuddConfig, layers: int) -> None:
        super().__init__()
        parts = _parts(config, layers)
        self.place = Place(config, layers, ("query", *parts, "residual"))
        self.gains = Gains(config.hidden_size, parts) if layers and parts else None

    def read(self, state: State, norm: Norm) -> tuple[Any, Any]:
        mixtures, history = self.place(*state)
        # The first layer reads one state for all.
        inputs, residual = mixtures[:-1] if len(mixtures) > 1 else mixtures, mixtures[-1]
        query, *others = norm(inputs).unbind()
        parts = {} if self.gains is None else self.gains(*others)
        # Nothing reads the input of a part that is not projected.
        read = query, parts.get("key", query), parts.get("value", query)
        return read, (residual, *history)


@final
class Mudd(Variant[MuddConfig]):
    """Differences from the plain decoder: what attention, the residual after it and the final norm
    read."""

    source = "2502.12170"
    overrides = tuple(
        ParameterOverride(module=module) for module in (MuddWeights, Gains, SourceNorm, MixtureNorm)
    )

    @classmethod
    def stream(cls, config: MuddConfig) -> Stream:
        return OutputsStream(config)

    @classmethod
    def connection(cls, config: MuddConfig, layer_idx: int, sub_layer: SubLayer) -> Connection:
        return ReadFourWays(config, layer_idx) if sub_layer == "attention" else Connection()

    @classmethod
    def extra_parameters(cls, config: MuddConfig) -> int:
        """Return those of the weights, the gains, and the norms of ``pre_post_norm``."""
        width, layers = config.hidden_size, config.num_hidden_layers
        sizes = cls._sizes(config)
        gains = sum(len(_parts(config, i)) for i in range(1, layers))
        norms = layers + 1 + sum(ways for ways, _ in sizes) if config.pre_post_norm else 0
        static = sum(ways * sources for ways, sources in sizes)
        return cls._count_weights(config) + static + width * (gains + norms)

    @classmethod
    def extra_flops(cls, config: MuddConfig) -> int:
        """Return 2 for each weight of W1 and W2, and 2 D for each source of each way."""
        mixed = sum(ways * sources for ways, sources in cls._sizes(config))
        return 2 * cls._count_weights(config) + 2 * config.hidden_size * mixed

    @classmethod
    def _count_weights(cls, config: MuddConfig) -> int:
        """Count the weights of W1 and W2: 4 S of D numbers, and C S of 4 S numbers."""
        sizes = cls._sizes(config)
        return sum(4 * s * (config.hidden_size + ways * s) for ways, s in sizes)

    @classmethod
    def _sizes(cls, config: MuddConfig) -> list[tuple[int, int]]:
        """Return (ways, sources) of every place that mixes."""
        layers = config.num_hidden_layers
        ways = [2 + len(_parts(config, i)) for i in range(layers)]
        return [*((ways[i], i + 1) for i in range(1, layers)), (1, layers + 1)]


def _parts(config: MuddConfig, layer_idx: int) -> tuple[Part, ...]:
    """Return what a layer projects, which in a pair the other variant decides."""
    parts: tuple[Part, ...] = config.variant_class.projects(config, layer_idx)
    return parts


declare("mudd", MuddConfig, Mudd)
