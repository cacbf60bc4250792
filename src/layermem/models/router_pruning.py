"""Routers without small weights: the parts of ``RouterMethods.prune_routers``."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layermem.models.static_router import StaticRouter, learned_routers
from layermem.ops.pruning import By, prune


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedRouter:
    """What pruning removed from the router of a layer: source layers, other weights, their share.

    ``zeroed`` counts the weights set to zero in the layers kept.
    """

    layer: int
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    zeroed: int
    dropped_share: float

    def __str__(self) -> str:
        dropped = ", ".join(map(str, self.dropped)) or "none"
        return (
            f"layer {self.layer:3d}  reads {len(self.kept):3d}, dropped layers: {dropped}; "
            f"{self.zeroed} more weights zeroed; {self.dropped_share:.2%} of the weight removed"
        )


def prunable_routers(decoder: Any) -> dict[int, StaticRouter]:
    """Return the learned routers by layer; raise unless each is whole, plain and finite."""
    routers = learned_routers(decoder)
    for router in routers:
        where = f"the router of layer {router.layer}"
        if decoder.layers[router.layer].self_attn.memory is not router:
            raise ValueError(
                f"{where} is wrapped by an adapter (of PEFT, with "
                'modules_to_save=["memory"]), which would keep the old one; merge it into the '
                "model first (merge_and_unload) and prune the model that this returns"
            )
        if router.is_shared:
            raise ValueError(
                f"{where} is shared by the processes of tensor parallelism; load the model without "
                "a tp_plan, prune it and save it"
            )
        weights = router.named_weights().values()
        if type(router).__name__.startswith("Parametrized") or any(w.is_meta for w in weights):
            raise ValueError(
                f"{where} has weights that are offloaded or parametrized; load the model whole "
                "(without device_map), remove parametrizations, and prune it then"
            )
        if not all(weight.isfinite().all() for weight in weights):
            raise ValueError(f"{where} has weights that are not finite; load an earlier checkpoint")
    return {router.layer: router for router in routers}


def pruned_router(
    router: StaticRouter, keep: float | int, by: By
) -> tuple[StaticRouter, PrunedRouter]:
    """Return a router without its small weights, and the row about what was removed."""
    # Keys and values keep the same layers, because slots hold both.
    old = torch.cat([weight.detach() for weight in router.named_weights().values()])
    new, read = prune(old, keep, by, router.columns)
    columns = read.repeat_interleave(router.columns)
    old_sum, new_sum = (float(w.abs().sum(dtype=torch.float64)) for w in (old, new))

    kept = tuple(j for j, is_read in zip(router.sources, read.tolist(), strict=True) if is_read)
    smaller = router.with_sources(kept).train(router.training)
    kept_part = new[:, columns].contiguous()
    for name, part in zip(router.weight_names.values(), kept_part.split(router.rows), strict=True):
        needs_gradient = getattr(router, name).requires_grad
        setattr(smaller, name, nn.Parameter(part.clone(), requires_grad=needs_gradient))
    return smaller, PrunedRouter(
        layer=router.layer,
        kept=kept,
        dropped=tuple(sorted({*router.sources} - {*kept})),
        zeroed=int(((new == 0) & (old != 0))[:, columns].sum()),
        dropped_share=1 - new_sum / old_sum if old_sum else 0.0,
    )
