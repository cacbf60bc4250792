"""What stands for the data a run learnt from and is validated by: one digest, alike for alike data.

A config names data by where it lies, and what lies there may change: a file that is edited, a
folder seen from elsewhere, the standard library of another Python.

It does not know: runs, what is done where digests differ.
"""

import hashlib
import json
from collections.abc import Sequence

from layermem.data.blocks import Blocks
from layermem.train.problem_dataset import Problems


def data_digest(*splits: Blocks | Problems) -> str:
    """Return twelve hexadecimal digits that stand for the splits."""
    return _short([_of(split) for split in splits])


def problems_digest(prompts: Sequence[str]) -> str:
    """Return the same for problems that were solved, in their order."""
    return _short(list(prompts))


def _of(split: Blocks | Problems) -> object:
    if isinstance(split, Blocks):
        # Its folder is called after all that prepared tokens are made of.
        return [split.prepared.path.parent.name, split.prepared.path.name, len(split)]
    return [list(map(list, sequence)) for sequence in split.sequences]


def _short(told: object) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
