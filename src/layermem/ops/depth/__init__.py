"""Weighted sums of states of different depths, whose backward computes each state's gradient once.

    mix           out_c = sum_j weights[c, j] x_j        weights constant, per channel or per token
    score         out[..., c, j] = vectors[c] . x_j      numbers for each token and state
    inverse_rms   1 / sqrt(mean(x^2) + eps) of each token of one state
    store         marks a state that several of these will read
    mix_newest    stores a state and mixes it with all before it, by weights per token

A reader of a stored state leaves its incoming gradient and its weights with the node of the state
(``ops/shared_gradient.py``), which accumulates them in place; several sums of states that share
memory are one product, added to a gradient of that memory's shape:

    d x_j = sum over mixtures m, sums c of weights_m[c, j] d out_mc
          + sum over scores p, c of d scores_p[c, j] vectors_p[c] one product for all scores
          + the gradient of its inverse root mean square, likewise a sum

For weights per token such states lie together by token, for several sums by constant weights apart.
Of others these sums hand autograd a gradient each, from one product: less work than to read every
gradient for every state.

Nothing is saved but the states themselves, once, and the weights. Under torch.compile, torch.func
and ``create_graph=True`` the equations of naive.py are differentiated, but for ``mix_newest``: a
compiled layer hands the gradients of all states so far to the layer below as that of a token.

Letters: S states, C sums, B batch, T tokens, D width.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from layermem.ops.depth import naive, products
from layermem.ops.depth.naive import Weights, column
from layermem.ops.shared_gradient import (
    Grads,
    autocast_disabled,
    equation_gradients,
    find_node,
    is_traced,
    leave,
    of_running_pass,
    readable,
    share,
)

# What a reader leaves: the gradient of a sum [B, T, D] and what multiplied the state in it, or the
# gradient of the state's scores [B, T, C] and vectors [C, D].
Part = tuple[Literal["sum", "score"], Tensor, Tensor]


class _Buffer:
    """The memory [B T, room, D] of the states of one forward: token after token, or if they are
    ``apart`` state after state, each in one piece."""

    def __init__(self, x: Tensor, room: int, *, apart: bool) -> None:
        tokens, width = x.shape[0] * x.shape[1], x.shape[2]
        if apart:
            self.tensor = x.new_empty(room, tokens, width).transpose(0, 1)
        else:
            self.tensor = x.new_empty(tokens, room, width)
        self.shape, self.used, self.apart = x.shape, 0, apart
        # Of each running backward: the gradient of all rows, and the rows that have a part of it.
        self._gradients: dict[int, tuple[Tensor, set[int]]] = {}

    def append(self, x: Tensor) -> Tensor:
        """Copy a state into the next row; return the row [B, T, D]."""
        of_token, of_state, _ = self.tensor.stride()
        # Not a view of the buffer, whose rows would share a count of changes in place.
        row = self.tensor.new_empty(0)
        row.set_(
            self.tensor.untyped_storage(),
            self.used * of_state,
            x.shape,
            (x.shape[1] * of_token, of_token, 1),
        )
        self.used += 1
        return row.copy_(x)

    def gradients(self, nodes: Sequence[Any], first: int) -> Tensor:
        """Return the gradients [B T, S, D] of the rows from ``first`` on, of the running backward,
        to add to; they are left with the nodes of these rows."""
        total, begun = of_running_pass(
            self._gradients, lambda: (torch.zeros_like(self.tensor), set[int]())
        )
        for j, node in enumerate(nodes, start=first):
            if j not in begun:
                begun.add(j)
                # What is added to it later is in it when the node reads it.
                row = total[:, j].unflatten(0, self.shape[:2])
                leave(node, ("sum", row, total.new_ones(())))
        return total[:, first : first + len(nodes)]

    def position(self, states: Sequence[Tensor]) -> int | None:
        """Return the position of the first of states that follow each other; None: they do
        not."""
        row = self.tensor.stride(1) * self.tensor.element_size()
        first, rest = divmod(states[0].data_ptr() - self.tensor.data_ptr(), row)
        places = [states[0].data_ptr() + j * row for j in range(len(states))]
        are_rows = not rest and 0 <= first < self.used
        return first if are_rows and places == [x.data_ptr() for x in states] else None

    def has_room_for(self, x: Tensor, position: int) -> bool:
        """Whether ``x`` may be the state of this position: none has been stored there."""
        tensor = self.tensor
        free = position == self.used < tensor.shape[1]
        return free and (x.shape, x.dtype, x.device) == (self.shape, tensor.dtype, tensor.device)


def store(x: Tensor, after: Sequence[Tensor] = (), room: int = 1, *, apart: bool = False) -> Tensor:
    """Return the same state, whose gradient is computed once for all its readers.

    ``after`` are the states stored before it in this forward, of ``room`` in all, for which the
    first takes memory. There a product reads those that follow each other at once: token after
    token, or if the first was stored ``apart``, each state in one piece, which several sums by
    constant weights read. The backward of several sums takes as much memory again.
    """
    if not torch.is_grad_enabled() or is_traced():
        return x
    buffer = None
    if after:
        buffer = getattr(_find_node(readable(after[-1])), "buffer", None)
    elif room > 1 and x.requires_grad and type(x) is Tensor and x.dtype == products.widest(x.dtype):
        buffer = _Buffer(x, room, apart=apart)
    if buffer is not None and not buffer.has_room_for(x, len(after)):
        buffer = None
    stored: Tensor = x.view_as(x) if buffer is None else _Append.apply(x, buffer)
    (alias,) = share(_gather, stored)
    node = _find_node(alias)
    if node is not None:
        node.buffer = buffer
    return stored


def mix(states: Sequence[Tensor], weights: Weights) -> Tensor:
    """Compute ``naive.mix``."""
    # A compiler that needs no gradients gets one product in place of S for each sum.
    if is_traced() and (torch.is_grad_enabled() or not torch.compiler.is_compiling()):
        return naive.mix(states, weights)
    if torch.is_grad_enabled():
        mixed: Tensor = _Mix.apply(weights, *map(readable, states))
        return mixed
    with autocast_disabled(weights):
        return products.mix(states, weights)


def mix_newest(
    x: Tensor, before: Sequence[Tensor], weights: Weights | None, room: int = 1
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Store a state, and mix it with all that were stored ``before`` it, by weights per token.

    Returns the sums (without weights, the state), and what is to be appended to ``before``: the
    state, and where a compiler has stored a state the token of ``_Chained``, [B, T, S, D].
    """
    token = before[-1] if before and before[-1].dim() == 4 else None
    if token is None and not (
        torch.compiler.is_compiling()
        and torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
    ):
        x = store(x, before, room)
        return (x[None] if weights is None else mix([*before, x], weights)), (x,)
    if token is None:
        token = x.new_zeros(*x.shape[:2], 0, x.shape[2], dtype=products.widest(x.dtype))
    if weights is None:
        return x[None], (x, token)
    with autocast_disabled(weights):
        sums, token = _Chained.apply(weights, token, *stored_states(before), x)
    return sums, (x, token)


