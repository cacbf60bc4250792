"""What a checkpoint came from: the run's config, the data, the model's config.

A run resumes only from its own checkpoints, with the data it began with.

It does not know: the trainer, what else is in a checkpoint.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, distributed
from transformers import PreTrainedConfig

from layermem.config import Run, run_from_dict, to_dict

# What may differ when a run goes on: how it is carried out, not what it computes.
FREE = {
    "compute",
    "track",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
    "preset",
}
_FILE = "origin.json"
# Sequences of a dataset that are looked at, spread over it evenly; of a smaller one all are.
_SEQUENCES = 4096
# Of a model's config: how it is kept or carried out, not what it computes, and the tokenizer's.
_OUTWARD = {
    "architectures",
    "dtype",
    "transformers_version",
    "use_cache",
    "_name_or_path",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


class _Sequences(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Tensor]: ...


def origin_of(run: Run, data: Mapping[str, _Sequences | None]) -> dict[str, Any]:
    """Return the fields of a run that decide what it computes, and what stands for its data."""
    decisive = {name: value for name, value in to_dict(run).items() if name not in FREE}
    digests = {name: _digest(split) for name, split in data.items() if split is not None}
    return {"run": decisive, "data": digests}


def save_origin(checkpoint: Path, origin: Mapping[str, Any]) -> None:
    """Note in a checkpoint what it came from."""
    (checkpoint / _FILE).write_text(json.dumps(origin, indent=1), encoding="utf-8")


def check_origin(
    checkpoint: Path, origin: Mapping[str, Any], config: PreTrainedConfig | None
) -> None:
    """Raise unless a checkpoint came from this run, its data and a model of this config.

    A checkpoint written before its origin was noted is judged by its model's config alone.
    """
    if (checkpoint / _FILE).exists():
        noted = json.loads((checkpoint / _FILE).read_text(encoding="utf-8"))
        if changed := changes(run_from_dict(noted["run"]), run_from_dict(origin["run"])):
            raise ValueError(
                f"{checkpoint} was written by another run: {'; '.join(changed)}. Delete it to go "
                "on from the checkpoint before it, or choose another --out"
            )
        for split, digest in noted["data"].items():
            if origin["data"].get(split) != digest:
                raise ValueError(
                    f"the {split} data is not what {checkpoint} was trained with: its source, its "
                    "tokenizer or what makes it has changed since. Put back what it was (a "
                    "dataset's --data.revision, the version of layermem that config.yaml names), "
                    "or begin again in another --out"
                )
    if config is None:
        return
    before, now = (
        {name: value for name, value in each.to_dict().items() if name not in _OUTWARD}
        for each in (type(config).from_pretrained(checkpoint), config)
    )
    if changed := [_said(change) for change in differences(before, now)]:
        raise ValueError(
            f"the model is not that of {checkpoint}: {'; '.join(changed)}. What it started from "
            "(--model.pretrained) or layermem has changed since: put it back, or begin again in "
            "another --out"
        )


def check_alike(what: Mapping[str, Any]) -> None:
    """Raise, in all processes, unless all have the same values; all must ask."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, dict(what))
    for name, value in everyone[0].items():
        others = [process for process, theirs in enumerate(everyone) if theirs[name] != value]
        if others:
            raise ValueError(
                f"processes do not see the same {name}: {value!r} in process 0, "
                f"{everyone[others[0]][name]!r} in process {others[0]}. The run folder must be one "
                "that all machines see, and the data the same on each"
            )


def changes(before: Run, now: Run) -> list[str]:
    """Return, in words, what differs between two runs, but for how they are carried out."""
    return [
        _said(change)
        for change in differences(to_dict(before), to_dict(now))
        if change[0].split(".")[0] not in FREE
    ]


def differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return the path, the old and the new value of all that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            found
            for name in now
            for found in differences(before.get(name), now[name], f"{path}.{name}".lstrip("."))
        ]
    return [] if before == now else [(path, before, now)]


def _said(change: tuple[str, Any, Any]) -> str:
    name, old, new = change
    return f"{name} was {old!r}, is {new!r}"


def _digest(data: _Sequences) -> str:
    """Return what stands for a dataset: how many sequences, and those that are looked at."""
    count = len(data)
    found = hashlib.sha256(str(count).encode())
    for index in _spread(count):
        for name, tensor in sorted(data[index].items()):
            found.update(f"{name} {tensor.shape}".encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def _spread(count: int) -> Iterable[int]:
    if count <= _SEQUENCES:
        return range(count)
    return (number * (count - 1) // (_SEQUENCES - 1) for number in range(_SEQUENCES))
