"""Sums and scores whose backward computes the gradient of each stored state once.

A state is read by the mixtures and scores of all later layers. Left to autograd, each would compute
a gradient as large as the state, and autograd would add them. Here the backward of a reader leaves
its incoming gradient and its weights with the autograd node that gathers for the state, and this
node, which autograd runs after all readers, accumulates them in place. Readers read an alias of the
state, which the node has made (``ops/stored.py``):

    d x_j = sum over mixtures m, sums c of weights_m[c, j] d out_mc
          + sum over scores p, c of d scores_p[c, j] vectors_p[c] one product for all scores
          + the gradient of its inverse root mean square, likewise a sum

Nothing is saved but the states themselves, once, and the weights. What readers leave belongs to one
backward pass, so that partial, repeated and nested passes do not mix. A state without such a
node gets its gradient from each reader: under re-entrant checkpointing, behind FSDP's wrappers, and
where a caller does not use ``store``. Under torch.compile, torch.func and
``create_graph=True`` the equations of naive.py are differentiated.

Letters: S states, C sums, B batch, T tokens, D width.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layermem.ops.depth import naive, products
from layermem.ops.depth.naive import Weights, column
from layermem.ops.differentiable import equation_gradients
from layermem.ops.stored import readable, set_alias

Grads = tuple[Tensor | None, ...]


@dataclass
class _Pending:
    """What the readers of a state have left for its gradient in one backward pass."""

    # (gradient of a sum [B, T, D], what multiplied the state in it) and (gradient of the state's
    # scores [B, T, C], vectors [C, D]).
    sums: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    scores: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class _Buffer:
    """The memory [B T, room, D] of the states of one forward, token after token."""

    def __init__(self, x: Tensor, room: int) -> None:
        self.tensor = x.new_empty(x.shape[0] * x.shape[1], room, x.shape[2])
        self.shape, self.used = x.shape, 0

    def append(self, x: Tensor) -> Tensor:
        """Copy a state into the next row; return the row [B, T, D]."""
        batch, tokens, width = x.shape
        stride = self.tensor.stride(0)
        # Not a view of the buffer, whose rows would share a count of changes in place.
        row = self.tensor.new_empty(0)
        row.set_(
            self.tensor.untyped_storage(),
            self.used * width,
            x.shape,
            (tokens * stride, stride, 1),
        )
        self.used += 1
        return row.copy_(x)

    def has_room_for(self, x: Tensor, position: int) -> bool:
        """Whether ``x`` may be the state of this position: none has been stored there."""
        tensor = self.tensor
        free = position == self.used < tensor.shape[1]
        return free and (x.shape, x.dtype, x.device) == (self.shape, tensor.dtype, tensor.device)


def store(x: Tensor, after: Sequence[Tensor] = (), room: int = 1) -> Tensor:
    """Return the same state, whose gradient is computed once for all its readers.

    ``after`` are the states stored before it in this forward, of ``room`` in all: those that
    follow each other share memory, in which a product reads all of them at once.
    """
    if not torch.is_grad_enabled() or _traced():
        return x
    buffer = None
    if after:
        buffer = getattr(_find_node(readable(after[-1])), "buffer", None)
    elif room > 1 and x.requires_grad and type(x) is Tensor:
        buffer = _Buffer(x, room)
    if buffer is not None and not buffer.has_room_for(x, len(after)):
        buffer = None
    stored: Tensor = x.view_as(x) if buffer is None else _Append.apply(x, buffer)
    if stored.requires_grad:
        set_alias(stored, _Gather.apply(stored, buffer))
    return stored


def mix(states: Sequence[Tensor], weights: Weights) -> list[Tensor]:
    """Compute ``naive.mix``."""
    if _traced():
        return naive.mix(states, weights)
    if torch.is_grad_enabled():
        return list(_Mix.apply(weights, *map(readable, states)))
    with _autocast_disabled(weights):
        return products.mix(states, weights)


def score(states: Sequence[Tensor], vectors: Tensor) -> Tensor:
    """Compute ``naive.score``."""
    if _traced():
        return naive.score(states, vectors)
    if torch.is_grad_enabled():
        scores: Tensor = _Score.apply(vectors, *map(readable, states))
        return scores
    with _autocast_disabled(vectors):
        return products.score(states, vectors)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Compute ``naive.inverse_rms``."""
    if _traced():
        return naive.inverse_rms(x, eps)
    if torch.is_grad_enabled():
        inverse: Tensor = _InverseRms.apply(readable(x), eps)
        return inverse
    with _autocast_disabled(x):
        return products.inverse_rms(x, eps)


class _Append(torch.autograd.Function):
    """Copy a state into a buffer; in the backward, the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: _Buffer) -> Tensor:
        ctx.set_materialize_grads(False)
        return buffer.append(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    """Return the alias of a stored state; in the backward, add up what readers have left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: _Buffer | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.dtype, ctx.buffer, ctx.stored = x.dtype, buffer, x.grad_fn
        ctx.pending = {}
        return x.detach()

    @staticmethod
    def backward(ctx: Any, direct: Tensor | None) -> tuple[Tensor | None, None]:
        pending = ctx.pending.pop(torch._C._current_graph_task_id(), None)
        if pending is None:
            return direct, None
        first = (pending.sums or pending.scores)[0][0]
        with _autocast_disabled(first):
            return _gather(direct, pending).to(ctx.dtype), None


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Weights, *states: Tensor) -> Grads:
        ctx.save_for_backward(weights, *states)
        ctx.nodes = [_find_node(x) for x in states]
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
                if node is not None:
                    _pending_of(node).sums.extend(terms)
                else:
                    d_states[j] = products.accumulate(None, terms).to(x.dtype)
        return d_weights, *d_states


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *states: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, *states)
        ctx.nodes = [_find_node(x) for x in states]
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
                if node is not None:
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
        ctx.eps, ctx.node = eps, _find_node(x)
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
        if ctx.node is not None:
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

        def drop() -> None:
            by_pass.pop(pass_id, None)

        # A pass may end before it reaches the node.
        torch.autograd.Variable._execution_engine.queue_callback(drop)
    return by_pass[pass_id]


_GatherNode = _Gather._backward_cls


def _find_node(x: Tensor) -> Any | None:
    """Return the autograd node that gathers for a state, None if there is none."""
    return x.grad_fn if isinstance(x.grad_fn, _GatherNode) else None


def _traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _differentiable_gradients(ctx: Any, equation: Any, grads: Sequence[Tensor]) -> Grads:
    """Return gradients that can themselves be differentiated (``create_graph=True``)."""

    def of_all(first: Tensor, *states: Tensor) -> list[Tensor]:
        outs: list[Tensor] = equation(states, first)
        return outs

    return tuple(equation_gradients(of_all, ctx.saved_tensors, ctx.needs_input_grad, grads))


def _autocast_disabled(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast, which would round products to half precision."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
