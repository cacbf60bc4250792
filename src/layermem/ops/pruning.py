"""Pruning of a router's weight: the slots, or the single entries, that are small become zero.

Letters: S slots, R heads.
"""

from typing import Literal

import torch
from torch import Tensor

By = Literal["layer", "entry"]


def prune(
    weight: Tensor, keep: float | int, by: By, heads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Set what is small in ``weight`` [R, S * R] to zero; return it and a mask of slots to read.

    ``keep`` is a share of the absolute weight, of which the fewest and largest slots or entries are
    kept, or, as an int, their number. The last slot, a layer's own, is always read, and
    ``by="layer"`` never changes it. A weight with another number of rows than R, such as one of
    keys over one of values, is pruned as a whole if ``heads`` is R.

    An example with R = 1 head and weight [0.1, 0.6, 0.3]: ``keep=0.85, by="layer"`` keeps slots 1
    and 2 (0.9 of 1.0) and returns [0, 0.6, 0.3] and [False, True, True].
    """
    heads = weight.shape[0] if heads is None else heads
    # [target head, slot, source head]
    parts = weight.detach().clone().unflatten(1, (-1, heads))
    size = parts.abs().double()
    of_slots = size.sum((0, 2))
    if by == "entry":
        parts[~_mark_largest(size.flatten(), keep).view_as(parts)] = 0
        read = (parts != 0).any(0).any(-1)
        read[-1] = True
    else:
        rank = of_slots.clone()
        rank[-1] = torch.inf
        read = _mark_largest(of_slots, keep, rank)
        read[-1] = True
        parts[:, ~read] = 0
    return parts.flatten(1), read


def check_options(keep: float | int, by: str) -> None:
    """Raise ``ValueError`` unless ``keep`` and ``by`` have the values that ``prune`` takes."""
    if by not in ("layer", "entry"):
        raise ValueError(f'by must be "layer" or "entry", got {by!r}')
    number = isinstance(keep, int) and not isinstance(keep, bool) and keep >= 1
    if not number and not (isinstance(keep, float) and 0 < keep <= 1):
        raise ValueError(
            "keep must be a share of the weight in (0, 1], as a float, or the number to keep, as "
            f"an int of at least 1; got {keep!r}"
        )


def _mark_largest(sizes: Tensor, keep: float | int, rank: Tensor | None = None) -> Tensor:
    """Return a mask of the first by ``rank`` (or size): ``keep`` of them, or, if it is a share, as
    many as it takes for their sizes to sum to that share."""
    order = (sizes if rank is None else rank).argsort(descending=True, stable=True)
    if isinstance(keep, int):
        chosen = order[:keep]
    else:
        total = sizes[order].cumsum(0)
        # The next one is needed as long as the sum of those before it is below the share.
        before = torch.cat((total.new_zeros(1), total[:-1]))
        chosen = order[before < keep * total[-1]]
    return torch.zeros_like(sizes, dtype=torch.bool).index_fill(0, chosen, True)
