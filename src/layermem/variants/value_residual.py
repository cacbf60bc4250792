"""Value residual: attention reads its own values mixed with those of the first layer.

With V_0 the values of the first layer (the paper's V_1), keys and queries unchanged:

    V~_l = l1 V_0 + l2 V_l             constant, learnable
    V~_l = sum_{j <= l} w_lj V_j       dense
    V~_l = l1 V_0 + l2 V_l + (sigmoid(A q_l + b) - 1/2) (V_0 - V_l)     gated
    V~_l = V_0                         svformer: these layers have no value projection

The V_j are as projected, unmixed. The mixture is computed before the cache, which holds keys and
mixed values. In the svformer form these are one and the same for all layers, and the cache still
has a copy in each: a cache of transformers belongs to one layer, and grows, is cropped and is
reordered on its own.

    form        weights                        initial values
    constant    constants of the config        first_weight, own_weight
    learnable   [l1, l2] of each layer         first_weight, own_weight
    dense       [w_l0, ..., w_ll]              first_weight on V_0, own_weight on V_l, 0 between
    gated       A [G, H E], b [G], l1, l2      A and b 0; l1 first_weight, l2 own_weight, constants
    svformer    none                           -

Source: arXiv 2410.17897; repository Zcchill/Value-Residual-Learning, commit 95652f6. Its identity
form is the default, constant weights of 1/2; its sparse form mixes in ``last_layers`` alone.
Deviations: the paper picks the layers of the sparse form one by one, here they are the last ones;
it prints no initial values of the dense form; learned weights have no decay.

The gated form, at the default weights V_l + sigmoid(.) (V_0 - V_l), is x-transformers' learned mix,
whose gate is a linear map W x of the input of queries. Here it is one of the query before rope,
A W_q x: every W can be had where H E >= D and W_q has rank D. Their gates begin at random weights,
ours at 1/2. The offset by l1 and l2 is ours: with 0 and 1 the form begins as the plain decoder.

Letters: B batch, H query heads, G key-value heads, T tokens, E head width, D width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import (
    DependsOnInput,
    DepthWeights,
    Memory,
    OwnLayerMemory,
    ParameterOverride,
    Part,
    Variant,
)
from layermem.ops.route import Slot
from layermem_base.number_ranges import FINITE, at_least, number


@strict
class ValueResidualConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the mixture of values."""

    form: Literal["constant", "learnable", "dense", "gated", "svformer"] = "constant"
    """What attention reads: "constant" the sum of first and own values with the two weights below;
    "learnable" the same with learned weights; "dense" a learned sum of all values so far; "gated"
    "constant" with weights that a gate of each token and head moves by up to 1/2; "svformer" the
    first values alone."""
    first_weight: float = number(0.5, FINITE)
    """Weight of the first layer's values, initially where it is learned; not of "svformer"."""
    own_weight: float = number(0.5, FINITE)
    """Weight of the layer's own values, likewise."""
    last_layers: int | None = number(None, at_least(1))
    """Number of last layers that read other values than their own; None: all after the first."""

    @property
    def first_reader(self) -> int:
        """The lowest layer that reads other values than its own."""
        layers = self.num_hidden_layers
        return max(1, layers - (self.last_layers or layers))


@final
class ValueGate(DepthWeights):
    """Weights of the first and the own values for each token and head, computed of its query."""

    def __init__(self, config: ValueResidualConfig, layer_idx: int) -> None:
        super().__init__()
        heads, queries = config.num_key_value_heads, config.num_attention_heads * config.head_dim
        self.sources = ("layer 0", f"layer {layer_idx}")
        self.readers = tuple(f"head {head}" for head in range(heads))
        self.initial = (config.first_weight, config.own_weight)
        self.weight = nn.Parameter(torch.empty(heads, queries))
        self.bias = nn.Parameter(torch.empty(heads))

    def reset_parameters(self) -> None:
        initialization.zeros_(self.weight)
        initialization.zeros_(self.bias)

    def forward(self, query: Tensor) -> Tensor:
        """Return [B, T, G, 2] from the query [B, H, T, E]."""
        flat = query.transpose(1, 2).flatten(2)
        gate = nn.functional.linear(flat, self.weight, self.bias).sigmoid() - 0.5
        return torch.stack([self.initial[0] + gate, self.initial[1] - gate], dim=-1)


