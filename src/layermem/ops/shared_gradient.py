"""Shared gradients: many read one tensor, and its gradient is summed once for all of them.

Left to autograd, each reader would compute a gradient as large as the tensor, and autograd would
add them one after the other. Here the backward of a reader leaves its part of the gradient with
an autograd node, which runs after all readers and adds the parts up. The node does not make the
stored tensor; it makes an *alias* of it, of the same memory, which readers take in its place:

    x  <---  stored tensor, which callers have  <---  node  <---  alias  <---  readers

So the sum reaches the stored tensor as any gradient does: ``torch.autograd.grad`` with respect to
it, ``retain_grad`` and hooks see all of it. Only the stored tensor refers to its alias, so that
reference counts free both. A tensor without an alias (under torch.compile, re-entrant
checkpointing, behind FSDP's wrappers, where a caller does not store it) gets its gradient from
each reader. Parts belong to one backward pass: partial, repeated and nested passes do not mix.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

Grads = tuple[Tensor | None, ...]
# From the parts that readers have left, and the gradients that came by autograd's own way (None
# where there are none), to the gradients of the stored tensors.
Gather = Callable[[list[Any], Grads], Grads]
T = TypeVar("T")

_ALIAS = "_layermem_alias"


def share(gather: Gather, *stored: Tensor) -> tuple[Tensor, ...]:
    """Make aliases of stored tensors, whose readers' parts ``gather`` adds up; return them.

    If no stored tensor needs a gradient, there are no aliases: the tensors are returned.
    """
    if not any(x.requires_grad for x in stored):
        return stored
    aliases: tuple[Tensor, ...] = _Share.apply(gather, *stored)
    for x, alias in zip(stored, aliases, strict=True):
        setattr(x, _ALIAS, alias)
    return aliases


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gather: Gather, *stored: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.gather, ctx.stored, ctx.pending = gather, [x.grad_fn for x in stored], {}
        return tuple(x.detach() for x in stored)

    @staticmethod
    def backward(ctx: Any, *direct: Tensor | None) -> Grads:
        parts = ctx.pending.pop(torch._C._current_graph_task_id(), [])
        return None, *ctx.gather(parts, direct)


_Node = _Share._backward_cls


def readable(x: Tensor) -> Tensor:
    """Return the alias of a stored tensor, any other tensor as it is."""
    if torch.compiler.is_compiling():
        return x
    alias: Tensor | None = getattr(x, _ALIAS, None)
    if alias is None:
        return x
    node: Any = alias.grad_fn
    # Another operation may have changed the stored tensor in place since.
    return alias if node.stored[alias.output_nr] is x.grad_fn else x


def find_node(x: Tensor, gather: Gather) -> Any | None:
    """Return the node that adds up the gradient of an alias by ``gather``; None if none does."""
    if torch.compiler.is_compiling():
        return None
    node: Any = x.grad_fn
    return node if isinstance(x.grad_fn, _Node) and node.gather == gather else None


def leave(node: Any, part: Any) -> None:
    """Leave a part of the gradient with a node, in the backward of a reader."""
    of_running_pass(node.pending, list).append(part)


def of_running_pass(by_pass: dict[int, T], new: Callable[[], T]) -> T:
    """Return what belongs to the running backward pass, which is dropped when the pass ends; one
    that raises leaves it until the graph is freed."""
    pass_id = torch._C._current_graph_task_id()
    if pass_id not in by_pass:
        by_pass[pass_id] = new()

        def drop() -> None:
            by_pass.pop(pass_id, None)

        # A pass may end before it reaches the node.
        torch.autograd.Variable._execution_engine.queue_callback(drop)
    return by_pass[pass_id]


def add(sums: Sequence[Tensor], direct: Grads) -> Grads:
    """Return sums plus the gradients that came by autograd's own way."""
    return tuple(
        total if grad is None else grad + total for total, grad in zip(sums, direct, strict=True)
    )


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
) -> Grads:
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
