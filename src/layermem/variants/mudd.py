"""MUDD: queries, keys, values and the residual each read their own mixture of all layers' outputs.

X_0 is the embedding and X_i the output of layer i, counted from 1. Layer i + 1 reads, for each way
c of {q, k, v, r}, per token:

    A = GELU(RMSNorm(X_i) W1) W2 + a           [4, i + 1]; RMSNorm without a gain
    X^c = sum over j <= i of A[c, j] X_j
    attention(norm_q X^q, norm_k X^k, norm_v X^v) + X^r, then the mlp as ever

The first layer reads X_0 alone, the final norm X^r alone, and in a pair a layer without projections
of keys or values has none of these ways. The hidden width of the weights is 4 (i + 1), for the
final norm too. In few places (``mixing_layers``, ``mixing_ways``, ``mixing_sources``) what follows
the last layers mixes, for some ways, some X_j and X_i. What does not mix reads X_i, and no other
X_j are kept. With ``pre_post_norm`` the sources are normed before and the sums after, and added to
the newest output:

    X^c = X_i + norm_c(sum over j <= i of A[c, j] norm_j(X_j))

Initial values:

    parameter                 plain                       pre_post_norm
    W1                        N(0, 1 / D)                 N(0, 1 / D)
    W2                        0                           0
    a                         1 on X_i, 0 on others       0
    gains of the key's and    1                           1
    the value's norm
    gain of norm_j, norm_c    -                           1, 1e-3

Source: arXiv 2502.12170, Caiyun-AI/MUDDFormer (fc067b2). Few places: modded-nanogpt's record of
2026-04-22, in whose manner are ``mixing_layers=2``, ``mixing_ways=["value", "residual"]`` and as
``mixing_sources`` X_0 and a middle one, [0, 8] of its 11 layers.

Deviations: the hidden width is not rounded up to a multiple of 64. Layers are equally wide (the
paper also re-allocates mlp widths over depth). The norms of keys and values share the layer's norm,
times a gain of their own: the same functions, which start equal to the query's also where that one
is pretrained. Gains have no weight decay, as all norms here (theirs decays everything). The record
adds its mixtures to X_i and to projected values; here a way reads a mixture in place of X_i.
"""

from typing import Any, Literal, final

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
    draw,
)
from layermem.ops.depth import append, count, mix, stack
from layermem.ops.gradients import is_traced
from layermem.ops.norm import rms_norm
from layermem_base.number_ranges import at_least, number

# Up to this many numbers in an input without gradients, as at decoding, a call costs more than its
# arithmetic.
_FEW = 16384


@strict
class MuddConfig(DecoderConfig):
    """The fields of a LLaMA, the form of the mixtures, and where they are."""

    pre_post_norm: bool = False
    """Whether sources are normed before they are mixed and mixtures after, and then added to the
    newest output: the stable form at depth."""
    mixing_layers: int | None = number(None, at_least(1))
    """Number of last layers after which the next layer, or the final norm, reads mixtures; None:
    all."""
    mixing_ways: list[Literal["query", "key", "value", "residual"]] | None = None
    """Ways that read mixtures; None: all four. The others read the newest output."""
    mixing_sources: list[int] | None = number(None, at_least(0))
    """Outputs that are mixed beside the newest: 0 is the embedding, i the output of layer i counted
    from 1; None: all."""

    def validate_mixing(self) -> None:
        """Raise ``ValueError`` if a number is beyond the layers, or if nothing would be mixed."""
        layers, ways, sources = self.mixing_layers, self.mixing_ways, self.mixing_sources
        most = self.num_hidden_layers
        if (layers or 1) > most or max(sources or [0]) >= most:
            raise ValueError(
                f"with {most} layers mixing_layers must be at most {most} and mixing_sources below "
                f"{most}, got {layers} and {sources}"
            )
        if ways is not None and "residual" not in ways and (layers == 1 or not ways):
            raise ValueError(f"mixing_ways={ways} mixes nothing here; add residual")


