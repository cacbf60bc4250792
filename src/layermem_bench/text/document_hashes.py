"""Documents by their hashes: which are copies of each other, and a sketch of those of a text.

A document is known by its text without the white space around it. A text that says the same in
other words, or that is cut into other documents (a line for each in place of a file), is another.
"""

import base64
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypeAlias, final

import numpy as np

Hashes: TypeAlias = np.ndarray[Any, Any]
"""Hashes of 8 bytes, sorted, each once."""
SIZE = 8192
"""Most hashes of a sketch, 64 KiB."""
COPIES = 0.01
"""Share of the documents that are held out that may be copies of what was trained on: boilerplate,
such as an empty module, is in many texts."""


def hash_text(text: str) -> int:
    """Return a hash of 8 bytes of a text without the white space around it."""
    return int.from_bytes(blake2b(text.strip().encode(), digest_size=8).digest(), "little")


@final
class Sketch:
    """The ``SIZE`` smallest hashes of documents, by which others are looked up later.

    Of up to ``SIZE`` documents it has all. Of n more it has each with a probability of SIZE / n, so
    that of m copies none is found with a probability of (1 - SIZE / n)^m: of 20 copies among
    20,000 documents, 3e-5; among 100,000, 0.18. What is in no sketch is never taken for a copy.
    """

    def __init__(self, hashes: Iterable[int] = ()) -> None:
        self._hashes: set[int] = set()
        for number in hashes:
            self.add(number)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Sketch":
        """Return the sketch of some texts."""
        return cls(map(hash_text, texts))

    @classmethod
    def merged(cls, sketches: Iterable["Sketch"]) -> "Sketch":
        """Return the sketch of the documents of several."""
        return cls(number for sketch in sketches for number in sketch.hashes.tolist())

    def add(self, number: int) -> None:
        """Add the hash of a document."""
        self._hashes.add(number)
        if len(self._hashes) == 2 * SIZE:
            self._hashes = set(self.hashes.tolist())

    @property
    def hashes(self) -> Hashes:
        """The hashes, sorted."""
        return np.array(sorted(self._hashes)[:SIZE], "<u8")

    def copies_in(self, learnt: "Sketch") -> bool:
        """Return whether more than ``COPIES`` of these documents are among those of another text:
        of those below its largest hash, which it would have."""
        ours, theirs = self.hashes, learnt.hashes
        if len(theirs) == SIZE:
            ours = ours[ours <= theirs[-1]]
        return bool(len(ours)) and float(np.isin(ours, theirs).mean()) > COPIES

    def to_text(self) -> str:
        """Return the sketch as it stands in JSON."""
        return base64.b64encode(self.hashes.tobytes()).decode()

    @classmethod
    def from_text(cls, text: str) -> "Sketch":
        """Return the sketch that ``to_text`` wrote."""
        return cls(np.frombuffer(base64.b64decode(text), "<u8").tolist())
