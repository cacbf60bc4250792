"""What functions with a backward of their own have in common."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether torch.compile or torch.func runs, which differentiate formulas by themselves."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def autocast_disabled(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round products to half precision."""
    kind = tensor.device.type
    # The meta device has no autocast, and asking for it is an error.
    if tensor.is_meta or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def equation_gradients(
    equation: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    needs: Sequence[bool],
    grads: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradient of each input that needs one, from those of ``equation(*inputs)``.

    It can itself be differentiated: the backward of a fused function returns it under
    ``create_graph=True``.
    """
    # Aliases: one input may depend on another, and that way must not be counted here.
    aliases = [tensor.view_as(tensor) for tensor in inputs]
    wanted = [alias for alias, need in zip(aliases, needs, strict=True) if need]
    with autocast_disabled(inputs[0]):
        outs = equation(*aliases)
        gradients = iter(torch.autograd.grad(outs, wanted, grads, create_graph=True))
    return tuple(next(gradients) if need else None for need in needs)
