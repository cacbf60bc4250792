"""Scores and sums over depth at each token: attention in which a token sees itself in S layers.

Autograd saves the arguments alone: sources are added one after the other, and nothing as large as
all keys is made. Stacked sources with one product take 1.1 to 1.7 of this step.

Letters: B batch, G heads, T tokens, E head width, S sources.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def score(query: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Return the products [B, T, G, S] of a query with S keys, [B, G, T, E] each.

    They are computed in float32 at least.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    products = [(query.to(wide) * key.to(wide)).sum(-1) for key in keys]
    return torch.stack(products, dim=-1).transpose(1, 2)


def mix(weight: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return the sum [B, G, T, E] of S values by weights [B, T, G, S].

    It is computed in float32 at least and rounded to the values' dtype once.
    """
    dtype = values[0].dtype
    weight = weight.to(torch.promote_types(dtype, torch.float32))
    # S views [B, G, T, 1].
    columns = weight.transpose(1, 2)[..., None, :].unbind(-1)
    total = columns[0] * values[0]
    for column, value in zip(columns[1:], values[1:], strict=True):
        total = torch.addcmul(total, column, value.to(weight.dtype))
    return total.to(dtype)
