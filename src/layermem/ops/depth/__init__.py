"""Weighted sums of the states of all layers so far, whose gradient goes from layer to layer.

    append   adds a state to a history
    mix      out_c = sum_s weights[c, s] x_s        weights constant, per channel or per token
    score    out[..., c, s] = vectors[c] . x_s      numbers for each token and state

A history is a tuple of tensors, which a layer takes from the layer before it and hands on. In eager
mode it is one tensor, X [S, B, T, D], the states so far. Each function takes X and returns it:

    append   X' = [X; x]                 d X = d X'[:-1],  d x = d X'[-1]
    mix      X' = X, out = W X           d X = d X' + W^T d out
    score    X' = X, out = X . V         d X = d X' + d out . V

So X has one reader, the next function, and its gradient goes down autograd's own chain: each
function adds its part in place and hands the rest on. The first state takes memory for all that are
to come, in which ``append`` writes the next row.

A compiler would keep every X for the backward. It has (token, x_0, ..., x_(S-1)) instead: the token
takes no memory, and its gradient is by convention that of X. So a layer has as many calls and edges
in a deep model as in a shallow one. A compiler that needs no gradients, torch.func and tensors of
other classes concatenate X and have the equations of naive.py, as second derivatives have.

Letters: S states, C sums, B batch, T tokens, D width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layermem.ops.depth import naive, products
from layermem.ops.depth.naive import Weights, widest
from layermem.ops.gradients import autocast_disabled, equation_gradients, is_traced

History = tuple[Tensor, ...]


def append(history: History, x: Tensor, room: int = 1, *, apart: bool = False) -> History:
    """Return the history with one more state [B, T, D]; an empty tuple begins it.

    ``room`` is the number of states that are to come in all. In memory they lie together by token,
    or if they are ``apart`` each in one piece, which constant weights read.
    """
    if not history:
        history = (x.new_empty(0, *x.shape, dtype=widest(x.dtype)),)
    token, *kept = _as_listed(history)
    needs_gradient = _needs_gradient(token, x)
    if kept or _lists():
        grown = _Append.apply(token, x, None) if needs_gradient else _as_token(token, x)
        return grown, *kept, x
    if _is_plain(x):
        return (torch.cat([token, x[None].to(token.dtype)]),)
    grown = _with_row(token.data, x.data, room, apart=apart)
    return (_Append.apply(token, x, grown) if needs_gradient else grown,)


def mix(history: History, weights: Weights, dtype: torch.dtype) -> tuple[Tensor, History]:
    """Return the sums [C, B, T, D], in ``dtype``, and the history."""
    return _read(history, weights, dtype)


def score(history: History, vectors: Tensor) -> tuple[Tensor, History]:
    """Return the scores [B, T, C, S], in float32 at least, and the history."""
    return _read(history, vectors, None)


def count(history: History) -> int:
    """Return the number of states."""
    return len(history[0])


def stack(states: Sequence[Tensor]) -> History:
    """Return a history of a few states, which is not appended to."""
    x = torch.stack(tuple(states))
    return (x.to(widest(x.dtype)),)


def _read(history: History, weights: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, History]:
    """Return what ``mix`` does, or without a dtype ``score``."""
    token, *kept = history = _as_listed(history)
    if not kept and _is_plain(token):
        return _equation(dtype)(token, weights), history
    if not _needs_gradient(token, weights):
        return _product(kept or (token,), weights, dtype), history
    out, token = _Read.apply(weights, dtype, token, *kept)
    return out, (token, *kept)


class _Append(torch.autograd.Function):
    """Return X with one more row, or a token of its shape."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, x: Tensor, grown: Tensor | None) -> Tensor:
        ctx.dtype = x.dtype
        if grown is None:
            return _as_token(token, x)
        ctx.set_materialize_grads(False)
        return grown

    @staticmethod
    def backward(ctx: Any, total: Tensor | None) -> tuple[Tensor | None, ...]:
        if total is None:
            return None, None, None
        return total[:-1], total[-1].to(ctx.dtype), None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, dtype: torch.dtype | None, token: Tensor, *kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        if not kept:
            ctx.set_materialize_grads(False)
        ctx.dtype = dtype
        ctx.save_for_backward(weights, *(kept or (token,)))
        return _product(kept or (token,), weights, dtype), token

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, total: Tensor | None) -> Any:
        weights, *kept = ctx.saved_tensors
        needs_weights, _, needs_states, *others = ctx.needs_input_grad
        if kept[0].dim() == 3:
            # Of flat states, so that a compiler does not save the X of the forward for it.
            flat = _states([x.flatten(0, 1) for x in kept], weights)
            kept = [flat.unflatten(1, kept[0].shape[:2])]
        x, d_weights = _states(kept, weights), None
        if grad is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # Under create_graph=True: gradients that can themselves be differentiated.
            needs = needs_states, needs_weights
            equation = _equation(ctx.dtype)
            d_states, d_weights = equation_gradients(equation, (x, weights), needs, (grad,))
            total = d_states if total is None or d_states is None else total + d_states
        elif grad is not None:
            of_weights, add = products.GRADIENTS[ctx.dtype is not None]
            with autocast_disabled(weights):
                if needs_weights:
                    d_weights = of_weights(x, weights, grad)
                total = add(total, x, weights, grad) if needs_states else None
        return d_weights, None, total, *[None] * len(others)