@final
class MuddWeights(DepthWeights):
    """A of the equations, [B, T, ways, sources]."""

    def __init__(self, config: MuddConfig, depth: int) -> None:
        super().__init__()
        self.depth, self.readers = depth, _readers(config, depth)
        depths = _sources(config, depth)
        self.sources = tuple(f"layer {j - 1}" if j else "embedding" for j in depths)
        self.eps, self.starts_at_newest = config.rms_norm_eps, not config.pre_post_norm
        hidden, count = 4 * (depth + 1), len(self.readers) * len(self.sources)
        self.inner = nn.Parameter(torch.empty(hidden, config.hidden_size))
        self.outer = nn.Parameter(torch.empty(count, hidden))
        self.static = nn.Parameter(torch.empty(len(self.readers), len(self.sources)))

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
        std = self.inner.shape[1] ** -0.5
        initialization.copy_(self.inner, draw(self.inner, std, f"mudd {self.depth + 1}"))
        initialization.zeros_(self.outer)
        static = torch.zeros(self.static.shape, device="cpu")
        static[:, -1] = float(self.starts_at_newest)
        initialization.copy_(self.static, static)


@final
class SourceNorm(RMSNorm):
    """norm_j."""

    def reset_parameters(self) -> None:
        initialization.ones_(self.weight)


@final
class MixtureNorm(RMSNorm):
    """norm_c."""

    def reset_parameters(self) -> None:
        initialization.constant_(self.weight, 1e-3)


