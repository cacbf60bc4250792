"""What routers read: their weights as maps of target layer against source layer.

Rows of a map are shares: absolute weights divided by their sum. A layer without a router reads
itself.

Letters: L layers, R key-value heads.
With several adapters of PEFT, the memories read are those that a forward calls now.
It does not know: any particular variant, figures.
"""

import heapq

import numpy as np
import torch
from torch import nn

from layermem.models.memories import plain_memories
from layermem.models.seams import OwnLayer
from layermem.results.analysis import Circuit, Reading


def mean_heatmap(model: nn.Module) -> np.ndarray:
    """Return [L, L]: how much of what layer i reads comes from layer j, all heads together."""
    sizes = _sizes(model).mean(1)
    return np.asarray(sizes / sizes.sum(-1, keepdims=True))


def head_heatmaps(model: nn.Module) -> np.ndarray:
    """Return [L, R, L]: the same for each target head; a head that reads nothing has zeros."""
    sizes = _sizes(model)
    whole = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(whole, whole, 1.0))


def readings(heatmap: np.ndarray, most: int = 3) -> list[Reading]:
    """Say of each layer what it reads."""
    rows = []
    for layer, row in enumerate(np.asarray(heatmap)):
        shares = row[row > 0]
        order = np.argsort(-row, kind="stable")[:most]
        rows.append(
            Reading(
                layer=layer,
                off_layer_share=float(1 - row[layer]),
                sources=tuple(int(j) for j in order if row[j] > 0),
                effective=float(np.exp(-(shares * np.log(shares)).sum())),
            )
        )
    return rows


def circuits(heatmap: np.ndarray, *, steps: int = 2, count: int = 10) -> list[Circuit]:
    """Return the ``count`` heaviest ways of so many steps, each to an earlier layer.

    What a layer reads of another is that one's own keys and values; what that one had read itself
    is in them by way of its input. So a way says where information may have come from, not that
    it has.
    """
    heatmap = np.asarray(heatmap)
    if steps < 1 or count < 1:
        raise ValueError(f"steps and count must be at least 1, got {steps} and {count}")
    # Best first: a way never grows heavier, so what is whole when it comes up is the next best.
    waiting: list[tuple[float, tuple[int, ...]]] = [(-1.0, (i,)) for i in range(len(heatmap))]
    found: list[Circuit] = []
    while waiting and len(found) < count:
        weight, way = heapq.heappop(waiting)
        if len(way) == steps + 1:
            found.append(Circuit(layers=way, weight=-weight))
            continue
        for source in range(way[-1]):
            share = float(heatmap[way[-1], source])
            if share > 0:
                heapq.heappush(waiting, (weight * share, (*way, source)))
    return found


@torch.no_grad()
def _sizes(model: nn.Module) -> np.ndarray:
    """Return [L, R, L]: absolute weights, averaged over source heads."""
    of_layers = plain_memories(model)
    if not of_layers:
        raise ValueError(f"{type(model).__name__} has no memories: it is no model of this library")
    found: list[np.ndarray] = []
    for layer, memory in enumerate(of_layers):
        if isinstance(memory, OwnLayer):
            found.append(np.eye(len(of_layers))[layer : layer + 1])
            continue
        sources, weights = memory.static_weights()
        # Target head, source layer, source head.
        sizes = weights.double().abs().mean(2).cpu().numpy()
        if not np.isfinite(sizes).all():
            raise ValueError(f"the router of layer {layer} has weights that are not finite")
        if not sizes.sum():
            raise ValueError(f"the router of layer {layer} has weights of zero alone")
        spread = np.zeros((len(sizes), len(of_layers)))
        spread[:, list(sources)] = sizes
        found.append(spread)
    heads = max(map(len, found))
    return np.stack([np.broadcast_to(sizes, (heads, len(of_layers))) for sizes in found])
