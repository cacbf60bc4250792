"""What routers read: shares of their absolute weights by target layer and source layer.

A layer without a router reads itself alone. If PEFT keeps several adapters, the weights are those
that a forward uses now. Letters: L layers, R key-value heads.
"""

import heapq
import logging
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from layermem.models.lime_router import LimeRouter
from layermem.models.memories import active_memories, unadapted_memories
from layermem.models.seams import OwnLayerMemory, Part, WeightsUnknown
from layermem_bench.analysis.capture import Subject
from layermem_bench.analysis.result import Circuit, Reading, Routing, to_rows

logger = logging.getLogger(__name__)


def what_routers_read(subject: Subject) -> Mapping[str, Any]:
    """Return what the routers read, or why that is not known; nothing without routers."""
    model = subject.model
    if not active_memories(model):
        return {}
    try:
        heatmap = mean_heatmap(model)
    except WeightsUnknown as error:
        logger.info("what the routers of %s read is left out: %s", subject.name, error)
        return {"routing_unknown": str(error)}
    if np.array_equal(heatmap, np.eye(len(heatmap))):
        return {}
    parts = {part: mean_heatmap(model, part) for part in get_args(Part)}
    alike = all(np.array_equal(part, heatmap) for part in parts.values())
    routing = Routing(
        heatmap=to_rows(heatmap),
        heads=tuple(map(to_rows, head_heatmaps(model))),
        readings=tuple(readings(heatmap)),
        circuits=tuple(circuits(heatmap)) if len(heatmap) > 2 else (),
        parts=None if alike else {name: to_rows(part) for name, part in parts.items()},
    )
    return {"routing": routing}


def mean_heatmap(model: nn.Module, part: Part | None = None) -> np.ndarray:
    """Return [L, L]: the share of what layer i reads that comes from layer j, over all heads.

    ``part``: of keys or of values; None: of both.
    """
    sizes = _weight_sizes(model, part).mean(1)
    return np.asarray(sizes / sizes.sum(-1, keepdims=True))


def head_heatmaps(model: nn.Module) -> np.ndarray:
    """Return [L, R, L]: the same shares by target head; all zero for a head that reads nothing."""
    sizes = _weight_sizes(model)
    sums = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(sums, sums, 1.0))


def readings(heatmap: np.ndarray, most: int = 3) -> list[Reading]:
    """Summarise each row of a heatmap; ``most``: number of sources that are named."""
    layers = []
    for layer, row in enumerate(heatmap):
        shares = row[row > 0]
        order = np.argsort(-row, kind="stable")[:most]
        layers.append(
            Reading(
                layer=layer,
                off_layer_share=float(1 - row[layer]),
                sources=tuple(int(j) for j in order if row[j] > 0),
                effective=float(np.exp(-(shares * np.log(shares)).sum())),
            )
        )
    return layers


def circuits(heatmap: np.ndarray, *, steps: int = 2, count: int = 10) -> list[Circuit]:
    """Return the ``count`` heaviest paths of ``steps`` steps, each step to an earlier layer.

    A path says where information may have come from, not that it did: what a layer had read itself
    reaches its keys and values only through the residual stream.
    """
    # A longer path is never heavier, so the first complete paths to come off the heap are the
    # heaviest. The heap holds negative weights because heapq pops the smallest.
    heap: list[tuple[float, tuple[int, ...]]] = [(-1.0, (i,)) for i in range(len(heatmap))]
    paths: list[Circuit] = []
    while heap and len(paths) < count:
        weight, path = heapq.heappop(heap)
        if len(path) == steps + 1:
            paths.append(Circuit(layers=path, weight=-weight))
            continue
        for source in range(path[-1]):
            share = float(heatmap[path[-1], source])
            if share > 0:
                heapq.heappush(heap, (weight * share, (*path, source)))
    return paths


@torch.no_grad()
def _weight_sizes(model: nn.Module, part: Part | None = None) -> np.ndarray:
    """Return [L, R, L]: absolute weights, averaged over source heads and, without ``part``, over
    keys and values."""
    memories = unadapted_memories(model)
    if not memories:
        raise ValueError(
            f"{type(model).__name__} has no memories: expected a model of this library, or one "
            "with attached memory"
        )
    # Attached memory has a router in each layer after the first, and there alone.
    attached = isinstance(memories[0], LimeRouter) and memories[0].layer == 1
    first = 1 if attached else 0
    depth = first + len(memories)
    by_layer = [np.eye(depth)[layer : layer + 1] for layer in range(depth)]
    for layer, memory in enumerate(memories, start=first):
        if isinstance(memory, OwnLayerMemory):
            continue
        of_part = memory.static_weights_by_part()
        chosen = of_part.values() if part is None else [of_part[part]]
        # The weights are [target head, source layer, source head].
        sizes = np.mean([w.double().abs().mean(2).cpu().numpy() for _, w in chosen], axis=0)
        sources = next(iter(chosen))[0]
        if not np.isfinite(sizes).all() or not sizes.sum():
            raise ValueError(
                f"the weights of the router of layer {layer} are all zero, or not finite"
            )
        over_all_layers = np.zeros((len(sizes), depth))
        over_all_layers[:, list(sources)] = sizes
        by_layer[layer] = over_all_layers
    heads = max(map(len, by_layer))
    return np.stack([np.broadcast_to(sizes, (heads, depth)) for sizes in by_layer])
