"""Sums and scores whose backward computes the gradient of each stored state once.

A state is read by the mixtures and scores of all later layers. Left to autograd, each would compute
a gradient as large as the state, and autograd would add them. Here the backward of a reader leaves
its incoming gradient and its weights with the autograd node that stored the state, and this node,
which autograd runs after all readers, accumulates them in place:

    d x_j = sum over mixtures m, sums c of weights_m[c, j] d out_mc
          + sum over scores p, c of d scores_p[c, j] vectors_p[c] one product for all scores
          + the gradient of its inverse root mean square, likewise a sum

Nothing is saved but the states themselves, once, and the weights. What readers leave belongs to one
backward pass, so that partial, repeated and nested passes do not mix. A state that no node of ours
stored gets its gradient from each reader: under re-entrant checkpointing, behind FSDP's wrappers
and hooks, and where a caller does not use ``store``. Under torch.compile, torch.func and
``create_graph=True`` the equations of naive.py are differentiated.

Letters: S states, C sums, B batch, T tokens, D width.
It does not know: layers, norms, how the products are computed.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layermem.ops.depth import naive, products
from layermem.ops.depth.naive import Weights, column

Grads = tuple[Tensor | None, ...]


@dataclass
class _Pending:
    """What the readers of a state have left for its gradient in one backward pass."""

    # (gradient of a sum [B, T, D], what multiplied the state in it) and (gradient of the state's
    # scores [B, T, C], vectors [C, D]).
    sums: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    scores: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def store(x: Tensor) -> Tensor:
    """Return the same state, whose gradient is computed once for all its readers."""
    return _Store.apply(x) if torch.is_grad_enabled() and not _traced() else x


def mix(states: Sequence[Tensor], weights: Weights) -> list[Tensor]:
    """Compute ``naive.mix``."""
    if _traced():
        return naive.mix(states, weights)
    if torch.is_grad_enabled():
        return list(_Mix.apply(weights, *states))
    with _autocast_disabled(weights):
        return products.mix(states, weights)


def score(states: Sequence[Tensor], vectors: Tensor) -> Tensor:
    """Compute ``naive.score``."""
    if _traced():
        return naive.score(states, vectors)
    if torch.is_grad_enabled():
        scores: Tensor = _Score.apply(vectors, *states)
        return scores
    with _autocast_disabled(vectors):
        return products.score(states, vectors)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Compute ``naive.inverse_rms``."""
    if _traced():
        return naive.inverse_rms(x, eps)
    if torch.is_grad_enabled():
        inverse: Tensor = _InverseRms.apply(x, eps)
        return inverse
    with _autocast_disabled(x):
        return products.inverse_rms(x, eps)