def stored_states(before: Sequence[Tensor]) -> list[Tensor]:
    """Return the states of what ``mix_newest`` has returned to be appended."""
    return [x for x in before if x.dim() == 3]


def score(states: Sequence[Tensor], vectors: Tensor) -> Tensor:
    """Compute ``naive.score``."""
    if is_traced():
        return naive.score(states, vectors)
    if torch.is_grad_enabled():
        scores: Tensor = _Score.apply(vectors, *map(readable, states))
        return scores
    with autocast_disabled(vectors):
        return products.score(states, vectors)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Compute ``naive.inverse_rms``."""
    if is_traced():
        return naive.inverse_rms(x, eps)
    if torch.is_grad_enabled():
        inverse: Tensor = _InverseRms.apply(readable(x), eps)
        return inverse
    with autocast_disabled(x):
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


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Weights, *states: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *states)
        ctx.nodes = [_find_node(x) for x in states]
        with autocast_disabled(weights):
            return products.mix(states, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, naive.mix, grad)
        weights, *states = ctx.saved_tensors
        needs_weights, *needs = ctx.needs_input_grad
        d_states: list[Tensor | None] = [None] * len(states)
        d_weights = None
        with autocast_disabled(weights):
            if needs_weights:
                d_weights = products.mix_weight_gradient(states, weights, grad)
            if any(needs):
                d_states = _state_gradients(states, ctx.nodes, needs, weights, grad)
        return d_weights, *d_states


class _Chained(torch.autograd.Function):
    """Mix states; return the sums and a token [B, T, S, D], which takes no memory.

    By convention the gradient of the token is that which later layers have for these states. The
    layer adds its own, keeps that of the states that are not in the token which it was given, and
    hands the rest down. So a layer has as many products in a deep model as in a shallow one.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, token: Tensor, *states: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weights, *states)
        ctx.handed = token.shape[2]
        sums = products.mix(states, weights)
        shape = *token.shape[:2], len(states), token.shape[3]
        return sums, token.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, total: Tensor) -> tuple[Tensor | None, ...]:
        weights, *states = ctx.saved_tensors
        handed, dtype = ctx.handed, total.dtype
        with autocast_disabled(weights):
            d_weights = products.mix_weight_gradient(states, weights, grad)
            rows, wide = (
                grad.flatten(1, 2).transpose(0, 1).to(dtype),
                weights.flatten(0, 1).to(dtype),
            )
            total = torch.baddbmm(total.flatten(0, 1), wide.transpose(1, 2), rows)
        total = total.unflatten(0, grad.shape[1:3])
        own = [total[:, :, j].to(x.dtype) for j, x in enumerate(states) if j >= handed]
        return d_weights, total[:, :, :handed], *[None] * handed, *own


