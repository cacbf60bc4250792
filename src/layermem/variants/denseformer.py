"""DenseFormer: after each layer, a learned weighted sum of the embedding and all layers' outputs.

With depths counted from 1, X_0 the embedding and X_i the output of layer i on Y_{i-1}:

    Y_0 = X_0
    Y_i = sum over j in S_i of a_ij X_j     if the period p divides i, else X_i
    S_i = {j <= i: j = i mod k}             k the dilation

The final norm reads Y_L. Initial weights: a_ii = 1, all others 0.

Source: arXiv 2402.02622, and the packaged modules of epfml/DenseFormer (c99a623), whose meaning of
the period this is: every layer's output is a source, also of layers after which nothing is mixed.
The repository's experiments keep as sources only the outputs at multiples of the period.

Deviations: the weights have no weight decay (theirs decays them, towards 0 and not towards 1).
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
    ParameterOverride,
    State,
    Stream,
    SubLayer,
    Variant,
)
from layermem.ops.depth import append, mix
from layermem_base.number_ranges import at_least, number


@strict
class DenseformerConfig(DecoderConfig):
    """The fields of a LLaMA, and which layers' outputs are mixed where."""

    dilation: int = number(1, at_least(1))
    """Distance between the sources of a sum; 1: all earlier layers are sources."""
    period: int = number(1, at_least(1))
    """Number of layers from one sum to the next; 1: there is one after every layer."""

    def validate_dilation_and_period(self) -> None:
        """Raise ``ValueError`` if one is larger than the number of layers."""
        for name, value in (("dilation", self.dilation), ("period", self.period)):
            if value > self.num_hidden_layers:
                raise ValueError(
                    f"{name} must be at most num_hidden_layers ({self.num_hidden_layers}), "
                    f"got {value}"
                )


def source_depths(config: DenseformerConfig, depth: int) -> tuple[int, ...]:
    """Return S_i of the equations for i = ``depth``; empty where nothing is mixed."""
    if depth % config.period:
        return ()
    return tuple(range(depth % config.dilation, depth + 1, config.dilation))


@final
class OutputsStream(Stream):
    """The residual, then the history of the embedding and the output of every layer so far."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.room = layers + 1

    def begin(self, embeds: Tensor) -> State:
        return embeds, *append((), embeds, self.room, apart=True)


@final
class ConstantDepthWeights(DepthWeights):
    """The weights of one sum, ``weight`` [1, sources], for all tokens."""

    readers = ("residual",)

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.sources = tuple(f"layer {j - 1}" if j else "embedding" for j in depths)
        self.weight = nn.Parameter(torch.empty(1, len(depths)))

    def reset_parameters(self) -> None:
        """Weigh the newest source by 1 and all others by 0."""
        own = torch.zeros(self.weight.shape, device="cpu")
        own[0, -1] = 1
        initialization.copy_(self.weight, own)

    def forward(self) -> Tensor:
        # Not the parameter itself: hooks expect the output of a module to be computed.
        return self.weight.clone()


@final
class MixAfterLayer(Connection):
    """The connection of the mlp, the last sub-layer of a layer: x + y, then the sum over depth."""

    def __init__(self, config: DenseformerConfig, depth: int) -> None:
        super().__init__()
        self.room, self.dilation = config.num_hidden_layers + 1, config.dilation
        depths = source_depths(config, depth)
        self.weights = ConstantDepthWeights(depths) if depths else None

    def write(self, carry: Any, y: Tensor) -> State:
        x = carry[0] + y
        history = append(carry[1:], x, self.room, apart=True)
        if self.weights is None:
            return x, *history
        mixed, history = mix(history, self.weights(), x.dtype, self.dilation)
        return mixed.squeeze(0), *history


@final
class Denseformer(Variant[DenseformerConfig]):
    """Differences from the plain decoder:

    * stream: the outputs of all layers are kept;
    * connection of the mlp: the residual becomes a weighted sum of them;
    * optimiser: no weight decay on the weights.
    """

    source = "2402.02622"
    overrides = (ParameterOverride(module=ConstantDepthWeights, weight_decay=0.0),)

    @classmethod
    def stream(cls, config: DenseformerConfig) -> Stream:
        return OutputsStream(config.num_hidden_layers)

    @classmethod
    def connection(
        cls, config: DenseformerConfig, layer_idx: int, sub_layer: SubLayer
    ) -> Connection:
        return MixAfterLayer(config, layer_idx + 1) if sub_layer == "mlp" else Connection()

    @classmethod
    def extra_parameters(cls, config: DenseformerConfig) -> int:
        """Return the number of sources of all sums."""
        depths = range(1, config.num_hidden_layers + 1)
        return sum(len(source_depths(config, depth)) for depth in depths)

    @classmethod
    def extra_flops(cls, config: DenseformerConfig) -> int:
        """Return 2 D for each weight, which multiplies the D numbers of a state."""
        return 2 * config.hidden_size * cls.extra_parameters(config)


declare("denseformer", DenseformerConfig, Denseformer)
