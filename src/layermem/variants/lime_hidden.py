"""LIMe on hidden states: each head's keys and values are projected from a mixture over depth.

With N_j = norm_j(X_j), the normed input of layer j's attention, X_0 the embedding, for each
key-value head h of layer l:

    X~_{l,h} = sum_{j <= l} a_{l,h,j} N_j        K_{l,h} = W^K_{l,h} X~_{l,h}, V likewise
    static:   a_{l,h} = softmax_j(S_l[h])
    dynamic:  a_{l,h} = softmax_j((N_l R_l)[h])   for every token
    gate:     a <- g_h a + (1 - g_h) (1 on l)     ours

Queries are projected from N_l. Layer 0 has one source and nothing to weigh.

    parameter                shape          initial value               learning rate, decay
    S_l                      [G, l + 1]     normal, deviation 0.1       1e-2, 0
    R_l                      [G(l+1), D]    normal, initializer_range   1e-2, 0.1
    g (with ``gate=True``)   [G]            0                           1e-2, 0

Source: the first version of arXiv 2502.09245. Deviations: it says "norm" without saying whose; here
each state has the norm of the layer whose input it is, so that it is normed and kept once for all
readers; with grouped queries, h counts key-value heads; it does not give R's initial values; its
pruning of layers is left out. A softmax is never one-hot, so only the gate makes a new model the
plain decoder.

Mixing states for every head costs 2 G (l + 1) D FLOPs a token. Projecting every state by the
layer's weights and mixing the results would cost E times as many, for the projections. The
mixtures, G D numbers a token and layer, are saved for the backward: 128 MiB at 32 layers of width
128, 8 heads and 1024 tokens.

Letters: B batch, G key-value heads, T tokens, E head width, D width, S sources.
"""

from typing import Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import (
    Connection,
    DepthWeights,
    Inputs,
    Norm,
    ParameterOverride,
    State,
    SubLayer,
    Variant,
    draw,
)
from layermem.ops.depth import append, mix


@strict
class LimeHiddenConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the mixtures."""

    form: Literal["static", "dynamic"] = "static"
    """Weights over depth: "static" constant, "dynamic" computed from each token's state."""
    gate: bool = False
    """Whether each head has a learned share, initially 0, of the mixture."""


@final
class HeadWeights(DepthWeights):
    """The weights a of one layer, [G, S] or [B, T, G, S]."""

    def __init__(self, config: LimeHiddenConfig, layer_idx: int) -> None:
        super().__init__()
        heads, count = config.num_key_value_heads, layer_idx + 1
        self.sources = tuple(f"layer {j}" for j in range(count))
        self.readers = tuple(f"head {head}" for head in range(heads))
        self.is_static, self.deviation = config.form == "static", config.initializer_range
        if self.is_static:
            self.logits = nn.Parameter(torch.empty(heads, count))
        else:
            self.projection = nn.Parameter(torch.empty(heads * count, config.hidden_size))
        self.gate = nn.Parameter(torch.empty(heads)) if config.gate else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        weight, std = (self.logits, 0.1) if self.is_static else (self.projection, self.deviation)
        initialization.copy_(weight, draw(weight, std, f"hidden states {len(self.sources)}"))
        if self.gate is not None:
            initialization.zeros_(self.gate)

    def forward(self, normed: Tensor) -> Tensor:
        """Return the weights at the states N_l [B, T, D]."""
        if self.is_static:
            logits: Tensor = self.logits
        else:
            logits = nn.functional.linear(normed, self.projection)
            logits = logits.unflatten(-1, (len(self.readers), -1))
        weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if self.gate is None:
            return weights
        own = torch.zeros_like(weights)
        own[..., -1] = 1
        gate = self.gate.to(weights.dtype)[:, None]
        return gate * weights + (1 - gate) * own


@final
class HeadMixtures(Connection):
    """The connection of attention: mixtures as inputs of keys and values, one for each head."""

    def __init__(self, weights: HeadWeights | None, *, is_static: bool, room: int) -> None:
        super().__init__()
        self.weights, self.is_static, self.room = weights, is_static, room

    def read(self, state: State, norm: Norm) -> tuple[Inputs, State]:
        # The state is the residual, then the history of the normed inputs.
        x, history = state[0], state[1:]
        normed = norm(x)
        history = append(history, normed, self.room, apart=self.is_static)
        if self.weights is None:
            return normed, (x, *history)
        mixtures, history = mix(history, self.weights(normed), normed.dtype)
        return (normed, mixtures, mixtures), (x, *history)


@final
class LimeHidden(Variant[LimeHiddenConfig]):
    """Differences from the plain decoder:

    * connection of attention: keys and values have an input for each head, mixed of the normed
      inputs of all layers so far;
    * optimiser: a learning rate of 1e-2.
    """

    source = "2502.09245"
    overrides = (
        ParameterOverride(
            module=HeadWeights, parameters=("logits", "gate"), lr=1e-2, weight_decay=0.0
        ),
        ParameterOverride(
            module=HeadWeights, parameters=("projection",), lr=1e-2, weight_decay=0.1
        ),
    )
    plain_fields = {"gate": True}

    @classmethod
    def inputs_by_head(cls, config: LimeHiddenConfig) -> bool:
        return True

    @classmethod
    def connection(
        cls, config: LimeHiddenConfig, layer_idx: int, sub_layer: SubLayer
    ) -> Connection:
        if sub_layer == "mlp":
            return super().connection(config, layer_idx, sub_layer)
        # In a pair the other variant may leave a layer without keys and values.
        weights = HeadWeights(config, layer_idx) if cls._mixes(config, layer_idx) else None
        is_static = config.form == "static"
        return HeadMixtures(weights, is_static=is_static, room=config.num_hidden_layers)

    @classmethod
    def extra_parameters(cls, config: LimeHiddenConfig) -> int:
        """Return S or R of every layer after the first, and its gates."""
        weights = cls._count_weights(config)
        mixing = sum(cls._mixes(config, i) for i in range(config.num_hidden_layers))
        gates = config.num_key_value_heads * mixing if config.gate else 0
        return gates + (weights if config.form == "static" else weights * config.hidden_size)

    @classmethod
    def extra_flops(cls, config: LimeHiddenConfig) -> int:
        """Return 2 D for each weight, and as many to compute it where it is dynamic."""
        per_weight = 2 * config.hidden_size * (1 if config.form == "static" else 2)
        return per_weight * cls._count_weights(config)

    @classmethod
    def _count_weights(cls, config: LimeHiddenConfig) -> int:
        layers = range(config.num_hidden_layers)
        return config.num_key_value_heads * sum(i + 1 for i in layers if cls._mixes(config, i))

    @classmethod
    def _mixes(cls, config: LimeHiddenConfig, layer_idx: int) -> bool:
        return layer_idx > 0 and bool(config.variant_class.projects(config, layer_idx))


declare("lime_hidden", LimeHiddenConfig, LimeHidden)
