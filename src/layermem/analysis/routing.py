"""What routers read: their weights as maps of target layer against source layer.

It does not know: any particular variant, figures.
"""

import numpy as np
import torch
from torch import nn

from layermem.models.seams import Memory, OwnLayer


@torch.no_grad()
def mean_heatmap(model: nn.Module) -> np.ndarray:
    """Return [layers, layers]: how much of what layer i reads comes from layer j; rows sum to 1.

    Absolute weights, averaged over target and source heads, divided by their sum over sources. A
    layer without a router reads itself.
    """
    memories = [module for module in model.modules() if isinstance(module, Memory)]
    if not memories:
        raise ValueError(f"{type(model).__name__} has no memories: it is no model of this library")
    heatmap = np.zeros((len(memories), len(memories)))
    for layer, memory in enumerate(memories):
        if isinstance(memory, OwnLayer):
            heatmap[layer, layer] = 1.0
            continue
        sources, weights = memory.static_weights()
        # Target head, source layer, source head.
        sizes = weights.double().abs().mean((0, 2)).cpu().numpy()
        if not np.isfinite(sizes).all():
            raise ValueError(f"the router of layer {layer} has weights that are not finite")
        if not sizes.sum():
            raise ValueError(f"the router of layer {layer} has weights of zero alone")
        heatmap[layer, list(sources)] = sizes / sizes.sum()
    return heatmap
