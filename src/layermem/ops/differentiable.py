"""Gradients of an equation in operations that can themselves be differentiated.

They are what the backward of a fused function returns under ``create_graph=True``.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def equation_gradients(
    equation: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    needs: Sequence[bool],
    grads: Sequence[Tensor],
) -> list[Tensor | None]:
    """Return the gradient of each input that needs one, from those of ``equation(*inputs)``."""
    # Aliases: one input may depend on another, and that way must not be counted here.
    aliases = [tensor.view_as(tensor) for tensor in inputs]
    wanted = [alias for alias, need in zip(aliases, needs, strict=True) if need]
    with torch.autocast(inputs[0].device.type, enabled=False):
        outs = equation(*aliases)
        gradients = iter(torch.autograd.grad(outs, wanted, grads, create_graph=True))
    return [next(gradients) if need else None for need in needs]
