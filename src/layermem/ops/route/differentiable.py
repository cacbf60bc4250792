"""The gradients of a route in operations that can themselves be differentiated.

They are what the backward of a route returns under ``create_graph=True``.

Letters: B batch, T tokens, R heads (index g), M output heads (index h), E head width, S slots.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from layermem.ops.route.naive import Slot


def route_gradients(
    slots: Sequence[Slot], weight: Tensor, d_key: Tensor, d_value: Tensor
) -> tuple[Tensor, list[Slot]]:
    """Return the gradients of the weight and of each slot, from those of the route's result.

    ``torch.autograd.grad`` of the route with respect to its slots would not do: it would go on from
    one slot to the earlier ones that it depends on through the layers between them.
    """
    d_slots: list[Slot] = []
    d_columns = []
    columns = weight.unflatten(1, (len(slots), slots[0][0].shape[1])).unbind(1)
    for (key, value), block in zip(slots, columns, strict=True):
        d_columns.append(
            _contract("bhte,bgte->hg", d_key, key) + _contract("bhte,bgte->hg", d_value, value)
        )
        d_slots.append(
            (
                _contract("hg,bhte->bgte", block, d_key).to(key.dtype),
                _contract("hg,bhte->bgte", block, d_value).to(value.dtype),
            )
        )
    return torch.cat(d_columns, dim=1).to(weight.dtype), d_slots


def _contract(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Compute an einsum in float32 at least, also under autocast."""
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return torch.einsum(equation, a.to(wide), b.to(wide))
