"""mHC: hyper-connections whose mixing keeps the sum over the streams, by Sinkhorn's iteration.

At a sub-layer F the streams H in R^{n x D} become, with x = RMSNorm(vec H) in R^{nD}

    [pre, post, res] logits = alpha (x phi) + b         n, n and n x n of them, an alpha for each
    pre  = sigmoid(.)       post = 2 sigmoid(.)         res = Sinkhorn(exp(.)), columns, then rows
    H <- res H + post (x) F(norm(pre H))

The streams begin as n copies of the embedding, and the final norm reads their mean. Coefficients
are computed in float32 at least. Initial weights, at connection k, which counts attention and mlp
of all layers from 0:

    parameter            in the code         initial value
    phi of pre, post     projection.weight   0
    phi of res           projection.weight   N(0, 0.02)
    alpha                weights.scale       0.01
    b of pre             weights.bias + c    c
    b of post            weights.bias        0: writes 1
    b of res             weights.bias        0 on the diagonal, else -8

where c is a constant such that connection k reads 3 / (n + 2) of stream k mod n and 1 / (n + 2) of
each other: 1/2 and 1/6 of four. It is no part of the parameter, whose dtype would round it.

A new model computes what the plain decoder does, exactly: streams are equal, reads and rows of res
sum to one. Equal reads would be a saddle: all streams would get the same gradients.

Source: arXiv 2512.24880, which gives no initial b and phi, and no readout. Where this differs:

* phi of res is random: where it is 0, alpha of res has no gradient for two steps;
* the first connection has no res, since rows that sum to one leave equal streams as they are, and
  the last has none, since columns that sum to one leave their mean: it would get no gradient;
* the norm of vec H has no gain, which would multiply the rows of phi.

``res="identity"`` leaves res out everywhere: these are Hy4's connections (``hy_v4`` in
transformers), as those with res are DeepSeek-V4's, but for a small constant that both add to
weights, their initial values, and a learned readout in place of the mean.

Letters: D width, N tokens, n streams.
"""

import math
from typing import Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import (
    Connection,
    ParameterOverride,
    Stream,
    SubLayer,
    Variant,
    draw,
)
from layermem.models.streams import (
    CopiesStream,
    NormedProjection,
    StreamsConnection,
    StreamWeights,
)
from layermem.ops.sinkhorn import sinkhorn
from layermem_base.number_ranges import at_least, number


@strict
class MhcConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the streams."""

    streams: int = number(4, at_least(2))
    """Number n of residual streams."""
    rounds: int = number(20, at_least(1))
    """Rounds of Sinkhorn's iteration; each divides columns, then rows, by their sums."""
    res: Literal["sinkhorn", "identity"] = "sinkhorn"
    """Mixing of the streams: learned ("sinkhorn") or none ("identity"), which has no rounds."""


def has_mixing(config: MhcConfig, connection: int) -> bool:
    """Return whether connection k has a residual matrix to learn."""
    return config.res == "sinkhorn" and 0 < connection < 2 * config.num_hidden_layers - 1


def count_outputs(config: MhcConfig, connection: int) -> int:
    """Return the number of coefficients of connection k."""
    n = config.streams
    return 2 * n + (n * n if has_mixing(config, connection) else 0)


@final
class MhcProjection(NormedProjection):
    """phi of connection k."""

    def __init__(self, config: MhcConfig, connection: int) -> None:
        n, width, eps = config.streams, config.hidden_size, config.rms_norm_eps
        super().__init__(n, width, count_outputs(config, connection), by_stream=False, eps=eps)
        self.connection, self.streams = connection, n

    def reset_parameters(self) -> None:
        initial = draw(self.weight, 0.02, f"mhc {self.connection}")
        initial[: 2 * self.streams] = 0
        initialization.copy_(self.weight, initial)


