"""What of a router's weight is small: the slots, or the entries, it can do without.

Letters: S slots, R heads.
It does not know: routers, layers, models, files.
"""

from typing import Literal

import torch
from torch import Tensor

By = Literal["layer", "entry"]


def prune(weight: Tensor, keep: float | int, by: By) -> tuple[Tensor, Tensor]:
    """Set what is small in ``weight`` [R, S * R] to zero; return it and a mask of slots to read.

    ``keep`` is a share of the absolute weight, met by the fewest and largest, or, as an int, a
    number of slots or entries. The last slot is always read: ``by="layer"`` leaves it as it is.
    """
    heads = weight.shape[0]
    # [target head, slot, source head]
    parts = weight.detach().clone().unflatten(1, (-1, heads))
    size = parts.abs().double()
    if by == "entry":
        parts[~_largest(size.flatten(), keep).view_as(parts)] = 0
        read = (parts != 0).any(0).any(-1)
        read[-1] = True
    else:
        size = size.sum((0, 2))
        rank = size.clone()
        rank[-1] = torch.inf
        read = _largest(size, keep, rank)
        read[-1] = True
        parts[:, ~read] = 0
    return parts.flatten(1), read


def check(keep: float | int, by: str) -> None:
    """Raise unless these say what to prune."""
    if by not in ("layer", "entry"):
        raise ValueError(f'by must be "layer" or "entry", got {by!r}')
    number = isinstance(keep, int) and not isinstance(keep, bool) and keep >= 1
    if not number and not (isinstance(keep, float) and 0 < keep <= 1):
        raise ValueError(
            "keep must be a share of the weight in (0, 1], as a float, or a number to keep of at "
            f"least 1, as an int; got {keep!r}"
        )


def _largest(sizes: Tensor, keep: float | int, rank: Tensor | None = None) -> Tensor:
    """Mark the first by ``rank`` (or size): as many as hold a share of the sum, or a number."""
    order = (sizes if rank is None else rank).argsort(descending=True, stable=True)
    if isinstance(keep, int):
        chosen = order[:keep]
    else:
        so_far = sizes[order].cumsum(0)
        # One is needed as long as those before it do not suffice.
        before = torch.cat((so_far.new_zeros(1), so_far[:-1]))
        chosen = order[before < keep * so_far[-1]]
    return torch.zeros_like(sizes, dtype=torch.bool).index_fill(0, chosen, True)
