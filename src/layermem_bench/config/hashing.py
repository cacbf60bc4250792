"""Hashes of texts and files.

By its hash a text is in the same split in every data set, and in one split only.
"""

import hashlib
from pathlib import Path


def hash_to_unit_interval(text: str) -> float:
    """Return a number in [0, 1), spread evenly over texts: the first 64 bits of their SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
