"""A residual stream of several states of one width, which connections mix, read and write.

The state is (mean of the streams, streams [B, T, n, D]). Every stream begins as a copy of the
embedding, and the output is their mean. At a sub-layer F with weights w (``StreamWeights``):

    H'_i = sum_j w[1 + i, j] H_j + w[1 + n, i] F(norm(sum_j w[0, j] H_j))

Row 0 of w reads, rows 1 to n mix, and row n + 1 writes. A connection keeps its streams and its
sub-layer's output for the backward, n + 1 tensors as large as the residual beside what the plain
decoder keeps: the gradients of the weights need both.

Letters: B batch, T tokens, N = B T, n streams, D width, K outputs of a projection.
"""

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers import initialization

from layermem.models.seams import Connection, DepthWeights, Norm, State, Stream, SubLayer
from layermem.ops import streams as ops
from layermem.ops.gradients import autocast_disabled


class NormedProjection(nn.Module):
    """Outputs of the normed streams [N, n, D] of all N tokens, in float32 at least.

    ``by_stream``: each stream is normed and projected by itself, to [N, n, K], and has a learned
    gain. Otherwise all streams of a token are one vector, without a gain, projected to [N, K].
    """

    def __init__(
        self, streams: int, width: int, outputs: int, *, by_stream: bool, eps: float
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(outputs, width if by_stream else streams * width))
        self.gain = nn.Parameter(torch.empty(width)) if by_stream else None

    def reset_parameters(self) -> None:
        """Start at weight 0 and gain 1."""
        initialization.zeros_(self.weight)
        if self.gain is not None:
            initialization.ones_(self.gain)

    def forward(self, streams: Tensor) -> Tensor:
        matrix = self.weight if self.gain is None else self.weight * self.gain
        wide = torch.promote_types(streams.dtype, torch.float32)
        with autocast_disabled(streams):
            return ops.project(streams, matrix.to(wide), self.eps)


class StreamWeights(nn.Module, ABC):
    """The weights of one sub-layer: [n + 2, n], or [N, n + 2, n] if it has an input."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.streams = streams

    @abstractmethod
    def forward(self, projected: Tensor | None) -> Tensor:
        """Return the weights, from the projection of the streams if the connection has one."""


@final
class StreamMixture(DepthWeights):
    """The weights on the streams, as they are: those of the input and of each next stream."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.sources = tuple(f"stream {j}" for j in range(streams))
        self.readers = ("input", *self.sources)

    def forward(self, weights: Tensor) -> Tensor:
        """Return weights [B, T, n + 1, n]."""
        return weights


@final
class CopiesStream(Stream):
    """Begin with n copies of the embedding, end with the mean of the streams."""

    shows_reduction = True

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.streams = streams

    def begin(self, embeds: Tensor) -> State:
        return embeds, embeds[..., None, :].expand(*embeds.shape[:-1], self.streams, -1)


@final
class StreamsConnection(Connection):
    """Read a mixture of the streams; write the output to every stream of another mixture.

    The mean of the streams is made anew after the mlp only, since nothing reads it in between.
    """

    def __init__(
        self,
        sub_layer: SubLayer,
        weights: StreamWeights,
        projection: NormedProjection | None = None,
    ) -> None:
        super().__init__()
        self.sub_layer = sub_layer
        self.projection, self.weights = projection, weights
        self.mixture = StreamMixture(weights.streams)

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        batch, tokens, n, _ = state[1].shape
        streams = state[1].flatten(0, 1)
        projected = self.projection(streams) if self.projection is not None else None
        weights = self.weights(projected).to(streams.dtype).expand(batch * tokens, n + 2, n)
        mixture, writing = weights.split((n + 1, 1), dim=-2)
        mixture = self.mixture(mixture.unflatten(0, (batch, tokens))).flatten(0, 1)
        reading, mixing = mixture.split((1, n), dim=-2)
        # Autocast would round the residual.
        with autocast_disabled(streams):
            x = ops.read(streams, reading)
        return norm(x.view(batch, tokens, -1)), (state[0], streams, mixing, writing.mT)

    def write(self, carry: Any, y: Tensor) -> State:
        mean, streams, mixing, weights = carry
        flat = y.flatten(0, 1).to(streams.dtype)
        with autocast_disabled(streams):
            streams = ops.write(streams, flat, mixing, weights)
        streams = streams.view(*y.shape[:2], *streams.shape[1:])
        return (streams.mean(-2) if self.sub_layer == "mlp" else mean), streams
