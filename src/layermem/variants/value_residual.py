"""Value residual: attention reads its own values mixed with those of the first layer.

With V_0 the values of the first layer (the paper's V_1), keys and queries unchanged:

    V~_l = l1 V_0 + l2 V_l             identity, constant, learnable; sparse: in late layers
    V~_l = sum_{j <= l} w_lj V_j       dense
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
    svformer    none                           -

Source: arXiv 2410.17897; repository Zcchill/Value-Residual-Learning, commit 95652f6. Deviations:
the paper picks the layers of the sparse form one by one, here they are the last ones, a quarter of
all unless given; it prints no initial values of the dense form; learned weights have no decay.

Letters: B batch, G key-value heads, T tokens, E head width.
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
from layermem.models.seams import Memory, OwnLayerMemory, ParameterOverride, Part, Variant
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

    form: Literal["identity", "constant", "sparse", "learnable", "dense", "svformer"] = "identity"
    """What attention reads: "identity" the mean of first and own values; "constant" their sum with
    the two weights below; "sparse" the same in the last layers alone; "learnable" the same with
    learned weights; "dense" a learned sum of all values so far; "svformer" the first values."""
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
                '"learnable" or "dense"'
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
class ValueMixture(Memory):
    """Own keys, and values mixed with a weight for each source: a parameter if it is learned."""

    def __init__(
        self, sources: tuple[int, ...], initial: Sequence[float], *, learned: bool
    ) -> None:
        super().__init__()
        self.sources, self.initial = sources, tuple(initial)
        self.weight = nn.Parameter(torch.empty(len(sources))) if learned else None

    def reset_parameters(self) -> None:
        """Initialise as in the table above."""
        if self.weight is not None:
            initialization.copy_(self.weight, torch.tensor(self.initial, device="cpu"))

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        key, value = slots[-1]
        weights: tuple[Any, ...] = self.initial if self.weight is None else self.weight.unbind()
        mixed = weights[-1] * value
        for weight, (_, earlier) in zip(weights[:-1], slots[:-1], strict=True):
            mixed = mixed + weight * earlier
        return key, mixed

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
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
    overrides = (ParameterOverride(module=ValueMixture, weight_decay=0.0),)
    plain_fields = {"form": "learnable", "first_weight": 0.0, "own_weight": 1.0}

    @classmethod
    def plain_fields_beside(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        # Constant weights without effect would stay so: the model would be the plain decoder.
        learned = given.get("form", "learnable") in ("learnable", "dense")
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
        )

    @classmethod
    def projects(cls, config: ValueResidualConfig, layer_idx: int) -> tuple[Part, ...]:
        return ("key", "value") if layer_idx == 0 or config.form != "svformer" else ("key",)

    @classmethod
    def extra_parameters(cls, config: ValueResidualConfig) -> int:
        """Return the learned weights, minus the value projections that do not exist."""
        layers = config.num_hidden_layers
        learned = {"learnable": 2 * (layers - 1), "dense": sum(range(2, layers + 1))}
        return learned.get(config.form, 0) - cls.absent_weights(config)

    @classmethod
    def _first_reader(cls, config: ValueResidualConfig) -> int:
        if config.form != "sparse":
            return 1
        layers = config.num_hidden_layers
        return max(1, layers - (config.last_layers or math.ceil(layers / 4)))


declare("value_residual", ValueResidualConfig, ValueResidual)