class Place(nn.Module):
    """What layer ``depth`` + 1 or the final norm reads, of X_i and the history of those before.

    The history is one of ``ops.depth`` if all outputs are sources, else a tuple of the sources.
    """

    def __init__(self, config: MuddConfig, depth: int) -> None:
        super().__init__()
        self.room, self.is_few = config.num_hidden_layers + 1, config.mixing_sources is not None
        self.is_source, ways = _is_source(config, depth), _readers(config, depth)
        width, eps, normed = config.hidden_size, config.rms_norm_eps, config.pre_post_norm
        self.weights = MuddWeights(config, depth) if ways else None
        self.source_norm = SourceNorm(width, eps) if normed and (self.is_source or ways) else None
        norms = (MixtureNorm(width, eps) for _ in ways)
        self.mixture_norms = nn.ModuleList(norms) if normed and ways else None

    def forward(self, x: Tensor, *history: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what the ways read, [ways, B, T, D], and the history, with X_i if it is read."""
        if self.weights is None and not self.is_source:
            return x[None], history
        newest = x if self.source_norm is None else self.source_norm(x)
        states = (*history, newest) if self.is_few else append(history, newest, self.room)
        history = states if self.is_source or not self.is_few else history
        if self.weights is None:
            return x[None], history
        weights = self.weights(x)
        if self.is_few:
            mixtures, _ = mix(stack(states), weights, newest.dtype)
        else:
            mixtures, history = mix(states, weights, newest.dtype)
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
        for gain in self.parameters():
            initialization.ones_(gain)

    def forward(self, *inputs: Tensor) -> dict[Part, Tensor]:
        return {part: x * getattr(self, part) for part, x in zip(self.parts, inputs, strict=True)}


@final
class OutputsStream(Stream):
    """The residual, then the history of the outputs that a later place reads, X_0 among them."""

    def __init__(self, config: MuddConfig) -> None:
        super().__init__()
        self.place = Place(config, config.num_hidden_layers)

    def end(self, state: State) -> Tensor:
        """Return the last mixture.

        A decoder that leaves out its last layers, as one that drafts for itself does, has none for
        the sources it has: it ends with its newest output.
        """
        weights, history = self.place.weights, state[1:]
        given = count(history) if history and not self.place.is_few else len(history)
        if weights is None or given != len(weights.sources) - 1:
            return state[0]
        mixtures: Tensor = self.place(*state)[0]
        return mixtures.squeeze(0)


@final
class ReadFourWays(Connection):
    """The connection of attention."""

    def __init__(self, config: MuddConfig, layers: int) -> None:
        super().__init__()
        self.place, parts = Place(config, layers), _parts(config, layers)
        ways = _readers(config, layers)
        self.inputs, self.mixes_residual = [w for w in ways if w != "residual"], "residual" in ways
        self.reads_newest = {*self.inputs} != {"query", *parts}
        mixed = tuple(part for part in parts if part in ways)
        self.gains = Gains(config.hidden_size, mixed) if mixed else None

    def read(self, state: State, norm: Norm) -> tuple[Any, Any]:
        x = state[0]
        mixtures, history = self.place(*state)
        carry = mixtures[-1] if self.mixes_residual else x, *history
        if not self.inputs:
            return norm(x), carry
        inputs = norm(mixtures[: len(self.inputs)]).unbind()
        read: dict[str, Tensor] = dict(zip(self.inputs, inputs, strict=True))
        if self.gains is not None:
            read |= self.gains(*(read[part] for part in self.gains.parts))
        # Nothing reads the input of a part that is not projected.
        other = norm(x) if self.reads_newest else inputs[0]
        return tuple(read.get(way, other) for way in ("query", "key", "value")), carry


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
        layers, sizes = config.num_hidden_layers, cls._sizes(config)
        of_places = [_readers(config, i) for i in range(layers + 1)]
        gains = sum(len({*ways} & {"key", "value"}) for ways in of_places)
        sources = sum(bool(ways) or _is_source(config, i) for i, ways in enumerate(of_places))
        norms = config.pre_post_norm * (sources + sum(map(len, of_places)))
        static = sum(ways * sources for ways, sources, _ in sizes)
        return cls._count_weights(config) + static + config.hidden_size * (gains + norms)

    @classmethod
    def extra_flops(cls, config: MuddConfig) -> int:
        """Return 2 for each weight of W1 and W2, and 2 D for each source of each way."""
        mixed = sum(ways * sources for ways, sources, _ in cls._sizes(config))
        return 2 * cls._count_weights(config) + 2 * config.hidden_size * mixed

    @classmethod
    def _count_weights(cls, config: MuddConfig) -> int:
        """Count the weights of W1 and W2: h rows of D numbers, and C S rows of h."""
        return sum(h * (config.hidden_size + ways * s) for ways, s, h in cls._sizes(config))

    @classmethod
    def _sizes(cls, config: MuddConfig) -> list[tuple[int, int, int]]:
        """Return (ways C, sources S, hidden width h) of every place that mixes."""
        places = [(i, _readers(config, i)) for i in range(config.num_hidden_layers + 1)]
        return [(len(ways), len(_sources(config, i)), 4 * (i + 1)) for i, ways in places if ways]


def _parts(config: MuddConfig, layer_idx: int) -> tuple[Part, ...]:
    """Return what a layer projects, which in a pair the other variant decides."""
    parts: tuple[Part, ...] = config.variant_class.projects(config, layer_idx)
    return parts


def _readers(config: MuddConfig, depth: int) -> tuple[str, ...]:
    """Return the ways that read mixtures after so many layers, ``residual`` last."""
    layers = config.num_hidden_layers
    if depth <= layers - (config.mixing_layers or layers):
        return ()
    inputs = ("query", *_parts(config, depth)) if depth < layers else ()
    ways = config.mixing_ways
    return tuple(way for way in (*inputs, "residual") if ways is None or way in ways)


def _sources(config: MuddConfig, depth: int) -> list[int]:
    """Return the j of the X_j that are mixed after so many layers, ascending."""
    given = config.mixing_sources
    return [j for j in range(depth + 1) if given is None or j in given or j == depth]


def _is_source(config: MuddConfig, depth: int) -> bool:
    """Return whether a later place mixes X_i."""
    later = range(depth + 1, config.num_hidden_layers + 1)
    return any(_readers(config, i) and depth in _sources(config, i) for i in later)


declare("mudd", MuddConfig, Mudd)
