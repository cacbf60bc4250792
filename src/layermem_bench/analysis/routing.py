"""What routers read: shares of their absolute weights by target layer and source layer.

A layer without a router reads itself alone. If PEFT keeps several adapters, the weights are those
that a forward uses now. Letters: L layers, R key-value heads.
"""

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from layermem.models.decoder import Decoder
from layermem.models.lime_router import LimeRouter
from layermem.models.memories import unadapted_memories
from layermem.models.seams import OwnLayerMemory, Part
from layermem_bench.results.analysis import Circuit, Reading


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
    if steps < 1 or count < 1:
        raise ValueError(f"steps and count must be at least 1, got {steps} and {count}")
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


def borrowers_of_mixtures(model: nn.Module, heatmap: np.ndarray) -> list[int]:
    """Return the layers that borrow from a layer whose keys and values are a mixture themselves.

    The heatmap names the lender as their source, whose row says what the mixture is of.
    """
    decoder = next((module for module in model.modules() if isinstance(module, Decoder)), None)
    layers: Iterable[Any] = () if decoder is None else decoder.layers
    return [i for i, layer in enumerate(layers) if any(heatmap[j, j] < 1 for j in layer.lenders)]


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
        if not np.isfinite(sizes).all():
            raise ValueError(f"the router of layer {layer} has weights that are not finite")
        if not sizes.sum():
            raise ValueError(f"all weights of the router of layer {layer} are zero")
        over_all_layers = np.zeros((len(sizes), depth))
        over_all_layers[:, list(sources)] = sizes
        by_layer[layer] = over_all_layers
    heads = max(map(len, by_layer))
    return np.stack([np.broadcast_to(sizes, (heads, depth)) for sizes in by_layer])
