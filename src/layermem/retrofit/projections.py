"""Keys and values in the outputs of a host's projections: taken out as heads, and put back.

A *pair* is what is routed in one product, two tensors [B, R, T, E'] of one shape:

    a fused projection     (key, value), E' = E
    a projection of one    its two halves along the width, E' = E / 2; keys and values are routed
                           by the same weights, but keys before values are known
    an odd width           the whole twice, E' = E

Letters: B batch, T tokens, H query heads, R key-value heads, E head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layermem.ops.route import Slot
from layermem.retrofit.hosts import Host, Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionShape:
    """What the output of a projection is made of."""

    heads: int
    """Key-value heads."""
    head_dim: int
    """Width of a head."""
    layout: Layout | None = None
    """Layout of a fused projection, None for one of keys alone or of values alone."""

    def take(self, output: Tensor) -> Slot:
        """Return the pair in the output [B, T, ...] of a projection."""
        if self.layout is None:
            return _halve(self._by_head(output))
        if self.layout == "heads":
            by_head = output.unflatten(-1, (self.heads, -1, self.head_dim))
            return by_head[..., -2, :].transpose(1, 2), by_head[..., -1, :].transpose(1, 2)
        width = self.heads * self.head_dim
        return self._by_head(output[..., -2 * width : -width]), self._by_head(output[..., -width:])

    def put(self, output: Tensor, pair: Slot) -> Tensor:
        """Return the output of a projection with another pair in it."""
        first, second = (part.transpose(1, 2) for part in pair)
        if self.layout is None:
            odd = self.head_dim % 2
            return (first if odd else torch.cat((first, second), dim=-1)).flatten(2)
        if self.layout == "heads":
            by_head = output.unflatten(-1, (self.heads, -1, self.head_dim))
            routed = torch.stack((first, second), dim=-2)
            return torch.cat((by_head[..., :-2, :], routed), dim=-2).flatten(2)
        queries = output[..., : -2 * self.heads * self.head_dim]
        return torch.cat((queries, first.flatten(2), second.flatten(2)), dim=-1)

    def take_whole(self, output: Tensor) -> tuple[Tensor, ...]:
        """Return keys, values or both in the output of a projection as whole heads."""
        if self.layout is None:
            return (self._by_head(output),)
        return self.take(output)

    def put_whole(self, output: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Return the output of a projection with other heads in it."""
        return self.put(output, _halve(parts[0]) if self.layout is None else (parts[0], parts[1]))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)


def measure(projection: nn.Module, host: Host, head_dim: int, query_heads: int) -> ProjectionShape:
    """Return the shape of a projection's output, from its width."""
    width = output_width(projection)
    queries = query_heads * head_dim if host.fused else 0
    heads, rest = divmod((width - queries) // (2 if host.fused else 1), head_dim)
    if rest or heads < 1 or query_heads % heads:
        raise ValueError(
            f"a projection of width {width} does not hold whole heads of width {head_dim}"
            f"{f' beside {query_heads} heads of queries' if host.fused else ''}; give "
            "Host(head_dim=...)"
        )
    return ProjectionShape(
        heads=heads, head_dim=head_dim, layout=host.layout if host.fused else None
    )


def output_width(projection: nn.Module) -> int:
    """Return the number of features that a linear module returns."""
    # `nf` is that of transformers' Conv1D.
    for name in ("out_features", "nf"):
        width = getattr(projection, name, None)
        if isinstance(width, int):
            return width
    raise ValueError(
        f"the projection is a {type(projection).__name__}, which does not say its out_features; "
        "expected a linear module"
    )


def _halve(x: Tensor) -> Slot:
    if x.shape[-1] % 2:
        return x, x
    first, second = x.chunk(2, dim=-1)
    return first, second
