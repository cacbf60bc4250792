"""Depth attention: each token chooses by its query among its own values in earlier layers.

At layer l, for a token and a key-value head, over the layers j that are read and l itself:

    a_j = softmax_j(q_l . k_j / sqrt(E))        q_l: the mean over the head's queries
    V~_l = sum_j a_j V_j                        then attention with all queries, K_l and V~_l

V_j of an earlier layer is what that layer attended to, its V~_j (``values="mixed"``), or its
projected values (``"raw"``). Layer 0 has its own alone. The softmax is computed in float32 (float64
in a float64 model). The cache holds keys and mixed values.

The paper scores keys and queries after rope. At one token both turn by the same angle, which leaves
their product as it is, so the memory scores them before rope; where a kind of rope also scales
both (yarn), the scores are scaled by the square.

    gate         new parameters             initial value
    "none"       none (the paper)           -
    "layer"      g, V_l + g (V~_l - V_l)    0: computes what the plain decoder does
    "head"       the same for each head     0

Source: arXiv 2606.05014. Deviations: the gate is ours; the released code caches values before they
are mixed, with which decoding differs from training; there is no norm of queries and keys, because
the decoder has none. For the backward it saves weights of one number for each token, head and pair
of layers, L (L + 1) / 2 over all, which the equations force: 17 MiB of them at 32 layers, 8 heads
and 1024 tokens, against 16 MiB of one layer's slots times 32; no sum of keys or values is kept.

Letters: B batch, H query heads, G key-value heads, T tokens, E head width, S sources.
"""

from collections.abc import Sequence
from typing import Any, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.layers import RotaryEmbedding
from layermem.models.registry import declare
from layermem.models.seams import (
    DependsOnInput,
    DepthWeights,
    HandedOn,
    Memory,
    OwnLayerMemory,
    ParameterOverride,
    Variant,
)
from layermem.ops.depth_attention import mix, score
from layermem.ops.route import Slot
from layermem_base.number_ranges import at_least, number


@strict
class DepthAttentionConfig(DecoderConfig):
    """The fields of a LLaMA, and which values are chosen from."""

    stride: int = number(1, at_least(1))
    """Layers read beside the own: those whose index is a multiple of it; 1: all earlier ones."""
    window: int | None = number(None, at_least(2))
    """Number of last layers read, own included; None: all."""
    values: Literal["mixed", "raw"] = "mixed"
    """Earlier values: "mixed" those that the layer attended to, "raw" those it projected."""
    gate: Literal["none", "layer", "head"] = "none"
    """A learned share, initially 0, of what is read: of each "layer" or "head"; "none": all."""

    def validate_stride_and_window(self) -> None:
        """Raise ``ValueError`` unless both fit the depth."""
        for name, value in (("stride", self.stride), ("window", self.window)):
            if value is not None and value > self.num_hidden_layers:
                raise ValueError(
                    f"{name} must be at most the {self.num_hidden_layers} layers, got {value}"
                )


@final
class DepthSoftmax(DepthWeights):
    """The weights a_j of each key-value head over the layers read."""

    def __init__(self, heads: int, layers: Sequence[int], scaling: float) -> None:
        super().__init__()
        self.sources = tuple(f"layer {layer}" for layer in layers)
        self.readers = tuple(f"head {head}" for head in range(heads))
        self.scaling = scaling

    def forward(self, query: Tensor, keys: Sequence[Tensor]) -> Tensor:
        """Return [B, T, G, S] from the query [B, H, T, E] and S keys [B, G, T, E]."""
        pooled = query.unflatten(1, (len(self.readers), -1)).mean(2)
        scores = score(pooled, keys) * self.scaling
        return scores.softmax(-1)


@final
class DepthAttentionMemory(Memory):
    """Own keys, and values chosen among those of several layers."""

    def __init__(self, weights: DepthSoftmax, gates: int) -> None:
        super().__init__()
        self.weights = weights
        self.gate = nn.Parameter(torch.empty(gates)) if gates else None

    def reset_parameters(self) -> None:
        if self.gate is not None:
            initialization.zeros_(self.gate)

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        key, value = slots[-1]
        keys, values = zip(*slots, strict=True)
        mixed = mix(self.weights(query, keys), values)
        if self.gate is not None:
            mixed = value + self.gate.to(value.dtype)[:, None, None] * (mixed - value)
        return key, mixed

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        raise DependsOnInput("depth attention chooses values by the query of each token")


@final
class DepthAttention(Variant[DepthAttentionConfig]):
    """Differences from the plain decoder:

    * memory: layers after the first choose among values of several layers;
    * what a layer hands on: mixed values.
    """

    source = "2606.05014"
    overrides = (ParameterOverride(module=DepthAttentionMemory, weight_decay=0.0),)
    plain_fields = {"gate": "head"}

    @classmethod
    def sources(cls, config: DepthAttentionConfig, layer_idx: int) -> tuple[int, ...]:
        first = 0 if config.window is None else max(0, layer_idx + 1 - config.window)
        return tuple(j for j in range(first, layer_idx) if j % config.stride == 0)

    @classmethod
    def memory(cls, config: DepthAttentionConfig, layer_idx: int) -> Memory:
        sources = cls.sources(config, layer_idx)
        if not sources:
            return OwnLayerMemory()
        heads = config.num_key_value_heads
        rope_scale = RotaryEmbedding(config).attention_scaling
        weights = DepthSoftmax(heads, (*sources, layer_idx), rope_scale**2 * config.head_dim**-0.5)
        return DepthAttentionMemory(weights, cls._count_gates(config))

    @classmethod
    def hands_on(cls, config: DepthAttentionConfig) -> HandedOn:
        return "read" if config.values == "mixed" else "own"

    @classmethod
    def extra_parameters(cls, config: DepthAttentionConfig) -> int:
        """Return the gates of layers that read others. Scores and sums are element-wise."""
        layers = range(config.num_hidden_layers)
        return cls._count_gates(config) * sum(bool(cls.sources(config, i)) for i in layers)

    @classmethod
    def _count_gates(cls, config: DepthAttentionConfig) -> int:
        counts: dict[Any, int] = {"none": 0, "layer": 1, "head": config.num_key_value_heads}
        return counts[config.gate]


declare("depth_attention", DepthAttentionConfig, DepthAttention)
