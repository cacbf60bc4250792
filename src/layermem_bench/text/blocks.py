"""What training reads: prepared tokens as blocks, and a sketch of the documents in them.

The same files serve every block size. A document is known by its text without the white space
around it. A text that says the same in other words, or that is cut into other documents (a line
for each in place of a file), is another.

Letters: T tokens of a block.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

META = "meta.json"
"""File of a prepared folder that says what its splits hold."""
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

    def add(self, number: int) -> None:
        """Add the hash of a document."""
        self._hashes.add(number)
        if len(self._hashes) == 2 * SIZE:
            self._hashes = set(self.hashes.tolist())

    @property
    def hashes(self) -> np.ndarray[Any, Any]:
        """The hashes, sorted, each once."""
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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The tokens of one split."""

    path: Path
    dtype: str
    """uint16 or uint32."""
    tokens: int
    documents: int
    end: int
    """Id of the end token, which follows every document."""
    sketch: str = ""
    """Hashes of its documents (``Sketch``)."""
    left_out: int = 0
    """Documents that are not in this split because the validation split holds copies of them."""

    @classmethod
    def read(cls, folder: Path, split: str) -> "Prepared":
        """Return a split of a folder, whose file must have the size of its tokens."""
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        prepared = cls(path=folder / f"{split}.bin", **meta[split])
        if prepared.path.stat().st_size != prepared.tokens * np.dtype(prepared.dtype).itemsize:
            raise ValueError(f"{prepared.path} is damaged; delete {folder} to have it made again")
        return prepared

    def array(self) -> np.ndarray[Any, Any]:
        """Return the tokens, mapped into memory."""
        return np.memmap(self.path, self.dtype, mode="r").view(np.ndarray)


class Blocks(Dataset[dict[str, Tensor]]):
    """Blocks of T tokens: ``input_ids``, ``labels`` [T]; with ``isolate``, ``position_ids``."""

    def __init__(
        self,
        prepared: Prepared,
        block_size: int,
        *,
        isolate: bool = False,
        at_most: int | None = None,
    ) -> None:
        if prepared.tokens < block_size:
            raise ValueError(
                f"{prepared.path.stem} has {prepared.tokens:,} tokens, less than one block of "
                f"{block_size}; give more text or a smaller data.block_size"
            )
        self.prepared, self.block_size, self.isolate = prepared, block_size, isolate
        self.length = float(block_size)
        complete = prepared.tokens // block_size
        self.count = complete if at_most is None else min(complete, at_most)
        self.documents = Sketch.from_text(prepared.sketch)
        # The folder's name begins with a digest of the text and of how it was prepared.
        self.text_digest = prepared.path.parent.name.partition("-")[0]

    @cached_property
    def tokens(self) -> np.ndarray[Any, Any]:
        """All tokens of the split."""
        return self.prepared.array()

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the file itself.
        return {name: value for name, value in vars(self).items() if name != "tokens"}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index * self.block_size
        ids = torch.from_numpy(self.tokens[start : start + self.block_size].astype(np.int64))
        if not self.isolate:
            return {"input_ids": ids, "labels": ids.clone()}
        # Positions count from zero again after every end token.
        places, starts = torch.arange(self.block_size), torch.zeros_like(ids)
        starts[1:] = torch.where(ids[:-1] == self.prepared.end, places[1:], 0)
        positions = places - starts.cummax(0).values
        # A document's first token cannot be predicted from the document before it.
        labels = ids.masked_fill(positions == 0, -100)
        return {"input_ids": ids, "labels": labels, "position_ids": positions}

    def identity(self) -> object:
        """Return what the blocks are recognised by; the folder's name is a digest of their text."""
        return [self.text_digest, self.prepared.path.name, len(self)]

    @staticmethod
    def collate(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Stack blocks into a batch [B, T]; nothing is padded, so there is no attention mask."""
        return {name: torch.stack([item[name] for item in items]) for name in items[0]}
