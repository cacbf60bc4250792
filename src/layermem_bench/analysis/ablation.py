"""What groups of routers' weights are worth: a model without some of them, as it is trained.

A group is what all routers read of keys, of values, or of both, from the first layer or from the
other earlier layers. Its weights are 0 for the time of a measurement, and the rest is unchanged.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from layermem.models.lime_router import LimeRouter
from layermem.models.memories import unadapted_memories


def weight_groups(model: Any) -> tuple[str, ...]:
    """Return the groups of routers' weights, such as "keys of the first layer"; empty: no routers.

    A router whose weights are computed in its forward is refused: to set them to 0 is no use.
    """
    names = dict.fromkeys(name for name, _ in _columns(model))
    return tuple(sorted(names, key=lambda name: (name.split(" of ")[0], "first" not in name)))


@contextmanager
def without(model: Any, group: str) -> Iterator[None]:
    """Set the weights of a group to 0 within the block."""
    chosen = [columns for name, columns in _columns(model) if name == group]
    if not chosen:
        raise ValueError(f"{type(model).__name__} has no weights for {group!r}")
    kept = [columns.clone() for columns in chosen]
    for columns in chosen:
        columns.zero_()
    try:
        yield
    finally:
        for columns, weights in zip(chosen, kept, strict=True):
            columns.copy_(weights)


def _columns(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield views of the columns of all routers' weights for earlier layers, by their group."""
    for router in unadapted_memories(model):
        if not isinstance(router, LimeRouter):
            continue
        if is_parametrized(router):
            raise ValueError(
                f"the weights of the router of layer {router.layer} are computed at each look, so "
                "that groups of them cannot be left out; remove its parametrization first"
            )
        earlier = len(router.sources) - (router.sources[-1] == router.layer)
        starts = 1 if router.sources[0] == 0 and earlier else 0
        for reads, weight in router.named_weights().items():
            by_source = weight.detach().unflatten(1, (len(router.sources), router.columns))
            if starts:
                yield f"{reads} of the first layer", by_source[:, :starts]
            if earlier > starts:
                yield f"{reads} of the other earlier layers", by_source[:, starts:earlier]
