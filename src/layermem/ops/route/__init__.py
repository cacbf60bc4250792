"""Routing over depth: ``route`` and ``store``, and the choice among five implementations of them.

All have one signature and equal forward and backward:

    naive        equation (2) written out: the reference
    functional   matrix products on packed slots, with autograd's ordinary gradients
    deferred     the same, and each slot's gradient is computed once; it becomes ``functional``
                 where that is not possible (torch.compile, re-entrant checkpointing)
    grouped      products for several layers at once, on a ``SlotBuffer`` that all layers share; it
                 becomes ``deferred`` where that is not possible (``begin_buffer``). In half
                 precision on a GPU by kernels, where ``using`` asks for it
    triton       deferred, with kernels that need no packing: half precision on a GPU
"""

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import deferred, naive
from layermem.ops.route.buffer import SlotBuffer
from layermem.ops.route.grouped_matrices import MatrixBuffer
from layermem.ops.route.naive import Slot
from layermem.ops.route.packed import PackedBackend
from layermem.ops.route.small import SmallBuffer
from layermem.ops.route.traced import TracedBuffer
from layermem.ops.route.widening import Sources, share_read, widen

_NAMES = ("naive", "functional", "deferred", "grouped", "triton")
_NO_TRITON = (
    "triton is not installed, so routing uses matrix products, which are slower on a GPU; "
    "pip install triton"
)
# Up to this many numbers in an input without gradients, as at decoding, a call costs more than its
# arithmetic.
_FEW = 16384
# Layers of a group, at least, and groups of a model, at most: with larger groups, fat products get
# fatter and thin ones more.
_GROUP_SIZE = 8
_MOST_GROUPS = 8
# Of the slots so far, the share that layers read, from which on they share a buffer if they are
# more than a group: a training step of 32 layers then takes the time of layers that read all,
# instead of up to 1.14 of it. Of 8 layers it takes no longer either way.
_SHARE = 0.5
_packed = PackedBackend()
# The implementation that ``using`` has forced; None: it depends on the tensors.
_forced: str | None = None


def route(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """Compute the weighted sum of slots, ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, and is applied to keys and values alike. Returns (key, value), each [B, R, T, E].
    """
    if isinstance(slots, SlotBuffer):
        return slots.route(weight)
    naive.check_shapes(slots, weight)
    name = _choose(slots[0][0])
    if name == "naive":
        return naive.route(slots, weight)
    if name == "triton":
        return _kernels().route(slots, weight)
    return deferred.route(_packed, slots, weight)


def store(key: Tensor, value: Tensor) -> Slot:
    """Return the slot (key, value), [B, R, T, E] each, in the layout ``route`` reads fastest."""
    name = _choose(key)
    if name == "naive":
        return key, value
    if name == "triton":
        return _kernels().store(key, value)
    return (
        _packed.lay_out(key, value) if name == "functional" else deferred.store(_packed, key, value)
    )


def begin_buffer(
    weights: Sequence[Tensor | None], embeds: Tensor, sources: Sources | None = None
) -> SlotBuffer | None:
    """Return a buffer for a forward whose layer l routes its sources by ``weights[l]``.

    ``sources[l]`` are the slots that layer l reads, its own last; None: all layers read all slots
    so far. Returns None, and layers have to call ``store`` and ``route`` on slots of their own,
    unless tensors are float32 or float64, autocast is off, weights are in memory and, in eager
    mode, tensors are on the CPU. Where ``using("grouped")`` asks for it, a buffer is begun on
    another device too, and in half precision, eager, where kernels run. Layers that do not read all
    slots so far share a buffer if they read half of them, are more than a group and are not
    compiled. ``embeds`` [B, T, D] is the input of the forward.
    """
    if sources is None:
        sources = [range(layer + 1) for layer in range(len(weights))]
    if _forced not in (None, "grouped"):
        return None
    traced, exact = torch.compiler.is_compiling(), _sums_are_exact(embeds)
    if not exact and (traced or not _has_grouped_kernels(embeds)):
        return None
    if not traced and not _is_eager(embeds):
        return None
    heads = next((weight.shape[0] for weight in weights if weight is not None), 0)
    for weight, own in zip(weights, sources, strict=True):
        if weight is not None and not _is_at_hand(weight, (heads, len(own) * heads), embeds):
            return None
    if not heads or not _read_enough(sources, traced):
        return None
    buffer = _new_buffer(widen(weights, sources), embeds, traced=traced, exact=exact)
    buffer.announce(weights, sources)
    return buffer


def _read_enough(sources: Sources, traced: bool) -> bool:
    """Whether layers read so many of the slots so far that a buffer is fastest."""
    share = share_read(sources)
    return share == 1 or (not traced and share >= _SHARE and len(sources) > _GROUP_SIZE)


def _new_buffer(
    weights: Sequence[Tensor | None], embeds: Tensor, *, traced: bool, exact: bool
) -> SlotBuffer:
    """Return a buffer of the kind that is fastest, with weights of all slots so far."""
    group_size = max(_GROUP_SIZE, len(weights) // _MOST_GROUPS)
    if traced:
        return TracedBuffer(weights, group_size)
    if not exact:
        from layermem.ops.route.grouped_kernels import KernelBuffer

        return KernelBuffer(weights, group_size)
    if embeds.numel() <= _FEW and not torch.is_grad_enabled():
        return SmallBuffer(weights)
    return MatrixBuffer(weights, group_size)


def implementations() -> list[str]:
    """Return the names that ``using`` accepts."""
    return list(_NAMES)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Force one implementation for every forward inside the block, for tests and measurements."""
    global _forced
    if name not in _NAMES:
        raise ValueError(f"unknown implementation {name!r}; choose one of {', '.join(_NAMES)}")
    if name == "triton":
        if not _has_triton():
            raise ImportError(_NO_TRITON)
        _kernels()
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def _choose(tensor: Tensor) -> str:
    """Return the name of the implementation for slots like ``tensor``."""
    if _forced is not None:
        return _forced
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return "triton" if tensor.is_cuda and half and _triton_or_warn() else "deferred"


def _sums_are_exact(tensor: Tensor) -> bool:
    """Whether partial sums like this tensor are not rounded to half precision."""
    exact = tensor.dtype in (torch.float32, torch.float64)
    # The meta device has no autocast, and asking for it is an error.
    return exact and (tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type))


def _has_grouped_kernels(tensor: Tensor) -> bool:
    """Whether routing in groups was asked for, and kernels run on the device of this tensor."""
    # Nobody has measured them: on a GPU, too, they run on request.
    return _forced == "grouped" and _has_triton() and _kernels().can_run(tensor)


def _is_eager(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor, computed with at once where a buffer may be."""
    return (
        type(tensor) is Tensor
        and (tensor.is_cpu or _forced == "grouped")
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


@torch.compiler.assume_constant_result
def _triton_or_warn() -> bool:
    """Whether triton is installed; warn if it is not (Python shows the warning once)."""
    has_triton = _has_triton()
    if has_triton:
        # Import it before torch.compile traces the code that uses it.
        _kernels()
    else:
        warnings.warn(_NO_TRITON, stacklevel=2)
    return has_triton


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _kernels() -> Any:
    """Import and return the module of kernels, which needs triton."""
    from layermem.ops.route import triton

    return triton


__all__ = [
    "Slot",
    "SlotBuffer",
    "begin_buffer",
    "implementations",
    "route",
    "store",
    "using",
]
