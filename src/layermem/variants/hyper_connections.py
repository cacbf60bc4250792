"""Hyper-Connections: a residual stream of n states, and learned weights to read, mix and write it.

At a sub-layer F the streams H in R^{n x D} become

    N = RMSNorm(H)                                   each stream by itself, one learned gain
    A = S_a + s_a tanh(N W_a)    in R^{n x (1 + n)}  the read weights, then the mixing matrix
    B = S_b + s_b tanh(N w_b)    in R^n              the write weights
    [h; H'] = A^T H              H <- H' + B (x) F(norm(h))

The streams begin as n copies of the embedding, and the final norm reads their mean.
``coefficients="static"`` has S_a and S_b alone. Initial weights, at connection k, which counts
attention and mlp of all layers from 0:

    parameter          in the code                        initial value
    S_a^T              weights.static, rows 0 to n        e_{k mod n}, then the identity
    S_b                weights.static, the last row       1
    s_a, s_b           weights.scale                      0.01
    W_a^T and w_b^T    projection.weight [1+n+1, D]       0
    gain of the norm   projection.gain [D]                1

So a new model computes what the plain decoder does, exactly: all streams are the plain residual.

Source: arXiv 2409.19606. Where this differs from the paper, and where the paper leaves a choice:

* the streams are reduced by their mean, not their sum, which the final norm scales to the same up
  to its eps; with the sum a new model would not be exactly plain;
* the norm of N is the decoder's RMSNorm;
* the paper scales the initial deviation of the sub-layers' last projections by a power of sqrt(n),
  and does not say which way; here it stays that of the plain decoder;
* static weights have no weight decay and projections have, as in the paper; gain and scales have
  none, as all vectors here.

Letters: D width, N tokens, n streams.
"""

from typing import Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import Connection, ParameterOverride, Stream, SubLayer, Variant
from layermem.models.streams import (
    CopiesStream,
    NormedProjection,
    StreamsConnection,
    StreamWeights,
)
from layermem_base.number_ranges import at_least, number


@strict
class HyperConnectionsConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the streams."""

    streams: int = number(4, at_least(1))
    """Number n of residual streams."""
    coefficients: Literal["dynamic", "static"] = "dynamic"
    """Whether the weights depend on the token ("dynamic") or are parameters alone ("static")."""


@final
class HyperWeights(StreamWeights):
    """The weights of connection k; see the table above. Static ones have no ``scale``."""

    def __init__(self, config: HyperConnectionsConfig, connection: int) -> None:
        super().__init__(config.streams)
        self.connection = connection
        self.static = nn.Parameter(torch.empty(1 + self.streams + 1, self.streams))
        is_dynamic = config.coefficients == "dynamic"
        self.scale = nn.Parameter(torch.empty(2)) if is_dynamic else None

    def reset_parameters(self) -> None:
        """Read one stream, mix none, write to all."""
        identity = torch.eye(self.streams, device="cpu")
        first = identity[self.connection % self.streams]
        rows = torch.cat((first[None], identity, torch.ones_like(first)[None]))
        initialization.copy_(self.static, rows)
        if self.scale is not None:
            initialization.constant_(self.scale, 0.01)

    def forward(self, projected: Tensor | None) -> Tensor:
        """Return the weights from the projections [N, n, 1 + n + 1] of the streams, if any."""
        if projected is None or self.scale is None:
            return self.static.clone()
        mix_scale, write_scale = self.scale.split(1)
        scale = torch.cat((mix_scale.expand(self.streams + 1), write_scale))
        return torch.addcmul(self.static.mT, projected.tanh(), scale.to(projected.dtype)).mT


@final
class HyperConnections(Variant[HyperConnectionsConfig]):
    """Differences from the plain decoder:

    * stream: n residual streams, which begin as copies and end as their mean;
    * connections: learned weights read, mix and write the streams;
    * optimiser: the static weights have no weight decay.
    """

    source = "2409.19606"
    overrides = (
        ParameterOverride(module=HyperWeights, weight_decay=0.0),
        ParameterOverride(module=NormedProjection),
    )

    @classmethod
    def stream(cls, config: HyperConnectionsConfig) -> Stream:
        return CopiesStream(config.streams)

    @classmethod
    def connection(
        cls, config: HyperConnectionsConfig, layer_idx: int, sub_layer: SubLayer
    ) -> Connection:
        n, width, eps = config.streams, config.hidden_size, config.rms_norm_eps
        weights = HyperWeights(config, 2 * layer_idx + (sub_layer == "mlp"))
        if config.coefficients == "static":
            return StreamsConnection(sub_layer, weights)
        projection = NormedProjection(n, width, n + 2, by_stream=True, eps=eps)
        return StreamsConnection(sub_layer, weights, projection)

    @classmethod
    def extra_parameters(cls, config: HyperConnectionsConfig) -> int:
        """Return those of both connections of each layer."""
        n, width = config.streams, config.hidden_size
        static = n * (n + 1) + n
        dynamic = (n + 2) * width + width + 2 if config.coefficients == "dynamic" else 0
        return 2 * config.num_hidden_layers * (static + dynamic)

    @classmethod
    def extra_flops(cls, config: HyperConnectionsConfig) -> int:
        """Return those of the read and the mixing, n (n + 1) D multiply-adds, and the projection,
        n (n + 2) D, of both connections of each layer."""
        n = config.streams
        products = n + 1 + (n + 2 if config.coefficients == "dynamic" else 0)
        return 2 * config.num_hidden_layers * 2 * n * products * config.hidden_size


declare("hyper_connections", HyperConnectionsConfig, HyperConnections)