class _Store(torch.autograd.Function):
    """The identity; in the backward, the sum of what the readers have left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.dtype = x.dtype
        ctx.pending = {}
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, direct: Tensor | None) -> Tensor | None:
        pending = ctx.pending.pop(torch._C._current_graph_task_id(), None)
        if pending is None:
            return direct
        first = (pending.sums or pending.scores)[0][0]
        with _autocast_disabled(first):
            return _gather(direct, pending).to(ctx.dtype)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Weights, *states: Tensor) -> Grads:
        ctx.save_for_backward(weights, *states)
        ctx.nodes = [_find_store_node(x) for x in states]
        with _autocast_disabled(weights):
            return tuple(products.mix(states, weights))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Grads:
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, naive.mix, grads)
        weights, *states = ctx.saved_tensors
        needs_weights, *needs = ctx.needs_input_grad
        d_states: list[Tensor | None] = [None] * len(states)
        d_weights = None
        with _autocast_disabled(weights):
            if needs_weights:
                d_weights = products.mix_weight_gradient(states, weights, grads)
            wide = weights.to(products.widest(weights.dtype, grads[0].dtype))
            for j, (x, node) in enumerate(zip(states, ctx.nodes, strict=True)):
                terms = [(grad, column(wide, c, j)) for c, grad in enumerate(grads)]
                if not needs[j]:
                    continue
                if node is not None and not _is_watched(x):
                    _pending_of(node).sums.extend(terms)
                else:
                    d_states[j] = products.accumulate(None, terms).to(x.dtype)
        return d_weights, *d_states


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *states: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, *states)
        ctx.nodes = [_find_store_node(x) for x in states]
        with _autocast_disabled(vectors):
            return products.score(states, vectors)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Grads:
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, _score_as_list, (grads,))
        vectors, *states = ctx.saved_tensors
        needs_vectors, *needs = ctx.needs_input_grad
        d_states: list[Tensor | None] = [None] * len(states)
        d_vectors = None
        with _autocast_disabled(vectors):
            if needs_vectors:
                d_vectors = products.score_vectors_gradient(states, vectors, grads)
            wide = vectors.to(grads.dtype)
            for j, (x, node) in enumerate(zip(states, ctx.nodes, strict=True)):
                if not needs[j]:
                    continue
                if node is not None and not _is_watched(x):
                    _pending_of(node).scores.append((grads[..., j], wide))
                else:
                    d_states[j] = (grads[..., j] @ wide).to(x.dtype)
        return d_vectors, *d_states


class _InverseRms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        with _autocast_disabled(x):
            inverse = products.inverse_rms(x, eps)
        ctx.save_for_backward(x, inverse)
        ctx.eps, ctx.node = eps, _find_store_node(x)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        x, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Under create_graph=True: an expression that can itself be differentiated.
            inverse = naive.inverse_rms(x, ctx.eps)
        factor = grad * inverse.pow(3) * (-1 / x.shape[-1])
        if torch.is_grad_enabled():
            return (factor[..., None] * x).to(x.dtype), None
        term = x, factor[..., None]
        if ctx.node is not None and not _is_watched(x):
            _pending_of(ctx.node).sums.append(term)
            return None, None
        with _autocast_disabled(x):
            return products.accumulate(None, [term]).to(x.dtype), None


def _score_as_list(states: Sequence[Tensor], vectors: Tensor) -> list[Tensor]:
    return [naive.score(states, vectors)]


def _gather(direct: Tensor | None, pending: _Pending) -> Tensor:
    """Return ``direct`` plus what the readers have left."""
    total = direct
    if pending.sums:
        total = products.accumulate(total, pending.sums)
    if pending.scores:
        grads = torch.cat([grad for grad, _ in pending.scores], dim=-1)
        product = grads @ torch.cat([vectors for _, vectors in pending.scores])
        total = product if total is None else product.add_(total)
    assert total is not None
    return total


def _pending_of(node: Any) -> _Pending:
    """Return what readers have left with a node in the running pass; dropped when that ends."""
    by_pass: dict[int, _Pending] = node.pending
    pass_id = torch._C._current_graph_task_id()
    if pass_id not in by_pass:
        by_pass[pass_id] = _Pending()
        # A pass may end before it reaches the node.
        drop = partial(by_pass.pop, pass_id, None)
        torch.autograd.Variable._execution_engine.queue_callback(drop)
    return by_pass[pass_id]


_StoreNode = _Store._backward_cls


def _find_store_node(x: Tensor) -> Any | None:
    """Return the autograd node that stored a state, None if another operation made it."""
    return x.grad_fn if isinstance(x.grad_fn, _StoreNode) else None


def _is_watched(x: Tensor) -> bool:
    """Whether a state retains its gradient or has hooks, which see what passes through autograd."""
    return bool(x.retains_grad or x._backward_hooks)


def _traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _differentiable_gradients(ctx: Any, equation: Any, grads: Sequence[Tensor]) -> Grads:
    """Return gradients that can themselves be differentiated (``create_graph=True``)."""
    # Aliases: one input may depend on another, and that way must not be counted here.
    first, *states = aliases = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]
    needs = ctx.needs_input_grad
    inputs = [t for t, need in zip(aliases, needs, strict=True) if need]
    outs = equation(states, first)
    gradients = iter(torch.autograd.grad(outs, inputs, grads, create_graph=True))
    return tuple(next(gradients) if need else None for need in needs)


def _autocast_disabled(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round products to half precision."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
