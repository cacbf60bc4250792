"""Sequences of tokens as the loop gets them: their order, and digests of what a run reads."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from layermem.models.hub import find_commit
from layermem_bench.config.hashing import file_digest
from layermem_bench.config.run import Run
from layermem_bench.data.blocks import Blocks
from layermem_bench.data.document_hashes import Sketch

IGNORED = -100
"""Label of a token that has no loss."""


class SequenceDataset(Protocol):
    """A dataset of token sequences: ``input_ids`` and ``labels`` of each."""

    length: float
    """Mean number of tokens in a sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Tensor]: ...

    @property
    def documents(self) -> Sketch:
        """Texts, records or problems of files that the split has; none: its problems are drawn."""

    def identity(self) -> object:
        """Return what ``data_digest`` recognises the split by, as JSON would hold it."""


class DataOrder:
    """Yields ``length`` indices of a dataset of ``dataset_size`` sequences, drawn from a seed.

    They are a chain of permutations, so that every step has a full batch, in an order that depends
    on neither processes, micro-batch nor variant.
    """

    def __init__(self, dataset_size: int, length: int, seed: int) -> None:
        self.dataset_size, self.length, self.seed = dataset_size, length, seed

    def __iter__(self) -> Iterator[int]:
        generator, remaining = torch.Generator().manual_seed(self.seed), self.length
        while remaining > 0:
            epoch = torch.randperm(self.dataset_size, generator=generator)[:remaining].tolist()
            yield from epoch
            remaining -= len(epoch)


def order_of(data: SequenceDataset, length: int, seed: int) -> DataOrder:
    """Return the order in which ``length`` sequences of a dataset are trained on."""
    return DataOrder(len(data), length, seed)


def data_digest(*splits: SequenceDataset) -> str:
    """Return twelve hexadecimal digits that identify the splits."""
    return _short_digest([split.identity() for split in splits])


def text_digest(data: SequenceDataset) -> str | None:
    """Return what identifies the text of blocks, which needs no tokens to be compared; None: the
    sequences are of no text."""
    return data.text_digest if isinstance(data, Blocks) else None


def prompts_digest(prompts: Sequence[str]) -> str:
    """Return twelve hexadecimal digits that identify the solved problems, in their order."""
    return _short_digest(list(prompts))


def starting_weights(run: Run) -> str | None:
    """Return what identifies the weights that a run begins with; None: new ones, or not known."""
    return weights_digest(run.model.pretrained or run.host.model, run.host.revision)


def weights_digest(source: str | None, revision: str | None = None) -> str | None:
    """Return twelve hexadecimal digits that identify the weights in a folder, or the commit of a
    model on the hub; None: there is no model, or its commit cannot be found."""
    if source is None:
        return None
    if not Path(source).is_dir():
        return find_commit(source, revision=revision)
    files = [path for path in Path(source).iterdir() if path.suffix in (".safetensors", ".bin")]
    return _short_digest([[path.name, file_digest(path)] for path in sorted(files)])


def _short_digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