@final
class ValueMixture(Memory):
    """Own keys, and values mixed with a weight for each source: a parameter if it is learned, or
    what a gate returns."""

    def __init__(
        self,
        sources: tuple[int, ...],
        initial: Sequence[float],
        *,
        learned: bool,
        gate: ValueGate | None,
    ) -> None:
        super().__init__()
        self.gate = gate
        self.sources, self.initial = sources, tuple(initial)
        self.weight = nn.Parameter(torch.empty(len(sources))) if learned else None

    def reset_parameters(self) -> None:
        if self.weight is not None:
            initialization.copy_(self.weight, torch.tensor(self.initial, device="cpu"))

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        key, value = slots[-1]
        weights: tuple[Any, ...] = self.initial if self.weight is None else self.weight.unbind()
        if self.gate is not None:
            # [B, G, T, 1] of each source.
            weights = self.gate(query).transpose(1, 2).unsqueeze(-2).unbind(-1)
        mixed = weights[-1] * value
        for weight, (_, earlier) in zip(weights[:-1], slots[:-1], strict=True):
            mixed = mixed + weight * earlier
        return key, mixed

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        if self.gate is not None:
            raise DependsOnInput('form="gated" mixes values by the query of each token')
        weight = torch.tensor(self.initial) if self.weight is None else self.weight
        # [target head, source, source head], of one head that stands for all.
        own = torch.zeros_like(weight)
        own[-1] = 1
        return {
            "key": (self.sources, own[None, :, None]),
            "value": (self.sources, weight[None, :, None]),
        }

    def extra_repr(self) -> str:
        return f"sources={list(self.sources)}, initial={list(self.initial)}"


@final
class ValueResidual(Variant[ValueResidualConfig]):
    """Differences from the plain decoder:

    * memory: layers after the first, or the last ones, mix values;
    * value projection: in the svformer form these have none.
    """

    source = "2410.17897"
    released = ("RWKV-7",)
    overrides = (
        ParameterOverride(module=ValueMixture, weight_decay=0.0),
        ParameterOverride(module=ValueGate, weight_decay=0.0),
    )
    plain_fields = {"form": "learnable", "first_weight": 0.0, "own_weight": 1.0}

    @classmethod
    def plain_fields_beside(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        # Constant weights without effect would stay so: the model would be the plain decoder.
        learned = given.get("form", "learnable") in ("learnable", "dense", "gated")
        return cls.plain_fields if learned else {}

    @classmethod
    def sources(cls, config: ValueResidualConfig, layer_idx: int) -> tuple[int, ...]:
        if layer_idx < config.first_reader:
            return ()
        return tuple(range(layer_idx)) if config.form == "dense" else (0,)

    @classmethod
    def memory(cls, config: ValueResidualConfig, layer_idx: int) -> Memory:
        sources = cls.sources(config, layer_idx)
        if not sources:
            return OwnLayerMemory()
        first, own = config.first_weight, config.own_weight
        if config.form == "svformer":
            first, own = 1.0, 0.0
        return ValueMixture(
            (*sources, layer_idx),
            [first, *[0.0] * (len(sources) - 1), own],
            learned=config.form in ("learnable", "dense"),
            gate=ValueGate(config, layer_idx) if config.form == "gated" else None,
        )

    @classmethod
    def projects(cls, config: ValueResidualConfig, layer_idx: int) -> tuple[Part, ...]:
        has_value = layer_idx < config.first_reader or config.form != "svformer"
        return ("key", "value") if has_value else ("key",)

    @classmethod
    def extra_parameters(cls, config: ValueResidualConfig) -> int:
        """Return the learned weights, minus the value projections that do not exist."""
        mixing = range(config.first_reader, config.num_hidden_layers)
        queries = config.num_attention_heads * config.head_dim
        learned = {
            "learnable": 2 * len(mixing),
            "dense": sum(layer + 1 for layer in mixing),
            "gated": len(mixing) * config.num_key_value_heads * (queries + 1),
        }
        return learned.get(config.form, 0) - cls.absent_weights(config)

    @classmethod
    def extra_flops(cls, config: ValueResidualConfig) -> int:
        """Return 2 for each weight of a gate, without biases, and for each absent projection -2."""
        if config.form != "gated":
            return super().extra_flops(config)
        mixing = config.num_hidden_layers - config.first_reader
        biases = mixing * config.num_key_value_heads
        return 2 * (cls.extra_parameters(config) - biases)


declare("value_residual", ValueResidualConfig, ValueResidual)
