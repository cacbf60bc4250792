"""Value residual: attention reads its own values mixed with those of the first layer.

With V_0 the values of the first layer (the paper's V_1), keys and queries unchanged:

    V~_l = l1 V_0 + l2 V_l             identity, constant, learnable; sparse: in late layers
    V~_l = sum_{j <= l} w_lj V_j       dense
    V~_l = l1 V_0 + l2 V_l + (sigmoid(A q_l + b) - 1/2) (V_0 - V_l)     gated
    V~_l = V_0                         svformer: later layers have no value projection

The V_j are as projected, unmixed. The mixture is computed before the cache, which holds keys and
mixed values. In the svformer form these are one and the same for all layers, and the cache still
has a copy in each: a cache of transformers belongs to one layer, and grows, is cropped and is
reordered on its own.

    form        weights                        initial values
    identity    constants                      l1 = l2 = 1/2
    constant    constants of the config        first_weight, own_weight
    sparse      the same, the last layers      first_weight, own_weight
    learnable   [l1, l2] of each layer         first_weight, own_weight
    dense       [w_l0, ..., w_ll]              first_weight on V_0, own_weight on V_l, 0 between
    gated       A [G, H E], b [G], l1, l2      A and b 0; l1 first_weight, l2 own_weight, constants
    svformer    none                           -

Source: arXiv 2410.17897; repository Zcchill/Value-Residual-Learning, commit 95652f6. Deviations:
the paper picks the layers of the sparse form one by one, here they are the last ones, a quarter of
all unless given; it prints no initial values of the dense form; learned weights have no decay.

The gated form, at the default weights V_l + sigmoid(.) (V_0 - V_l), is x-transformers' learned mix,
whose gate is a linear map W x of the input of queries. Here it is one of the query before rope,
A W_q x: every W can be had where H E >= D and W_q has rank D. Their gates begin at random weights,
ours at 1/2. The offset by l1 and l2 is ours: with 0 and 1 the form begins as the plain decoder.

Letters: B batch, H query heads, G key-value heads, T tokens, E head width, D width.
"""

import math
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

    shape_fields = (
        *DecoderConfig.shape_fields,
        "form",
        "first_weight",
        "own_weight",
        "last_layers",
    )

    form: Literal["identity", "constant", "sparse", "learnable", "dense", "gated", "svformer"] = (
        "identity"
    )
    """What attention reads: "identity" the mean of first and own values; "constant" their sum with
    the two weights below; "sparse" the same in the last layers alone; "learnable" the same with
    learned weights; "dense" a learned sum of all values so far; "gated" "constant" with weights
    that a gate of each token and head moves by up to 1/2; "svformer" the first values."""
    first_weight: float = number(0.5, FINITE)
    """Weight of the first layer's values, initially where it is learned."""
    own_weight: float = number(0.5, FINITE)
    """Weight of the layer's own values, initially where it is learned."""
    last_layers: int | None = number(None, at_least(1))
    """Number of last layers that mix, for form="sparse" alone; None: a quarter, rounded up."""

    def validate_value_weights(self) -> None:
        """Raise ``ValueError`` for weights that the form does not have."""
        weights = (self.first_weight, self.own_weight)
        if self.form in ("identity", "svformer") and weights != (0.5, 0.5):
            raise ValueError(
                f'form="{self.form}" has fixed weights, got first_weight={weights[0]} and '
                f'own_weight={weights[1]}; leave them 0.5 or choose form="constant", "sparse", '
                '"learnable", "dense" or "gated"'
            )

    def validate_last_layers(self) -> None:
        """Raise ``ValueError`` unless ``last_layers`` fits the form and the depth."""
        count, later = self.last_layers, self.num_hidden_layers - 1
        if count is None:
            return
        if self.form != "sparse":
            raise ValueError(
                f'last_layers={count} is for form="sparse" alone, got form="{self.form}"; '
                "leave it None"
            )
        if count > later:
            raise ValueError(
                f"last_layers must be between 1 and the {later} layers after the first, got {count}"
            )


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
        """Initialise as in the table above."""
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
        """Initialise as in the table above."""
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
        return _by_part(
            self.sources, torch.tensor(self.initial) if self.weight is None else self.weight
        )

    def extra_repr(self) -> str:
        return f"sources={list(self.sources)}, initial={list(self.initial)}"


@final
class FirstValueMemory(Memory):
    """Own keys, and the values of the first layer."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        return slots[-1][0], slots[0][1]

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        return _by_part((0, self.layer_idx), torch.tensor([1.0, 0.0]))


def _by_part(
    sources: tuple[int, ...], weight: Tensor
) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
    """Return the weights of keys, the own layer's, and of values, one for all heads."""
    # [target head, source, source head], of one head that stands for all.
    own = torch.zeros_like(weight)
    own[-1] = 1
    return {"key": (sources, own[None, :, None]), "value": (sources, weight[None, :, None])}


@final
class ValueResidual(Variant[ValueResidualConfig]):
    """Differences from the plain decoder:

    * memory: layers after the first, in the sparse form the last ones, mix values;
    * value projection: in the svformer form the first layer alone has one.
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
        if layer_idx < cls._first_reader(config):
            return ()
        return tuple(range(layer_idx)) if config.form == "dense" else (0,)

    @classmethod
    def memory(cls, config: ValueResidualConfig, layer_idx: int) -> Memory:
        sources = cls.sources(config, layer_idx)
        if not sources:
            return OwnLayerMemory()
        if config.form == "svformer":
            return FirstValueMemory(layer_idx)
        between = [0.0] * (len(sources) - 1)
        return ValueMixture(
            (*sources, layer_idx),
            [config.first_weight, *between, config.own_weight],
            learned=config.form in ("learnable", "dense"),
            gate=ValueGate(config, layer_idx) if config.form == "gated" else None,
        )

    @classmethod
    def projects(cls, config: ValueResidualConfig, layer_idx: int) -> tuple[Part, ...]:
        return ("key", "value") if layer_idx == 0 or config.form != "svformer" else ("key",)

    @classmethod
    def extra_parameters(cls, config: ValueResidualConfig) -> int:
        """Return the learned weights, minus the value projections that do not exist."""
        layers, heads = config.num_hidden_layers, config.num_key_value_heads
        learned = {
            "learnable": 2 * (layers - 1),
            "dense": sum(range(2, layers + 1)),
            "gated": (layers - 1) * heads * (config.num_attention_heads * config.head_dim + 1),
        }
        return learned.get(config.form, 0) - cls.absent_weights(config)

    @classmethod
    def extra_flops(cls, config: ValueResidualConfig) -> int:
        """Return 2 for each weight of a gate, without biases, and for each absent projection -2."""
        if config.form != "gated":
            return super().extra_flops(config)
        biases = (config.num_hidden_layers - 1) * config.num_key_value_heads
        return 2 * (cls.extra_parameters(config) - biases)

    @classmethod
    def _first_reader(cls, config: ValueResidualConfig) -> int:
        if config.form != "sparse":
            return 1
        layers = config.num_hidden_layers
        return max(1, layers - (config.last_layers or math.ceil(layers / 4)))


declare("value_residual", ValueResidualConfig, ValueResidual)
