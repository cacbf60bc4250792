"""Prepared tokens as a dataset of blocks: the same files serve every block size.

Letters: T tokens of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from layermem_bench.text.document_hashes import Sketch


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
    """Hashes of its documents (``document_hashes.Sketch``)."""
    left_out: int = 0
    """Documents that are not in this split because the validation split holds copies of them."""

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
        positions = _positions_in_documents(ids == self.prepared.end)
        # A document's first token cannot be predicted from the document before it.
        labels = ids.masked_fill(positions == 0, -100)
        return {"input_ids": ids, "labels": labels, "position_ids": positions}

    def identity(self) -> object:
        """Return what the blocks are recognised by; the folder's name is a digest of their text."""
        return [self.text_digest, self.prepared.path.name, len(self)]

    @property
    def documents(self) -> Sketch:
        """Documents of the split."""
        return Sketch.from_text(self.prepared.sketch)

    @property
    def text_digest(self) -> str:
        """Digest of the text and of how it was prepared, with which its folder's name begins."""
        return self.prepared.path.parent.name.partition("-")[0]

    @staticmethod
    def collate(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Stack blocks into a batch [B, T]; nothing is padded, so there is no attention mask."""
        return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def _positions_in_documents(is_end: Tensor) -> Tensor:
    """Return positions that count from zero again after every end token."""
    places = torch.arange(len(is_end))
    starts = torch.zeros_like(places)
    starts[1:] = torch.where(is_end[:-1], places[1:], 0)
    return places - starts.cummax(0).values