@final
class MhcWeights(StreamWeights):
    """The coefficients of connection k from its projection."""

    def __init__(self, config: MhcConfig, connection: int) -> None:
        super().__init__(config.streams)
        self.connection, self.rounds = connection, config.rounds
        self.mixes = has_mixing(config, connection)
        self.scale = nn.Parameter(torch.empty(3 if self.mixes else 2))
        self.bias = nn.Parameter(torch.empty(count_outputs(config, connection)))

    def reset_parameters(self) -> None:
        initialization.constant_(self.scale, 0.01)
        bias = torch.zeros(self.bias.shape, device="cpu", dtype=torch.float32)
        if self.mixes:
            off_diagonal = 1 - torch.eye(self.streams, device="cpu")
            bias[2 * self.streams :] = -8 * off_diagonal.flatten()
        initialization.copy_(self.bias, bias)

    def _read_logits(self, like: Tensor) -> Tensor:
        """Return the constant c [n] in the dtype and on the device of a tensor."""
        n, k = self.streams, self.connection % self.streams
        # sigmoid(log(3 / (n - 1))) = 3 / (n + 2), and sigmoid(-log(n + 1)) = 1 / (n + 2).
        first = like.new_full((1,), math.log(3 / (n - 1)))
        return nn.functional.pad(first, (k, n - 1 - k), value=-math.log(n + 1))

    def forward(self, projected: Tensor | None) -> Tensor:
        """Return [N, n + 2, n] from projections [N, 2 n + n^2], or [N, 2 n] without mixing."""
        assert projected is not None
        n = self.streams
        sizes = [n, n, n * n] if self.mixes else [n, n]
        alphas = [a.expand(k) for a, k in zip(self.scale.split(1), sizes, strict=True)]
        # In the dtype of the projection: parameters of half precision are not rounded again.
        alpha, bias = torch.cat(alphas).to(projected.dtype), self.bias.to(projected.dtype)
        bias = bias + nn.functional.pad(self._read_logits(bias), (0, len(bias) - n))
        pre, post, *res = (
            torch.addcmul(bias, projected, alpha)
            .unflatten(-1, (-1, n))
            .split([1, 1, n] if self.mixes else [1, 1], dim=-2)
        )
        identity = torch.eye(n, device=pre.device, dtype=pre.dtype).expand(pre.shape[0], n, n)
        mixing = sinkhorn(res[0], self.rounds) if self.mixes else identity
        return torch.cat((pre.sigmoid(), mixing, 2 * post.sigmoid()), dim=-2)


@final
class Mhc(Variant[MhcConfig]):
    """Differences from the plain decoder:

    * stream: n residual streams, which begin as copies and end as their mean;
    * connections: weights that depend on the token read, mix and write the streams;
    * optimiser: biases and scales have no weight decay.
    """

    source = "2512.24880"
    released = ("DeepSeek-V4", "GLM-5.3-Flash", "Hy4")
    overrides = (
        ParameterOverride(module=MhcWeights, weight_decay=0.0),
        ParameterOverride(module=MhcProjection),
    )

    @classmethod
    def stream(cls, config: MhcConfig) -> Stream:
        return CopiesStream(config.streams)

    @classmethod
    def connection(cls, config: MhcConfig, layer_idx: int, sub_layer: SubLayer) -> Connection:
        index = 2 * layer_idx + (sub_layer == "mlp")
        return StreamsConnection(sub_layer, MhcWeights(config, index), MhcProjection(config, index))

    @classmethod
    def extra_parameters(cls, config: MhcConfig) -> int:
        """Return, for each connection, a row of phi and a bias for each coefficient, and alpha."""
        connections = range(2 * config.num_hidden_layers)
        row = config.streams * config.hidden_size + 1
        return sum(count_outputs(config, k) * row + 2 + has_mixing(config, k) for k in connections)

    @classmethod
    def extra_flops(cls, config: MhcConfig) -> int:
        """Return those of phi and of the read and the mixing, n (n + 1) D multiply-adds."""
        connections = range(2 * config.num_hidden_layers)
        n = config.streams
        products = sum(count_outputs(config, k) + n + 1 for k in connections)
        return 2 * n * config.hidden_size * products


declare("mhc", MhcConfig, Mhc)
