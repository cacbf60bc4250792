"""Smaller routers: without small weights, or with the largest weight of each head alone.

The methods of models that do it are in ``routers``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedToHeads:
    """What the heads of a layer read since its router was pruned to one source for each.

    ``heads``: of each head the layer of keys, head, layer of values, head; ``dropped_share``: the
    share of the absolute weight that was removed.
    """

    layer: int
    heads: tuple[tuple[int, int, int, int], ...]
    dropped_share: float

    def __str__(self) -> str:
        read = "  ".join(f"{j}:{g}/{i}:{h}" for j, g, i, h in self.heads)
        return (
            f"layer {self.layer:3d}  reads {read}; {self.dropped_share:.2%} of the weight removed"
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
    # A layer that borrows has no slot of its own.
    reads_last = router.sources[-1] == router.layer
    new, read = prune(old, keep, by, router.columns, reads_last=reads_last)
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


def check_plain_weights(attention: nn.Module, layer: int) -> None:
    """Raise unless queries and outputs of a layer are matrices that can be scaled."""
    for name in ("q_proj", "o_proj"):
        linear = getattr(attention, name)
        if type(linear) is not nn.Linear or not linear.weight.is_floating_point():
            raise ValueError(
                f"{name} of layer {layer} is a {type(linear).__module__}.{type(linear).__name__}, "
                "whose weights cannot be scaled; merge adapters (merge_and_unload), or load the "
                "model without quantisation"
            )


def largest_heads(router: StaticRouter) -> tuple[PrunedToHeads, Tensor, Tensor]:
    """Return what each head reads with its largest weight, and these weights of keys and values."""
    chosen, kept, total = [], 0.0, 0.0
    scales = []
    for sources, weights in router.static_weights_by_part().values():
        # [target, source, source head]; one head stands for all, and reads that of its number.
        n_heads = router.num_heads
        if weights.shape[2] == 1:
            weights = weights * torch.eye(n_heads).to(weights)[:, None]
        flat = weights.detach().flatten(1)
        largest = flat.abs().argmax(1)
        scales.append(flat.gather(1, largest[:, None])[:, 0])
        chosen.append([(sources[k // n_heads], k % n_heads) for k in largest.tolist()])
        kept += float(scales[-1].abs().sum(dtype=torch.float64))
        total += float(flat.abs().sum(dtype=torch.float64))
    heads = tuple((*key, *value) for key, value in zip(*chosen, strict=True))
    row = PrunedToHeads(
        layer=router.layer, heads=heads, dropped_share=1 - kept / total if total else 0.0
    )
    return row, scales[0], scales[1]
