"""Sequences of tokens as the trainer gets them: how they are padded, their order, their digests.

A config names data by its place, and the contents of that place may change: a file is edited, a
folder is mounted elsewhere, another Python has another standard library. So may the weights of a
saved model that a run starts from (``weights_digest``).

There are two digests of data, both kept in files of recorded runs, so that neither can take the
place of the other. ``data_digest`` (config.yaml) identifies whole splits by how they were prepared.
``sequences_digest`` (origin.json of a checkpoint) reads the sequences themselves, as the trainer
gets them, and so notices a change of what cuts or encodes them too.
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

IGNORED = -100
"""Label of a token that has no loss."""
# Suffixes of files with weights.
_WEIGHTS = (".safetensors", ".bin")
# Sequences of a dataset that ``sequences_digest`` reads, spread evenly over it.
_MAX_SEQUENCES = 4096


class SequenceDataset(Protocol):
    """A dataset of token sequences: ``input_ids`` and ``labels`` of each."""

    length: float
    """Mean number of tokens in a sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Tensor]: ...

    def identity(self) -> object:
        """Return what ``data_digest`` recognises the split by, as JSON would hold it."""


class PaddedSequences(Dataset[dict[str, Tensor]]):
    """Sequences of different lengths: ``input_ids`` [T] and ``labels`` [T] or [], among others."""

    def __init__(
        self, items: Sequence[Mapping[str, Any]], padding: int, *, has_mask: bool = True
    ) -> None:
        self.items, self.padding, self.has_mask = items, padding, has_mask
        self.length = sum(len(item["input_ids"]) for item in items) / len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item = self.items[index]
        return {name: torch.as_tensor(item[name], dtype=torch.long) for name in item}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad to the longest sequence, on the right, where a causal model needs no mask."""
        padding = {"input_ids": self.padding, "token_type_ids": 0, "labels": IGNORED}
        batch = {}
        for name in items[0]:
            values = [item[name] for item in items]
            is_sequence = values[0].ndim > 0
            batch[name] = (
                pad_sequence(values, True, padding[name]) if is_sequence else torch.stack(values)
            )
        if self.has_mask:
            ones = [torch.ones_like(item["input_ids"]) for item in items]
            batch["attention_mask"] = pad_sequence(ones, True, 0)
        return batch

    def identity(self) -> object:
        return [
            [np.atleast_1d(item[name]).tolist() for name in ("input_ids", "labels")]
            for item in self.items
        ]


class DataOrder(Sampler[int]):
    """Yield ``length`` indices of a dataset of ``dataset_size`` sequences, drawn from a seed.

    Each epoch is a permutation of its own. The run takes its sequences from the chain of these
    permutations, so that every step has a full batch, and the order is the same for any number of
    processes and any micro-batch. Two variants with one seed see the same batches.

    torch's ``RandomSampler`` with ``num_samples`` draws the same permutations, but its generator
    keeps its state: a second pass over it has another order. accelerate also replaces that class or
    synchronizes its generator. Here every pass starts from the seed.
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


def padding_of(tokenizer: Any) -> int:
    """Return the id that sequences are padded with: that of the end, where there is no other."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    found = next((each for each in ids if each is not None), None)
    if found is None:
        raise ValueError(
            "the tokenizer has neither a padding token nor an end token; give it one: "
            "tokenizer.pad_token = ..., tokenizer.save_pretrained(...)"
        )
    return int(found)


def data_digest(*splits: SequenceDataset) -> str:
    """Return twelve hexadecimal digits that identify the splits."""
    return _short_digest([split.identity() for split in splits])


def prompts_digest(prompts: Sequence[str]) -> str:
    """Return twelve hexadecimal digits that identify the solved problems, in their order."""
    return _short_digest(list(prompts))


def weights_digest(source: str | None) -> str | None:
    """Return twelve hexadecimal digits that identify the weights in a saved model's folder.

    None: there is no such folder; a model on the hub is identified by its name and revision.
    """
    if source is None or not Path(source).is_dir():
        return None
    files = []
    for path in sorted(p for p in Path(source).iterdir() if p.suffix in _WEIGHTS):
        with path.open("rb") as file:
            files.append([path.name, hashlib.file_digest(file, "sha256").hexdigest()])
    return _short_digest(files)


def _short_digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def sequences_digest(data: SequenceDataset) -> str:
    """Return the SHA-256 of a dataset's size and of up to 4,096 of its sequences."""
    count = len(data)
    digest = hashlib.sha256(str(count).encode())
    for index in _spread_indices(count):
        for name, tensor in sorted(data[index].items()):
            digest.update(f"{name} {tensor.shape}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def _spread_indices(count: int) -> Iterable[int]:
    if count <= _MAX_SEQUENCES:
        return range(count)
    return (number * (count - 1) // (_MAX_SEQUENCES - 1) for number in range(_MAX_SEQUENCES))
