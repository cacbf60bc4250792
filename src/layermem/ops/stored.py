"""Aliases of stored tensors, through which many readers leave one gradient.

The gradient of a tensor that many read is computed once: the backward of a reader leaves what it
has with an autograd node, which runs after all readers and adds it up. This node does not make the
stored tensor, it makes an *alias* of it, of the same memory, which readers take in its place:

    x  <---  stored tensor, which callers have  <---  gather  <---  alias  <---  readers

So the sum reaches the stored tensor as any gradient does: ``torch.autograd.grad`` with respect to
it, ``retain_grad`` and hooks see all of it. Only the stored tensor refers to its alias, so that
reference counts free both.
"""

from typing import Any

import torch
from torch import Tensor

_ALIAS = "_layermem_alias"


def set_alias(stored: Tensor, alias: Tensor) -> None:
    """Let readers of ``stored`` read ``alias``, made from it by a node with the field ``stored``:
    the autograd node of the stored tensor."""
    setattr(stored, _ALIAS, alias)


def readable(x: Tensor) -> Tensor:
    """Return the alias of a stored tensor, any other tensor as it is."""
    if torch.compiler.is_compiling():
        return x
    alias: Tensor | None = getattr(x, _ALIAS, None)
    if alias is None:
        return x
    node: Any = alias.grad_fn
    # Another operation may have changed the stored tensor in place since.
    return alias if node.stored is x.grad_fn else x
