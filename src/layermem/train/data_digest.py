"""Digests of what a run learns from: equal digests mean the same data, or the same weights.

A config names data by its place, and the contents of that place may change: a file is edited, a
folder is mounted elsewhere, another Python has another standard library. So may the weights of a
saved model that a run starts from (``weights_digest``).

There are two digests of data, both kept in files of recorded runs, so that neither can take the
place of the other. ``data_digest`` (config.yaml) identifies whole splits by how they were prepared.
``sequences_digest`` (origin.json of a checkpoint) reads the sequences themselves, as the trainer
gets them, and so notices a change of what cuts or encodes them too.

It does not know: runs, what is done where digests differ.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from layermem.data.blocks import Blocks
from layermem.train.problem_dataset import ProblemDataset
from layermem.train.question_dataset import QuestionDataset
from layermem.train.record_dataset import RecordDataset

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


def data_digest(*splits: Blocks | ProblemDataset | RecordDataset | QuestionDataset) -> str:
    """Return twelve hexadecimal digits that identify the splits."""
    return _short_digest([_split_identity(split) for split in splits])


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


def _split_identity(split: Blocks | ProblemDataset | RecordDataset | QuestionDataset) -> object:
    if isinstance(split, Blocks):
        # The folder's name is itself a digest of all that prepared tokens are made from.
        return [split.prepared.path.parent.name, split.prepared.path.name, len(split)]
    return [list(map(list, sequence)) for sequence in split.sequences]


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
