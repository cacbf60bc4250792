"""Checks that a resumed run continues its own checkpoint, with the same data and model config.

A checkpoint records its origin in ``origin.json``: the run, and digests of its data and of the
weights that it started from. Which fields of the run must be the same, ``run_identity`` says.
"""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, TrainingArguments

from layermem.config import Run, run_from_dict, to_dict
from layermem.lineage import FIELD, ORIGIN
from layermem.run_identity import differences
from layermem.runs import RunFolder
from layermem.train.checkpoints import logged_rows, process_layout
from layermem.train.sequences import SequenceDataset, sequences_digest, weights_digest

logger = logging.getLogger(__name__)
# Fields of a model's config with a share of activations that training sets to zero.
_IS_DROPOUT = re.compile("(dropout|_pdrop|dropout_prob)$")
# Fields of a model's config that do not change what the model computes, and the tokenizer's ids;
# memory that is attached to it is the run's.
_IGNORED_MODEL_FIELDS = {
    FIELD,
    "layer_memory",
    "architectures",
    "dtype",
    "transformers_version",
    "use_cache",
    "_name_or_path",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def describe_origin(run: Run, data: Mapping[str, SequenceDataset]) -> dict[str, Any]:
    """Return the fields of a run, and digests of what it reads."""
    digests = {name: sequences_digest(split) for name, split in data.items()}
    weights = weights_digest(run.model.pretrained or run.host.model)
    return {"run": to_dict(run), "data": digests, "weights": weights}


def save_origin(checkpoint: Path, origin: Mapping[str, Any]) -> None:
    """Record in a checkpoint what it came from."""
    (checkpoint / ORIGIN).write_text(json.dumps(origin, indent=1), encoding="utf-8")


def check_origin(checkpoint: Path, origin: Mapping[str, Any], config: PreTrainedConfig) -> None:
    """Raise unless a checkpoint came from this run, its data and a model with this config."""
    recorded = json.loads((checkpoint / ORIGIN).read_text(encoding="utf-8"))
    _check_run_and_data(checkpoint, recorded, origin)
    before, now = (
        {name: value for name, value in c.to_dict().items() if name not in _IGNORED_MODEL_FIELDS}
        for c in (AutoConfig.from_pretrained(checkpoint), config)
    )
    if changes := [_describe_change(change) for change in _differences(before, now)]:
        raise ValueError(
            f"the model is not that of {checkpoint}: {'; '.join(changes)}. What it started from "
            "(--model.pretrained) or layermem has changed since: put it back, or begin again in "
            "another --out"
        )


def _check_run_and_data(
    checkpoint: Path, recorded: Mapping[str, Any], origin: Mapping[str, Any]
) -> None:
    changes = config_changes(run_from_dict(recorded["run"]), run_from_dict(origin["run"]))
    if changes:
        raise ValueError(
            f"{checkpoint} was written by another run: {'; '.join(changes)}. Delete it to go "
            "on from the checkpoint before it, or choose another --out"
        )
    if recorded["weights"] != origin["weights"]:
        start = origin["run"]["model"]["pretrained"] or origin["run"]["host"]["model"]
        raise ValueError(
            f"{start} does not hold the weights that {checkpoint} was trained from: put them back, "
            "or begin again in another --out"
        )
    for split, digest in recorded["data"].items():
        if origin["data"].get(split) != digest:
            raise ValueError(
                f"the {split} data is not what {checkpoint} was trained with: its source, its "
                "tokenizer or what makes it has changed since. Put back what it was (a "
                "dataset's --data.revision, the version of layermem that config.yaml names), "
                "or begin again in another --out"
            )


def config_changes(before: Run, now: Run) -> list[str]:
    """Describe each difference by which two runs are not one run."""
    return [_describe_change(change) for change in differences(before, now)]


def _differences(before: Any, now: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return the path, the old value and the new value of everything that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for name in now
            for difference in _differences(
                before.get(name), now[name], f"{path}.{name}".lstrip(".")
            )
        ]
    return [] if before == now else [(path, before, now)]


def _describe_change(change: tuple[str, Any, Any]) -> str:
    name, old, new = change
    return f"{name} was {old!r}, is {new!r}"


def check_micro_batches(
    checkpoint: Path, run: Run, config: PreTrainedConfig, args: TrainingArguments
) -> None:
    """Raise if other processes or micro-batches would change more than rounding.

    Dropout draws its random numbers by both, and a penalty is computed over each micro-batch.
    """
    ours = args.world_size, args.train_batch_size
    theirs = process_layout(checkpoint)
    dropouts = {name: p for name, p in config.to_dict().items() if p and _IS_DROPOUT.search(name)}
    if dropouts and ours != theirs:
        name, share = next(iter(dropouts.items()))
        raise ValueError(
            f"{checkpoint} was written by {theirs[0]} processes with micro-batches of {theirs[1]} "
            f"sequences, now there are {ours[0]} with {ours[1]}: {name} "
            f"({share}) draws its random numbers by process and micro-batch, so "
            "the run would not be the same; resume it with the processes and the micro-batch it "
            "began with"
        )
    if run.regularizer.penalty and ours[1] != theirs[1]:
        raise ValueError(
            f"{checkpoint} was written with micro-batches of {theirs[1]} sequences, now they have "
            f"{ours[1]}: regularizer.penalty={run.regularizer.penalty} is computed over each "
            "micro-batch, so the run would not be the same; resume it with the micro-batch it "
            "began with (--compute.micro_batch)"
        )


def restore_rows(checkpoint: Path, folder: RunFolder) -> None:
    """Write the metrics anew from a checkpoint where they are not the rows it was saved after."""
    saved = logged_rows(checkpoint)
    if list(map(_comparable, saved)) != list(map(_comparable, folder.rows())):
        logger.warning(
            "%s does not hold the rows that %s was written after; they are restored from there",
            folder.metrics,
            checkpoint,
        )
        folder.write_rows(saved)


def _comparable(row: Mapping[str, Any]) -> str:
    # As text, since NaN is not equal to itself.
    return json.dumps(row, sort_keys=True)
