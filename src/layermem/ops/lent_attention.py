"""Attention of one token to sums of what several layers hold, which are never formed.

A layer that mixes attends to keys sum_s w_s K_s and values sum_s u_s V_s of all tokens so far. To
form them reads all K_s and V_s, writes the sums and reads these: at every new token. Weights and
sums can be exchanged instead:

    q . (sum_s w_s K_s) = sum_s (w_s q) . K_s        p (sum_s u_s V_s) = sum_s u_s (p V_s)

which reads each K_s and V_s once. So do heads of which each reads a head of some layer: one
attention for each head, in place of a copy of all.

Letters: B batch, H query heads, G key-value heads, S sources, T tokens so far, E head width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from layermem.ops.route import Slot

# Multiply-adds in the time in which a number of a source or of the sum moves through memory; chosen
# so that what is faster in benchmarks/lent_attention.py is taken.
_MULTIPLY_ADDS_PER_NUMBER = 11


def exchange_pays(query_heads: int, heads: int, columns: int, sources: int) -> bool:
    """Return whether one token attends faster to a sum that is not formed.

    Formed, each of the ``heads`` of the sum takes ``columns`` (heads of a source that it reads)
    multiply-adds for each source and channel, and all sources and the sum are moved through memory.
    Exchanged, each of ``query_heads`` takes as many, and the sources alone are read.
    """
    more_products = (query_heads / heads - 1) * columns * sources
    return more_products < _MULTIPLY_ADDS_PER_NUMBER * (sources + 2)


def attend_to_sum(
    queries: Sequence[Tensor],
    slots: Sequence[Slot],
    mask: Tensor | None,
    *,
    over_heads: bool = False,
) -> list[Tensor]:
    """Return what one token's weights give of the values of each source, [B, G, X, E] each.

    ``queries`` [B, G, X, E], one for each source, are multiplied by the weights of its keys and
    scaled; X are the query heads that read a head of the source. ``over_heads``: they read all
    heads of it, and scores are summed over these (X = H). ``mask`` [B or 1, 1, 1, T] says which
    tokens may be read, or is added to scores; None: all may. Of a row that may read none the result
    is zero, as torch's attention has it.
    """
    scores: Tensor | None = None
    for query, (key, _) in zip(queries, slots, strict=True):
        of_source = query @ key.transpose(-1, -2)
        if over_heads:
            of_source = of_source.sum(1, keepdim=True)
        scores = of_source if scores is None else scores.add_(of_source)
    if scores is None:
        raise ValueError("attention to a sum of no source; give one at least")
    if mask is None:
        weights = scores.softmax(-1)
    else:
        is_bool = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask
        reads_none = scores.amax(-1, keepdim=True) == -torch.inf
        weights = scores.softmax(-1).masked_fill(reads_none, 0)
    return [weights @ value for _, value in slots]


def attend_to_routed(
    query: Tensor,
    slots: Sequence[Slot],
    weights: Sequence[Tensor],
    columns: int,
    mask: Tensor | None,
    scaling: float,
) -> Tensor:
    """Return attention [B, H, 1, E] of one token to routed keys and values.

    ``weights`` of keys and of values are [G, S G] (``columns`` G), or of as many numbers as a
    source has: [G, S] or [1, S] (``columns`` 1). ``mask`` as in ``attend_to_sum``.
    """
    heads, sources = slots[0][0].shape[1], len(slots)
    grouped = query.unflatten(1, (heads, -1)).squeeze(3) * scaling
    of_keys, of_values = (w.unflatten(1, (sources, columns)) for w in weights)
    if columns == 1:
        # Of each source a number for each head, or for all: [G or 1, 1, 1].
        scaled = [grouped * weight[..., None] for weight in of_keys.unbind(1)]
        outputs = attend_to_sum(scaled, slots, mask)
        of_sources = zip(of_values.unbind(1), outputs, strict=True)
        result = torch.stack([weight[..., None] * y for weight, y in of_sources]).sum(0)
    else:
        # r head of the sum, s source, g head of the source, q of the H / G that read r.
        by_source = torch.einsum("rsg,brqe->sbgrqe", of_keys, grouped).flatten(3, 4)
        outputs = attend_to_sum(by_source.unbind(), slots, mask, over_heads=True)
        by_head = torch.stack(outputs).unflatten(3, (heads, -1))
        result = torch.einsum("rsg,sbgrqe->brqe", of_values, by_head)
    return result.flatten(1, 2).unsqueeze(2)


def attend_by_head(
    query: Tensor, heads: Sequence[Slot], mask: Tensor | None, scaling: float
) -> Tensor:
    """Return attention [B, H, 1, E] of one token, whose query heads read ``heads`` in their order.

    ``heads`` are the key and value [B, T, E] that each H / G of the query heads [B, H, 1, E] read,
    views of what is held. ``mask`` as in ``attend_to_sum``.
    """
    by_head = query.unflatten(1, (len(heads), -1)).unbind(1)
    outputs = []
    for own, (key, value) in zip(by_head, heads, strict=True):
        shape = (-1, own.shape[1], -1, -1)
        outputs.append(
            F.scaled_dot_product_attention(
                own,
                key.unsqueeze(1).expand(shape),
                value.unsqueeze(1).expand(shape),
                attn_mask=mask,
                scale=scaling,
            )
        )
    return torch.cat(outputs, 1)
