"""Lots that texts draw: the same text the same lot, whatever comes before it and whatever the seed.

Splits are made by them, so that what is in one is in no other.

It does not know: what is split.
"""

import hashlib


def lot(text: str) -> float:
    """Return a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
