"""Gated residual: streams of which a sub-layer reads every channel through a gate of the token.

At a sub-layer F the streams H in R^{n x D} become, with r the rank of the gates and c the gains:

    S = c * norm(H)             each stream by itself; norm is that of the sub-layer
    G = sigmoid(W_up silu(W_down vec S / n))      in R^{n x D}
    B = 2 sigmoid(W_write vec S / n)              in R^n
    H <- H + B (x) F(mean of the n rows of G * S)

The streams begin as n copies of the embedding, and the final norm reads their mean. Initial values,
at connection k, which counts attention and mlp of all layers from 0: W_down is N(0, 0.02), W_up and
W_write are 0, and c is 3 for stream k mod n, 1 for stream k + 1 mod n, else 2. So a new model
computes what the plain decoder does, exactly: gates are 1/2 and writes 1. With equal gains the
streams would get the same gradients and never separate.

Source: Qwen4-Exp in transformers (``qwen4_exp``), whose c is 1 with random gates, and whose head
reads the streams through gates too, without a norm after them.
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
    Norm,
    ParameterOverride,
    State,
    Stream,
    SubLayer,
    Variant,
    draw,
)
from layermem.models.streams import CopiesStream
from layermem_base.number_ranges import at_least, number


@strict
class GatedResidualConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the streams."""

    streams: int = number(4, at_least(2))
    """Number n of residual streams."""
    gate_rank: int | None = number(None, at_least(1))
    """Rank r of the gates with which sub-layers read; None: an eighth of the width."""

    @property
    def rank(self) -> int:
        """The rank r in use."""
        return self.gate_rank or max(1, self.hidden_size // 8)


@final
class Gates(nn.Module):
    """c and the matrices of connection k; see above."""

    def __init__(self, config: GatedResidualConfig, connection: int) -> None:
        super().__init__()
        self.streams, self.connection = config.streams, connection
        flat, rank = config.streams * config.hidden_size, config.rank
        self.gain = nn.Parameter(torch.empty(flat))
        self.down = nn.Parameter(torch.empty(rank, flat))
        self.up = nn.Parameter(torch.empty(flat, rank))
        self.write = nn.Parameter(torch.empty(config.streams, flat))

    def forward(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is read [B, T, D] of normed streams [B, T, n, D], and the B [B, T, n]."""
        n, linear = self.streams, nn.functional.linear
        streams = normed.flatten(-2) * self.gain
        hidden = nn.functional.silu(linear(streams, self.down) / n)
        gated = streams * linear(hidden, self.up).sigmoid()
        return gated.view_as(normed).mean(-2), 2 * (linear(streams, self.write) / n).sigmoid()

    def reset_parameters(self) -> None:
        gains, n = torch.full((self.streams, 1), 2.0, device="cpu"), self.streams
        gains[self.connection % n], gains[(self.connection + 1) % n] = 3, 1
        initialization.copy_(self.gain, gains.expand(-1, len(self.gain) // n).flatten())
        initialization.copy_(self.down, draw(self.down, 0.02, f"gated_residual {self.connection}"))
        initialization.zeros_(self.up)
        initialization.zeros_(self.write)


@final
class GatedConnection(Connection):
    """Read through gates, and write to every stream."""

    def __init__(self, config: GatedResidualConfig, layer_idx: int, sub_layer: SubLayer) -> None:
        super().__init__()
        self.sub_layer = sub_layer
        self.gates = Gates(config, 2 * layer_idx + (sub_layer == "mlp"))

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        x, weights = self.gates(norm(state[1]))
        return x, (*state, weights)

    def write(self, carry: Any, y: Tensor) -> State:
        mean, streams, weights = carry
        streams = streams + weights[..., None].to(streams.dtype) * y[..., None, :].to(streams.dtype)
        return (streams.mean(-2) if self.sub_layer == "mlp" else mean), streams


@final
class GatedResidual(Variant[GatedResidualConfig]):
    """Differences from the plain decoder:

    * stream: n residual streams, which begin as copies and end as their mean;
    * connections: read every channel of every stream through a gate, and write to all streams.
    """

    released = ("Qwen4-Exp",)
    overrides = (ParameterOverride(module=Gates),)

    @classmethod
    def stream(cls, config: GatedResidualConfig) -> Stream:
        return CopiesStream(config.streams)

    @classmethod
    def connection(
        cls, config: GatedResidualConfig, layer_idx: int, sub_layer: SubLayer
    ) -> Connection:
        return GatedConnection(config, layer_idx, sub_layer)

    @classmethod
    def extra_parameters(cls, config: GatedResidualConfig) -> int:
        """Return those of the matrices and n D gains at each connection."""
        gains = 2 * config.num_hidden_layers * config.streams * config.hidden_size
        return cls.extra_flops(config) // 2 + gains

    @classmethod
    def extra_flops(cls, config: GatedResidualConfig) -> int:
        """Return 2 for each weight of the matrices, (2 r + n) n D at a connection."""
        flat = config.streams * config.hidden_size
        return 2 * 2 * config.num_hidden_layers * (2 * config.rank + config.streams) * flat


declare("gated_residual", GatedResidualConfig, GatedResidual)
