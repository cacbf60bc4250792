"""Routing over depth: ``route`` and ``store`` are what the rest of the house calls.

Four implementations with one signature, equal forward and backward:

    naive        equation (2) as it is written: the reference
    functional   packed slots, ordinary gradients: what torch.compile and checkpointing see
    deferred     packed slots, each slot's gradient computed once; functional where that cannot be
    triton       the same by kernels that read slots where they lie: half precision on a GPU

It does not know: who calls it.
"""

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from layermem.ops.route import deferred, naive
from layermem.ops.route.naive import Slot
from layermem.ops.route.packed import Packed

_NAMES = ("naive", "functional", "deferred", "triton")
_NO_TRITON = (
    "triton is not installed: routing falls back to matrix products, which move more bytes; "
    "pip install triton"
)
_packed = Packed()
# None: whichever suits the tensors.
_chosen: str | None = None


def route(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """Mix slots: ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, and serves keys and values alike. Returns (key, value), each [B, R, T, E].
    """
    naive.check(slots, weight)
    name = _name_for(slots[0][0])
    if name == "naive":
        return naive.route(slots, weight)
    if name == "triton":
        return _kernels().route(slots, weight)
    return deferred.route(_packed, slots, weight)


def store(key: Tensor, value: Tensor) -> Slot:
    """Return the slot (key, value), [B, R, T, E] each, laid out as ``route`` reads it fastest."""
    name = _name_for(key)
    if name == "naive":
        return key, value
    if name == "triton":
        return _kernels().store(key, value)
    return _packed.lay(key, value) if name == "functional" else deferred.store(_packed, key, value)


def implementations() -> list[str]:
    """Return the names ``using`` takes."""
    return list(_NAMES)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Have every forward inside the block use one implementation, for tests and measurements."""
    global _chosen
    if name not in _NAMES:
        raise ValueError(f"no implementation {name!r}; there are {', '.join(_NAMES)}")
    if name == "triton":
        if not _has_triton():
            raise ImportError(_NO_TRITON)
        _kernels()
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def _name_for(tensor: Tensor) -> str:
    if _chosen is not None:
        return _chosen
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return "triton" if tensor.is_cuda and half and _triton_or_warn() else "deferred"


@torch.compiler.assume_constant_result
def _triton_or_warn() -> bool:
    if has := _has_triton():
        # Imported now: a compiler's tracing is no time for it.
        _kernels()
    else:
        warnings.warn(_NO_TRITON, stacklevel=2)  # which says it once
    return has


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _kernels() -> Any:
    """Return the module of kernels, imported when first needed: it needs triton."""
    from layermem.ops.route import triton

    return triton


__all__ = ["Slot", "implementations", "route", "store", "using"]
