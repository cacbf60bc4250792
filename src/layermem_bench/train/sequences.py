"""Sequences of tokens as the trainer gets them: how they are padded, their order, their digests.

Recorded runs keep two digests of data. ``data_digest`` (config.yaml) identifies whole splits by how
they were prepared. ``sequences_digest`` (origin.json of a checkpoint) reads the sequences
themselves, and so notices a change of what cuts or encodes them too.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from layermem.models.hub import find_commit
from layermem_bench.config.hashing import file_digest
from layermem_bench.config.run import Run
from layermem_bench.data.blocks import Blocks
from layermem_bench.data.document_hashes import Sketch

IGNORED = -100
"""Label of a token that has no loss."""
# Sequences of a dataset that ``sequences_digest`` reads, spread evenly over it.
_MAX_SEQUENCES = 4096


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


class PaddedSequences(Dataset[dict[str, Tensor]]):
    """Sequences of different lengths: ``input_ids`` [T] and ``labels`` [T] or [], among others."""

    def __init__(
        self,
        items: Sequence[Mapping[str, Any]],
        padding: int,
        *,
        has_mask: bool = True,
        documents: Iterable[str] = (),
    ) -> None:
        self.items, self.padding, self.has_mask = items, padding, has_mask
        self.documents = Sketch.of(documents)
        self.length = sum(len(item["input_ids"]) for item in items) / len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item = self.items[index]
        return {name: torch.as_tensor(item[name], dtype=torch.long) for name in item}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad to the longest sequence, on the right, where a causal model needs no mask."""
        padding = {"input_ids": self.padding, "token_type_ids": 0, "labels": IGNORED}
        columns = {name: [item[name] for item in items] for name in items[0]}
        batch = {
            name: pad_sequence(values, True, padding[name])
            if values[0].ndim
            else torch.stack(values)
            for name, values in columns.items()
        }
        if self.has_mask:
            ones = [torch.ones_like(ids) for ids in columns["input_ids"]]
            batch["attention_mask"] = pad_sequence(ones, True, 0)
        return batch

    def identity(self) -> object:
        return [
            [np.atleast_1d(item[name]).tolist() for name in ("input_ids", "labels")]
            for item in self.items
        ]


class DataOrder(Sampler[int]):
    """Yield ``length`` indices of a dataset of ``dataset_size`` sequences, drawn from a seed.

    They are a chain of permutations, so that every step has a full batch, in an order that depends
    on neither processes, micro-batch nor variant. torch's ``RandomSampler`` draws the same, but has
    another order at a second pass, and accelerate replaces it or synchronizes its generator.
    """

    def __init__(self, dataset_size: int, length: int, seed: int) -> None:
        self.dataset_size, self.length, self.seed = dataset_size, length, seed

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        remaining = self.length
        while remaining > 0:
            epoch = torch.randperm(self.dataset_size, generator=generator)[:remaining].tolist()
            yield from epoch
            remaining -= len(epoch)


def order_of(data: SequenceDataset, length: int, seed: int) -> DataOrder:
    """Return the order in which ``length`` sequences of a dataset are trained on."""
    return DataOrder(len(data), length, seed)


def padding_of(tokenizer: Any) -> int:
    """Return the id that sequences are padded with: that of the end, where there is no other."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError(
        "the tokenizer has neither a padding token nor an end token; give it one: "
        "tokenizer.pad_token = ..., tokenizer.save_pretrained(...)"
    )


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


def sequences_digest(data: SequenceDataset) -> str:
    """Return the SHA-256 of a dataset's size and of up to 4,096 of its sequences."""
    count = len(data)
    digest = hashlib.sha256(str(count).encode())
    indices: Iterable[int] = range(count)
    if count > _MAX_SEQUENCES:
        indices = (i * (count - 1) // (_MAX_SEQUENCES - 1) for i in range(_MAX_SEQUENCES))
    for index in indices:
        for name, tensor in sorted(data[index].items()):
            digest.update(f"{name} {tensor.shape}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