def _state_gradients(
    states: Sequence[Tensor],
    nodes: Sequence[Any | None],
    needs: Sequence[bool],
    weights: Weights,
    grad: Tensor,
) -> list[Tensor | None]:
    """Return the gradients of the states of ``mix`` that are not left with nodes."""
    d_states: list[Tensor | None] = [None] * len(states)
    if _adds_in_buffer(weights, grad):
        total = _gradients_in_buffer(states, nodes, weights)
        if total is not None:
            products.add_mix_gradients(total, weights, grad)
            return d_states
    if products.mixes_pieces(states, weights):
        of_states = products.mix_gradients(states, weights, grad)
        return [d if need else None for d, need in zip(of_states, needs, strict=True)]
    wide = weights.to(products.widest(weights.dtype, grad.dtype))
    for j, (x, node) in enumerate(zip(states, nodes, strict=True)):
        terms = [(part, column(wide, c, j)) for c, part in enumerate(grad)]
        if needs[j] and node is not None:
            for term in terms:
                leave(node, ("sum", *term))
        elif needs[j]:
            d_states[j] = products.accumulate(None, terms).to(x.dtype)
    return d_states


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *states: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, *states)
        ctx.nodes = [_find_node(x) for x in states]
        with autocast_disabled(vectors):
            return products.score(states, vectors)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Grads:
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, naive.score, grads)
        vectors, *states = ctx.saved_tensors
        needs_vectors, *needs = ctx.needs_input_grad
        d_states: list[Tensor | None] = [None] * len(states)
        d_vectors = None
        with autocast_disabled(vectors):
            if needs_vectors:
                d_vectors = products.score_vectors_gradient(states, vectors, grads)
            # A copy: an optimiser may step by their gradient before the states' is computed.
            wide = vectors.to(grads.dtype, copy=True)
            for j, (x, node) in enumerate(zip(states, ctx.nodes, strict=True)):
                if not needs[j]:
                    continue
                if node is not None:
                    leave(node, ("score", grads[..., j], wide))
                else:
                    d_states[j] = (grads[..., j] @ wide).to(x.dtype)
        return d_vectors, *d_states


class _InverseRms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        with autocast_disabled(x):
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
            leave(ctx.node, ("sum", *term))
            return None, None
        with autocast_disabled(x):
            return products.accumulate(None, [term]).to(x.dtype), None


def _gather(parts: list[Part], direct: Grads) -> Grads:
    """Return the direct gradient plus what the readers have left."""
    if not parts:
        return direct
    sums = [(grad, weight) for kind, grad, weight in parts if kind == "sum"]
    scores = [(grad, vectors) for kind, grad, vectors in parts if kind == "score"]
    (total,) = direct
    with autocast_disabled(parts[0][1]):
        if sums:
            total = products.accumulate(total, sums)
        if scores:
            grads = torch.cat([grad for grad, _ in scores], dim=-1)
            product = grads @ torch.cat([vectors for _, vectors in scores])
            total = product if total is None else product.add_(total)
    # Autograd rounds it to the dtype of the state.
    return (total,)


def _gradients_in_buffer(
    states: Sequence[Tensor], nodes: Sequence[Any | None], weights: Weights
) -> Tensor | None:
    """Return the gradients of states in the running backward, to add to, as a view [B T, S, D] of
    their buffer; None: they do not follow each other in one, or lie apart for weights per token."""
    buffers = {getattr(node, "buffer", None) for node in nodes}
    buffer = buffers.pop()
    if buffers or buffer is None or (buffer.apart and weights.dim() != 2):
        return None
    first: int | None = buffer.position(states)
    return None if first is None else buffer.gradients(nodes, first)


def _adds_in_buffer(weights: Weights, grad: Tensor) -> bool:
    """Whether several sums can add to a gradient in place: those of a backward of many gradients at
    once (``is_grads_batched=True``) cannot."""
    functorch = torch._C._functorch
    batched = functorch.is_batchedtensor(grad) or functorch.is_legacy_batchedtensor(grad)
    return len(grad) > 1 and weights.dim() != 3 and not batched


def _find_node(x: Tensor) -> Any | None:
    return find_node(x, _gather)


def _differentiable_gradients(ctx: Any, equation: Any, grad: Tensor) -> Grads:
    """Return gradients that can themselves be differentiated (``create_graph=True``)."""

    def of_all(first: Tensor, *states: Tensor) -> Tensor:
        out: Tensor = equation(states, first)
        return out

    return equation_gradients(of_all, ctx.saved_tensors, ctx.needs_input_grad, (grad,))


__all__ = ["inverse_rms", "mix", "mix_newest", "score", "store", "stored_states"]
