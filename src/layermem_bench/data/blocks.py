"""Prepared tokens as a dataset of blocks: the same files serve every block size.

Letters: N tokens, T tokens of a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from layermem_bench.data.document_hashes import Sketch

# Files that are mapped at once: a system allows a process some thousand open ones.
_OPEN = 256


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The tokens of one split: a file, or several that are read as one."""

    path: Path
    """Its file; where it has several, NAME.bin are NAME-00000.bin and so on."""
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
    shards: tuple[int, ...] = ()
    """Tokens of each of its files; (): there is one."""

    def array(self) -> "Shards":
        """Return the tokens, mapped into memory where they are read."""
        if not self.shards:
            return Shards([self.path], [self.tokens], self.dtype)
        stem = self.path.stem
        names = [f"{stem}-{i:05d}.bin" for i in range(len(self.shards))]
        return Shards([self.path.with_name(name) for name in names], self.shards, self.dtype)


class Shards:
    """Files of tokens as one array, of which slices can be read."""

    def __init__(self, paths: Sequence[Path], tokens: Sequence[int], dtype: str) -> None:
        filled = [(path, count) for path, count in zip(paths, tokens, strict=True) if count]
        self.paths, self.dtype = [str(path) for path, _ in filled], dtype
        self.ends = np.cumsum([count for _, count in filled], dtype=np.int64)
        self._maps: dict[int, np.ndarray[Any, Any]] = {}

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, part: slice) -> np.ndarray[Any, Any]:
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"tokens are read in a row, got a step of {step}")
        pieces = [np.empty(0, self.dtype)]
        shard = int(np.searchsorted(self.ends, begin, side="right"))
        while begin < end:
            first = int(self.ends[shard - 1]) if shard else 0
            last = min(end, int(self.ends[shard]))
            pieces.append(self._map(shard)[begin - first : last - first])
            begin, shard = last, shard + 1
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def tolist(self) -> list[int]:
        """Return all tokens."""
        return self[:].tolist()

    def _map(self, shard: int) -> np.ndarray[Any, Any]:
        if shard not in self._maps:
            if len(self._maps) >= _OPEN:
                self._maps.pop(next(iter(self._maps)))
            self._maps[shard] = np.memmap(self.paths[shard], dtype=self.dtype, mode="r")
        return self._maps[shard]

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files itself.
        return {**vars(self), "_maps": {}}


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
        self.tokens = prepared.array()
        complete = prepared.tokens // block_size
        self.count = complete if at_most is None else min(complete, at_most)

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

    def first(self, count: int) -> "Blocks":
        """Return the first blocks alone."""
        return Blocks(self.prepared, self.block_size, isolate=self.isolate, at_most=count)

    @staticmethod
    def collate(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Stack blocks into a batch [B, T]; nothing is padded, so there is no attention mask."""
        return {name: torch.stack([item[name] for item in items]) for name in items[0]}


class MixedBlocks(Dataset[dict[str, Tensor]]):
    """Blocks of several sources, one source after the other; ``shares`` of each sum to 1."""

    collate = staticmethod(Blocks.collate)

    def __init__(self, parts: Sequence[Blocks], shares: Sequence[float]) -> None:
        self.parts, self.shares = list(parts), tuple(shares)
        self.length = parts[0].length
        self.ends = np.cumsum([len(part) for part in parts])

    @property
    def sizes(self) -> list[int]:
        """Blocks of each source."""
        return [len(part) for part in self.parts]

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        number = int(np.searchsorted(self.ends, index, side="right"))
        return self.parts[number][index - int(self.ends[number]) + len(self.parts[number])]

    @property
    def documents(self) -> Sketch:
        """Documents of all sources."""
        return Sketch.merged(part.documents for part in self.parts)

    @property
    def text_digest(self) -> str:
        """Digest of each text, with spaces between."""
        return " ".join(part.text_digest for part in self.parts)

    def identity(self) -> object:
        """Return what the blocks and their shares are recognised by."""
        pairs = zip(self.shares, self.parts, strict=True)
        return [[share, part.identity()] for share, part in pairs]

    def in_shares(self, at_most: int | None = None) -> "MixedBlocks":
        """Return as many of the blocks as have the shares: the first ones of each source."""
        pairs = list(zip(self.shares, self.sizes, strict=True))
        total = int(min(size / share for share, size in pairs))
        total = total if at_most is None else min(total, at_most)
        counts = [min(size, max(1, round(share * total))) for share, size in pairs]
        return MixedBlocks(
            [part.first(count) for part, count in zip(self.parts, counts, strict=True)], self.shares
        )


def _positions_in_documents(is_end: Tensor) -> Tensor:
    """Return positions that count from zero again after every end token."""
    places = torch.arange(len(is_end))
    starts = torch.zeros_like(places)
    starts[1:] = torch.where(is_end[:-1], places[1:], 0)
    return places - starts.cummax(0).values
