"""A residual stream of several states of one width, which connections mix, read and write.

The state is (mean of the streams, streams [B, T, n, D]). Every stream begins as a copy of the
embedding, and the output is their mean. At a sub-layer with weights w (``StreamWeights``), which
depend on the streams or not:

    x   = norm(sum_j w[0, j] H_j)                          the input of the sub-layer
    H_i = sum_j w[1 + i, j] H_j + w[1 + i, n] y            the next streams, y its output

Letters: B batch, T tokens, n streams, D width.
It does not know: how weights are computed.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from layermem.models.seams import Connection, DepthWeights, Norm, State, Stream
from layermem.ops.streams import read, write


class StreamWeights(DepthWeights):
    """The weights of one sub-layer, from streams [B, T, n, D]: [n + 1, n + 1], or one a token."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        names = tuple(f"stream {j}" for j in range(streams))
        self.sources, self.readers = (*names, "output"), ("input", *names)

    @property
    def streams(self) -> int:
        """Number of streams n."""
        return len(self.sources) - 1


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

    def __init__(self, weights: StreamWeights) -> None:
        super().__init__()
        self.weights = weights

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        _, streams = state
        weights = self.weights(streams)
        flat, by_token = streams.flatten(0, 1), weights.reshape(-1, *weights.shape[-2:])
        x = without_autocast(read, flat, by_token)
        return norm(x.view(*streams.shape[:2], -1)), (streams, by_token)

    def write(self, carry: Any, y: Tensor) -> State:
        streams, weights = carry
        flat = without_autocast(write, streams.flatten(0, 1), y.flatten(0, 1), weights)
        streams = flat.view(streams.shape)
        return streams.mean(-2), streams


def without_autocast(function: Callable[..., Tensor], streams: Tensor, *tensors: Tensor) -> Tensor:
    """Call a function in the dtype of the streams: autocast would round the residual."""
    with torch.autocast(streams.device.type, enabled=False):
        return function(streams, *(tensor.to(streams.dtype) for tensor in tensors))
