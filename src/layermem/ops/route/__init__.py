"""Routing over depth. ``route`` is the implementation in use; ``naive.route`` is the reference.

It does not know: who calls it.
"""

from layermem.ops.route.naive import Slot, route

__all__ = ["Slot", "route"]
