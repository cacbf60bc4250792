"""A residual stream of several states of one width, which connections mix, read and write.

The state is (mean of the streams, streams [B, T, n, D]). Every stream begins as a copy of the
embedding, and the output is their mean. At a sub-layer with weights w (``StreamWeights``), which
depend on the streams or not:

    x   = norm(sum_j w[0, j] H_j)                          the input of the sub-layer
    H_i = sum_j w[1 + i, j] H_j + w[1 + i, n] y            the next streams, y its output

Letters: B batch, T tokens, n streams, D width.
It does not know: how weights are computed.
"""

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor, nn

from layermem.models.seams import Connection, DepthWeights, Norm, State, Stream
from layermem.ops import streams as ops


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

    def forward(self, streams: Tensor) -> Tensor:
        matrix = self.weight if self.gain is None else self.weight * self.gain
        wide = torch.promote_types(streams.dtype, torch.float32)
        with torch.autocast(streams.device.type, enabled=False):
            return ops.project(streams, matrix.to(wide), self.eps)


class StreamWeights(DepthWeights):
    """The weights of one sub-layer: [n + 1, n + 1], or [B, T, n + 1, n + 1] if it has an input."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        names = tuple(f"stream {j}" for j in range(streams))
        self.sources, self.readers = (*names, "output"), ("input", *names)

    @property
    def streams(self) -> int:
        """Number of streams n."""
        return len(self.readers) - 1

    @abstractmethod
    def forward(self, projected: Tensor | None) -> Tensor:
        """Return the weights, from the projection of the streams if the connection has one."""


@final
class CopiesStream(Stream):
    """Begin with n copies of the embedding, end with the mean of the streams."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.streams = streams

    def begin(self, embeds: Tensor) -> State:
        return embeds, embeds[..., None, :].expand(*embeds.shape[:-1], self.streams, -1)

    def end(self, state: State) -> Tensor:
        return state[0]


@final
class StreamsConnection(Connection):
    """Read a mixture of the streams; write the output to every stream of another mixture."""

    def __init__(self, weights: StreamWeights, projection: NormedProjection | None = None) -> None:
        super().__init__()
        self.projection, self.weights = projection, weights

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        shape = state[1].shape
        streams, n = ops.hold(state[1].flatten(0, 1)), shape[-2]
        projected = None
        if self.projection is not None:
            projected = self.projection(streams)
            projected = projected.view(*shape[:2], *projected.shape[1:])
        weights = self.weights(projected).to(streams.dtype)
        by_token = weights.expand(*shape[:2], n + 1, n + 1).flatten(0, 1)
        left, right = by_token.split((n, 1), dim=-1)
        first, mixing = left.split((1, n), dim=-2)
        # Autocast would round the residual.
        with torch.autocast(streams.device.type, enabled=False):
            x = ops.read(streams, first).view(*shape[:2], -1)
        return norm(x), (streams, mixing, right[:, 1:])

    def write(self, carry: Any, y: Tensor) -> State:
        streams, mixing, weights = carry
        flat = y.flatten(0, 1).to(streams.dtype)
        with torch.autocast(streams.device.type, enabled=False):
            streams = ops.write(streams, flat, mixing, weights)
        streams = streams.view(*y.shape[:2], *streams.shape[1:])
        return streams.mean(-2), streams
