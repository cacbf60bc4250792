"""A hash of a text, by which it is in the same split in every data set, and in one split only."""

import hashlib


def hash_to_unit_interval(text: str) -> float:
    """Return a number in [0, 1), spread evenly over texts: the first 64 bits of their SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
