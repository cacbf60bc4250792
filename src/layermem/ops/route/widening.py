"""Routers that read some of the slots so far, as routers that read all of them: with zeros.

A buffer that layers share multiplies weights of all slots so far. A router that reads most of them
is faster there with columns of zeros than beside it with slots of its own.

An example with R = 1 head: layer 3 reads slots 0 and 3 by W_3 [1, 2], which becomes
[W_3[0], 0, 0, W_3[1]].

Letters: R heads.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

Sources = Sequence[Sequence[int]]


def share_read(sources: Sources) -> float:
    """Return the share of the slots so far that layers read: ``sources[l]`` at layer l, its own
    last."""
    read, so_far = sum(len(own) for own in sources), sum(own[-1] + 1 for own in sources)
    return read / so_far


def widen(weights: Sequence[Tensor | None], sources: Sources) -> list[Tensor | None]:
    """Return ``weights[l]``, which reads ``sources[l]``, as a weight [R, (l + 1) * R] of all slots.

    Gradients of the result are gradients of the weights, whose columns are copied.
    """
    wide = list(weights)
    narrow = {
        layer: weight
        for layer, (weight, own) in enumerate(zip(weights, sources, strict=True))
        if weight is not None and len(own) <= layer
    }
    if not narrow:
        return wide
    heads = next(iter(narrow.values())).shape[0]
    places, total = _places(tuple(tuple(sources[layer]) for layer in narrow), heads)
    # A copy of all weights at once: there are as many as layers, and each is small.
    flat = torch.cat([weight.flatten() for weight in narrow.values()])
    copied = flat.new_zeros(total).index_copy(0, places.to(flat.device), flat)
    parts = copied.split([heads * heads * (layer + 1) for layer in narrow])
    for layer, part in zip(narrow, parts, strict=True):
        wide[layer] = part.view(heads, -1)
    return wide


@lru_cache(maxsize=8)
# A tensor made in inference mode could be saved for no backward, and is kept.
@torch.inference_mode(False)
def _places(sources: tuple[tuple[int, ...], ...], heads: int) -> tuple[Tensor, int]:
    """Return where the entries of narrow weights are among those of wide ones, and their number."""
    parts, start = [], 0
    for own in sources:
        width = (own[-1] + 1) * heads
        columns = torch.arange(width, device="cpu").unflatten(0, (-1, heads))[list(own)].flatten()
        rows = start + width * torch.arange(heads, device="cpu")
        parts.append((rows[:, None] + columns).flatten())
        start += heads * width
    return torch.cat(parts), start
