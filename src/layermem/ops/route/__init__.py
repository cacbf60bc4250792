"""Routing over depth: ``route`` and ``store``, and the choice among four implementations of them.

All have one signature and equal forward and backward:

    naive      equation (2) written out: the reference, and the one with second derivatives
    deferred   a route is one product on its slots; each slot's gradient is computed once
    grouped    products for several layers at once, on a ``SlotBuffer`` that all layers share; it
               becomes ``deferred`` where that is not possible (``begin_buffer``)
    triton     ``deferred`` by Triton kernels, on request (``launches.py`` says how fast they are)

Without ``using`` layers share a buffer where they can, and route by ``deferred`` otherwise.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import deferred, naive
from layermem.ops.route.buffer import SlotBuffer, SmallBuffer, Sources, TracedBuffer
from layermem.ops.route.groups import GroupBuffer
from layermem.ops.route.naive import Slot
from layermem.ops.route.products import Router, as_router
from layermem.ops.route.shapes import check_shapes

_NAMES = ("naive", "deferred", "grouped", "triton")
# Up to this many numbers in an input without gradients, as at decoding, a call costs more than its
# arithmetic.
_FEW = 16384
# Layers of a group, at least, and groups of a model, at most: with larger groups, fat products get
# fatter and thin ones more.
_GROUP_SIZE = 8
_MOST_GROUPS = 8
_products = deferred.Products()
# The implementation that ``using`` has forced; None: grouped, or else deferred.
_forced: str | None = None


def route(slots: Sequence[Slot], weight: Tensor, value_weight: Tensor | None = None) -> Slot:
    """Compute the weighted sum of slots, ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, or [1, S], a scalar a slot for all of its heads. It is applied to keys, and to
    values unless they have a ``value_weight`` of that shape. Returns (key, value), each
    [B, R, T, E].
    """
    router = (weight,) if value_weight is None else (weight, value_weight)
    if isinstance(slots, SlotBuffer):
        return slots.route(*router)
    check_shapes(slots, *router)
    if _forced == "naive":
        return naive.route(slots, *router)
    if _forced == "triton":
        return _kernels().route(slots, router)
    return deferred.route(_products, slots, router)


def store(key: Tensor, value: Tensor) -> Slot:
    """Return the slot (key, value), [B, R, T, E] each, whose gradient is computed once."""
    if _forced == "naive":
        return key, value
    if _forced == "triton":
        return _kernels().store(key, value)
    return deferred.store(_products, key, value)


def begin_buffer(
    routers: Sequence[Router | Tensor | None], embeds: Tensor, sources: Sources | None = None
) -> SlotBuffer | None:
    """Return a buffer for a forward whose layer l routes its sources by ``routers[l]``.

    A router is a weight, or one of keys and one of values in a tuple; None: the layer has none.
    ``sources[l]`` are the slots that layer l reads, ascending, its own last; None: all layers read
    all slots so far. Returns None, and layers have to call ``store`` and ``route`` on slots of
    their own, unless weights are in memory and, in eager mode, tensors are on a CPU or a CUDA
    device (``using("grouped")``: on any). Compiled layers share a buffer only in float32 or float64
    without autocast, and if they read all slots so far. Many tokens without gradients share none
    where at most half of the slots are ever alive at once, as with windows: each is freed after its
    last reader, and a buffer would keep it. ``embeds`` [B, T, D] is the input of the forward.
    """
    if sources is None:
        sources = [range(layer + 1) for layer in range(len(routers))]
    routers = list(map(as_router, routers))
    traced = torch.compiler.is_compiling()
    if _forced not in (None, "grouped"):
        return None
    if not (_sums_are_exact(embeds) if traced else _is_eager(embeds)):
        return None
    heads = next((router[0].shape[0] for router in routers if router is not None), 0)
    for router, own in zip(routers, sources, strict=True):
        shape = (heads, len(own) * heads)
        if router is not None and not all(_is_at_hand(w, shape, embeds) for w in router):
            return None
    if not heads:
        return None
    group_size = max(_GROUP_SIZE, len(routers) // _MOST_GROUPS)
    if traced:
        reads_all = all(len(own) == own[-1] + 1 for own in sources)
        return TracedBuffer(routers, group_size) if reads_all else None
    if embeds.numel() <= _FEW and not torch.is_grad_enabled():
        # Under autocast keys and values may have different dtypes.
        return None if _is_autocast(embeds) else SmallBuffer(routers, sources)
    if not torch.is_grad_enabled() and 2 * _most_alive(sources) <= len(routers):
        return None
    return GroupBuffer(routers, group_size, sources)


def _most_alive(sources: Sources) -> int:
    """Return the largest number of slots that a layer has made or a layer after it still reads."""
    last = {j: layer for layer, own in enumerate(sources) for j in own}
    return max(sum(j <= layer <= end for j, end in last.items()) for layer in range(len(sources)))


def implementations() -> list[str]:
    """Return the names that ``using`` accepts."""
    return list(_NAMES)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Force one implementation for every forward inside the block."""
    global _forced
    if name not in _NAMES:
        raise ValueError(f"unknown implementation {name!r}; choose one of {', '.join(_NAMES)}")
    if name == "triton":
        if importlib.util.find_spec("triton") is None:
            raise ImportError("triton is not installed; pip install triton")
        # Import it before torch.compile traces the code that uses it.
        _kernels()
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def _sums_are_exact(tensor: Tensor) -> bool:
    """Whether partial sums like this tensor are not rounded to half precision."""
    return tensor.dtype in (torch.float32, torch.float64) and not _is_autocast(tensor)


def _is_autocast(tensor: Tensor) -> bool:
    # The meta device has no autocast, and asking for it is an error.
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def _is_eager(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor, computed with at once where a buffer may be."""
    return (
        type(tensor) is Tensor
        and (tensor.is_cpu or tensor.is_cuda or _forced == "grouped")
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]
        and not torch._C._are_functorch_transforms_active()
    )


def _is_at_hand(weight: Tensor, shape: tuple[int, int], like: Tensor) -> bool:
    """Whether this is a whole weight in memory. FSDP gathers a layer's only when it runs."""
    return (
        type(weight) in (Tensor, torch.nn.Parameter)
        and weight.shape == shape
        and weight.device == like.device
        # While a compiler traces, tensors have no memory; what FSDP has sharded has another type.
        and (torch.compiler.is_compiling() or weight.untyped_storage().size() > 0)
    )


def _kernels() -> Any:
    """Import and return the module of kernels, which needs triton."""
    from layermem.ops.route import launches

    return launches


__all__ = [
    "Slot",
    "SlotBuffer",
    "begin_buffer",
    "implementations",
    "route",
    "store",
    "using",
]
