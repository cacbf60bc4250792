"""DCA, DeepCrossAttention: queries, keys and values read their own sums of all layers' outputs.

G = [v_0, ..., v_(S-1)] is the embedding and what each layer so far has added to the residual. Each
layer has, for each of c in {q, k, v}, weights b_c [S, D], one for each source and channel, and
w_c [D], which weighs sources by the token:

    X^c = sum over j of (b_c[j] + ReLU(w_c . v_j)) * v_j
    y = attention(norm X^q, norm X^k, norm X^v)
    v_S = y + mlp(norm(X^q + y))

and the final norm reads the sum of all v_j. With b = 1 and w = 0 this is the plain decoder: G holds
the residual already, so that nothing else is added. ``recent=k`` (k-DCA) has at most k + 2 sources:
the embedding, the sum of the middle ones, and the last k.

Initial values:

    parameter             gated=False            gated=True
    b                     1                      1
    w                     N(0, 1e-4 / D)         N(0, 1e-4 / D)
    gate g of each c      -                      0

Source: arXiv 2502.06785, by the account of a re-implementation.

Deviations: w starts small instead of at 0, where the ReLU passes no gradient and w would never
move. Hence a new model is the plain decoder only nearly, and exactly with ``gated``, a form of
ours: ReLU(w_c . v_j) is multiplied by a learned number g_c that starts at 0. The residual within a
layer, which the mlp reads, is X^q. b has no weight decay, which would draw it to 0, where a layer
reads nothing, and not to 1.
"""

from typing import Any, final

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
from layermem.ops.depth import append, mix, score, stack
from layermem_base.number_ranges import at_least, number


@strict
class DcaConfig(DecoderConfig):
    """The fields of a LLaMA, and the sources of the sums."""

    recent: int | None = number(None, at_least(1))
    """Number k of the last outputs that are sources of their own, the middle ones being one sum;
    None: all are."""
    gated: bool = False
    """Whether the input-dependent weights are behind a gate that starts closed, so that a new model
    computes what the plain decoder does."""

    def validate_recent(self) -> None:
        """Raise ``ValueError`` if ``recent`` is larger than the number of layers."""
        if self.recent is not None and self.recent > self.num_hidden_layers:
            raise ValueError(
                f"recent must be at most num_hidden_layers ({self.num_hidden_layers}), "
                f"got {self.recent}"
            )


def source_names(config: DcaConfig, layer_idx: int) -> tuple[str, ...]:
    """Return the names of the sources of a layer."""
    outputs = [f"layer {i}" for i in range(layer_idx)]
    if config.recent is not None and layer_idx > config.recent:
        return ("embedding", "middle layers", *outputs[-config.recent :])
    return ("embedding", *outputs)


def _ways(config: DcaConfig, layer_idx: int) -> tuple[str, ...]:
    """Return what has a sum: queries and what a layer projects, which in a pair may be nothing."""
    return ("query", *config.variant_class.projects(config, layer_idx))


@final
class TokenWeights(DepthWeights):
    """The mean of b_c[j] over channels plus ReLU(w_c . v_j): [B, T, ways, sources]."""

    def __init__(
        self, readers: tuple[str, ...], sources: tuple[str, ...], width: int, *, gated: bool
    ) -> None:
        super().__init__()
        self.readers, self.sources = readers, sources
        self.vectors = nn.Parameter(torch.empty(len(readers), width))
        self.gate = nn.Parameter(torch.empty(len(readers))) if gated else None

    def forward(self, history: list[Tensor], channel_mean: Tensor) -> Tensor:
        """Return the weights, and replace the history by the one to read next."""
        scores, history[:] = score(tuple(history), self.vectors)
        dynamic = scores.relu()
        if self.gate is not None:
            dynamic = self.gate[:, None] * dynamic
        return dynamic + channel_mean

    def reset_parameters(self) -> None:
        std = 1e-2 * self.vectors.shape[1] ** -0.5
        salt = f"dca {len(self.sources)} {self.sources[-1]}"
        initialization.copy_(self.vectors, draw(self.vectors, std, salt))
        if self.gate is not None:
            initialization.zeros_(self.gate)


@final
class ChannelWeights(nn.Module):
    """b [ways, sources, D], as its mean over channels and what is left."""

    def __init__(self, ways: int, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(ways, count, width))

    def reset_parameters(self) -> None:
        initialization.ones_(self.weight)

    def forward(self) -> tuple[Tensor, Tensor]:
        mean = self.weight.mean(-1, keepdim=True)
        return mean[..., 0], self.weight - mean


