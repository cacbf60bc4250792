"""Routing over depth: ``route`` and ``store`` are what the rest of the house calls.

Three implementations with one signature, equal forward and backward:

    naive        equation (2) as it is written: the reference
    functional   packed slots, ordinary gradients: what torch.compile and checkpointing see
    deferred     packed slots, each slot's gradient computed once; functional where that cannot be

It does not know: who calls it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from layermem.ops.route import naive, packed
from layermem.ops.route.naive import Slot

_ROUTES = {"naive": naive.route, "functional": packed.route, "deferred": packed.route}
_STORES = {"naive": lambda *slot: slot, "functional": packed.pack, "deferred": packed.store}
_chosen = "deferred"


def route(slots: Sequence[Slot], weight: Tensor) -> Slot:
    """Mix slots: ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, and serves keys and values alike. Returns (key, value), each [B, R, T, E].
    """
    naive.check(slots, weight)
    return _ROUTES[_chosen](slots, weight)


def store(key: Tensor, value: Tensor) -> Slot:
    """Return the slot (key, value), [B, R, T, E] each, laid out as ``route`` reads it fastest."""
    return _STORES[_chosen](key, value)


def implementations() -> list[str]:
    """Return the names ``using`` takes."""
    return list(_ROUTES)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Have every forward inside the block use one implementation, for tests and measurements."""
    global _chosen
    if name not in _ROUTES:
        raise ValueError(f"no implementation {name!r}; there are {', '.join(_ROUTES)}")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


__all__ = ["Slot", "implementations", "route", "store", "using"]
