"""What groups of routers' weights are worth: a model without some of them, as it is trained.

A group is what all routers read of keys, of values, or of both, from the first layer or from the
other earlier layers. Its weights are 0 for the time of a measurement, and the rest is unchanged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from layermem.models.lime_router import LimeRouter
from layermem.models.memories import unadapted_memories

_FIRST, _OTHERS = "first layer", "other earlier layers"


def weight_groups(model: Any) -> tuple[str, ...]:
    """Return the groups of routers' weights, such as "keys of the first layer"; empty: no routers.

    A router whose weights are computed in its forward is refused: to set them to 0 is no use.
    """
    groups: dict[str, None] = {}
    for router in _routers(model):
        for reads in router.weight_names:
            groups |= dict.fromkeys(
                f"{reads} of the {place}" for place in _by_place(router, router.weight)
            )
    return tuple(sorted(groups, key=lambda group: (group.split(" of ")[0], _FIRST not in group)))


@contextmanager
def without(model: Any, group: str) -> Iterator[None]:
    """Set the weights of a group to 0 within the block."""
    chosen = [
        columns
        for router in _routers(model)
        for reads, weight in router.named_weights().items()
        for place, columns in _by_place(router, weight).items()
        if f"{reads} of the {place}" == group
    ]
    if not chosen:
        raise ValueError(f"{type(model).__name__} has no weights for {group!r}")
    kept = [columns.detach().clone() for columns in chosen]
    with torch.no_grad():
        for columns in chosen:
            columns.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            for columns, weights in zip(chosen, kept, strict=True):
                columns.copy_(weights)


def _routers(model: Any) -> list[LimeRouter]:
    routers = [each for each in unadapted_memories(model) if isinstance(each, LimeRouter)]
    for router in routers:
        if is_parametrized(router):
            raise ValueError(
                f"the weights of the router of layer {router.layer} are computed at each look, so "
                "that groups of them cannot be left out; remove its parametrization first"
            )
    return routers


def _by_place(router: LimeRouter, weight: Tensor) -> dict[str, Tensor]:
    """Return views of the columns of a weight for earlier layers, by where they read from."""
    by_source = weight.detach().unflatten(1, (len(router.sources), router.columns))
    earlier = len(router.sources) - (router.sources[-1] == router.layer)
    starts = 1 if router.sources[0] == 0 and earlier else 0
    places = {_FIRST: by_source[:, :starts], _OTHERS: by_source[:, starts:earlier]}
    return {place: columns for place, columns in places.items() if columns.numel()}