def _equation(dtype: torch.dtype | None) -> Callable[[Tensor, Tensor], Tensor]:
    return naive.score if dtype is None else partial(naive.mix, dtype=dtype)


def _product(kept: Sequence[Tensor], weights: Tensor, dtype: torch.dtype | None) -> Tensor:
    x = _states(kept, weights)
    with autocast_disabled(x):
        return products.score(x, weights) if dtype is None else products.mix(x, weights, dtype)


def _states(kept: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return X, in the order in memory that its reader wants."""
    if kept[0].dim() == 4:
        return kept[0]
    # Of [B, T, D] or [N, D].
    dim = kept[0].dim() - 1 if weights.dim() == 4 else 0
    x = torch.stack(tuple(kept), dim).movedim(dim, 0)
    return x.to(widest(x.dtype))


def _with_row(states: Tensor, x: Tensor, room: int, *, apart: bool) -> Tensor:
    """Return X with one more row, in the same memory if it is the begin of a memory of ``room``."""
    size, (_, tokens, width) = x.numel(), x.shape
    room = max(room, len(states) + 1)
    of_state, of_token = (size, width) if apart else (width, room * width)
    strides = of_state, tokens * of_token, of_token, 1
    is_begin = states.untyped_storage().nbytes() == room * size * states.element_size() and all(
        n == 1 or own == stride
        for n, own, stride in zip(states.shape, states.stride(), strides, strict=True)
    )
    if not is_begin:
        memory = states.new_empty(room * size)
        states = memory.as_strided(states.shape, strides).copy_(states)
    grown = states.as_strided((len(states) + 1, *x.shape), strides)
    grown[-1].copy_(x)
    return grown


def _as_token(token: Tensor, x: Tensor) -> Tensor:
    """Return a token of one more state, which takes no memory."""
    return token.new_zeros(()).expand(len(token) + 1, *x.shape)


def _as_listed(history: History) -> History:
    """Return what a compiler is given of X."""
    token, *kept = history
    # An empty history has nothing to list, and no exported graph could be read back that lists it.
    return (token, *token.detach().unbind()) if _lists() and not kept and len(token) else history


def _lists() -> bool:
    functorch = torch._C._are_functorch_transforms_active()
    return torch.compiler.is_compiling() and torch.is_grad_enabled() and not functorch


def _is_plain(x: Tensor) -> bool:
    return is_traced() or type(x) is not Tensor


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


__all__ = ["append", "count", "mix", "score", "stack"]
