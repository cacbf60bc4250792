"""Hashes of texts, files and our own code.

By its hash a text is in the same split in every data set, and in one split only.
"""

import hashlib
import json
from pathlib import Path

from layermem_base.plugins import plugin_files

PACKAGE_FOLDERS = tuple(
    Path(__file__).parents[2] / name for name in ("layermem", "layermem_base", "layermem_bench")
)
"""``layermem``, which has the variants, and ``layermem_bench``, which trains and evaluates them."""
# Of the digest of our code.
_DIGITS = 12


def hash_to_unit_interval(text: str) -> float:
    """Return a number in [0, 1), spread evenly over texts: the first 64 bits of their SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


def digest(value: object) -> str:
    """Return twelve hexadecimal digits that identify data, as JSON would hold them."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plugin_digest() -> str:
    """Return a digest of the modules that plugins are, without what they import; "": none is."""
    total, files = hashlib.sha256(), plugin_files()
    for name, file in files:
        # One that was removed, or lies in a zip, is known by its name.
        there = file is not None and Path(file).is_file()
        total.update(name.encode() + (Path(str(file)).read_bytes() if there else b""))
    return total.hexdigest() if files else ""


def sources_digest() -> str:
    """Return a digest of our packages' code, as it is now, and of the names of its files."""
    total = hashlib.sha256()
    for folder in PACKAGE_FOLDERS:
        # Editors lock a file by a link whose name begins with a dot.
        for file in sorted(f for f in folder.rglob("[!.]*.py") if f.is_file()):
            name = f"{folder.name}/{file.relative_to(folder).as_posix()}"
            total.update(f"{name}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()[:_DIGITS]