@final
class OutputsStream(Stream):
    """The residual, then the history of the embedding and all layers' outputs, or with ``recent``
    the sources of the next layer."""

    def __init__(self, config: DcaConfig) -> None:
        super().__init__()
        self.keeps_all, self.room = config.recent is None, config.num_hidden_layers + 1

    def begin(self, embeds: Tensor) -> State:
        return embeds, *(append((), embeds, self.room) if self.keeps_all else (embeds,))


@final
class ReadThreeWays(Connection):
    """The connection of attention: reads X^q, X^k and X^v, and leaves X^q + y to the mlp."""

    def __init__(self, config: DcaConfig, layer_idx: int) -> None:
        super().__init__()
        self.ways, sources = _ways(config, layer_idx), source_names(config, layer_idx)
        self.keeps_all = config.recent is None
        self.weights = TokenWeights(self.ways, sources, config.hidden_size, gated=config.gated)
        self.channels = ChannelWeights(len(self.ways), len(sources), config.hidden_size)

    def read(self, state: State, norm: Norm) -> tuple[Any, Any]:
        x, *sources = state
        history = sources if self.keeps_all else [*stack(sources)]
        mean, by_channel = self.channels()
        weights = self.weights(history, mean)
        by_token, read = mix(tuple(history), weights, x.dtype)
        constant, read = mix(read, by_channel, x.dtype)
        sums = (by_token + constant).unbind()
        inputs = dict(zip(self.ways, map(norm, sums), strict=True))
        query = inputs["query"]
        # Nothing reads the input of a part that is not projected.
        for_parts = query, inputs.get("key", query), inputs.get("value", query)
        return for_parts, (sums[0], read if self.keeps_all else sources, x)

    def write(self, carry: Any, y: Tensor) -> State:
        residual, sources, x = carry
        # The mlp reads the first; the last two are for its connection.
        return residual + y, *sources, x, y


@final
class AddOutput(Connection):
    """The connection of the mlp: appends the layer's output to the sources."""

    def __init__(self, config: DcaConfig) -> None:
        super().__init__()
        self.recent, self.room = config.recent, config.num_hidden_layers + 1

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        return norm(state[0]), state[1:]

    def write(self, carry: Any, y: Tensor) -> State:
        *sources, x, y_attention = carry
        output = y_attention + y
        if self.recent is None:
            return x + output, *append(tuple(sources), output, self.room)
        if len(sources) > self.recent:
            embedding, *middle, oldest = sources[: len(sources) - self.recent + 1]
            middle = [sum(middle, start=oldest)]
            sources = [embedding, *middle, *sources[len(sources) - self.recent + 1 :]]
        return x + output, *sources, output


@final
class Dca(Variant[DcaConfig]):
    """Differences from the plain decoder:

    * connections: what attention and the residual after it read;
    * optimiser: no weight decay on the weights by channel.
    """

    source = "2502.06785"
    overrides = (
        ParameterOverride(module=TokenWeights),
        ParameterOverride(module=ChannelWeights, weight_decay=0.0),
    )
    plain_fields = {"gated": True}

    @classmethod
    def stream(cls, config: DcaConfig) -> Stream:
        return OutputsStream(config)

    @classmethod
    def connection(cls, config: DcaConfig, layer_idx: int, sub_layer: SubLayer) -> Connection:
        if sub_layer == "attention":
            return ReadThreeWays(config, layer_idx)
        return AddOutput(config)

    @classmethod
    def extra_parameters(cls, config: DcaConfig) -> int:
        """Return, for each way of each layer, D for each source and the vector, and a gate."""
        ways = sum(len(_ways(config, i)) for i in range(config.num_hidden_layers))
        gates = ways if config.gated else 0
        return config.hidden_size * (cls._count_sources(config) + ways) + gates

    @classmethod
    def extra_flops(cls, config: DcaConfig) -> int:
        """Return 2 D for the score and 2 D for the sum of each source of each way.

        The sums with weights by channel are element-wise products and count 0.
        """
        return 4 * config.hidden_size * cls._count_sources(config)

    @classmethod
    def _count_sources(cls, config: DcaConfig) -> int:
        """Count the sources of each way of each layer."""
        layers = range(config.num_hidden_layers)
        return sum(len(_ways(config, i)) * len(source_names(config, i)) for i in layers)


declare("dca", DcaConfig, Dca)
