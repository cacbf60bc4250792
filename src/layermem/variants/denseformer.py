"""DenseFormer: after each layer, a learned weighted sum of the embedding and all layers' outputs.

With depths counted from 1, X_0 the embedding and X_i the output of layer i on Y_{i-1}:

    Y_0 = X_0
    Y_i = sum over j <= i of a_ij X_j

The final norm reads Y_L. Initial weights: a_ii = 1, all others 0.

Source: arXiv 2402.02622, and epfml/DenseFormer (c99a623). Deviations: there is a sum after every
layer, of all states (dilation and period of the paper are 1); the weights have no weight decay
(theirs decays them, towards 0 and not towards 1).
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


@strict
class DenseformerConfig(DecoderConfig):
    """The fields of a LLaMA."""


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

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.sources = ("embedding", *(f"layer {j}" for j in range(depth)))
        self.weight = nn.Parameter(torch.empty(1, depth + 1))

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
        self.room, self.weights = config.num_hidden_layers + 1, ConstantDepthWeights(depth)

    def write(self, carry: Any, y: Tensor) -> State:
        x = carry[0] + y
        history = append(carry[1:], x, self.room, apart=True)
        mixed, history = mix(history, self.weights(), x.dtype)
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
        return sum(range(2, config.num_hidden_layers + 2))

    @classmethod
    def extra_flops(cls, config: DenseformerConfig) -> int:
        """Return 2 D for each weight, which multiplies the D numbers of a state."""
        return 2 * config.hidden_size * cls.extra_parameters(config)


declare("denseformer", DenseformerConfig, Denseformer)
