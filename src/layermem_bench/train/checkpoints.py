"""Checkpoints: the optimizer's state, what a run had logged, and where each checkpoint came from.

The optimizer has one of two layouts: ``optimizer.pt``, or ``sharded/``, where every process wrote
its own part; either is loaded under any number of processes, sharded or not. ``origin.json`` has
the run, and digests of its data and of the weights that it started from.
"""

import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint import state_dict as sharding
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from transformers import AutoConfig, PreTrainedConfig, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from layermem.models.configuration import LINEAGE
from layermem_bench.analysis.earlier_stages import ORIGIN
from layermem_bench.config.run import Run, run_from_dict, to_dict
from layermem_bench.config.run_identity import differences
from layermem_bench.results.run_folder import RunFolder, step_of
from layermem_bench.train.extending import extends, last_stable_step
from layermem_bench.train.sequences import (
    SequenceDataset,
    sequences_digest,
    starting_weights,
)

logger = logging.getLogger(__name__)
SHARDED = "sharded"
_UNLOGGED = "unlogged.json"
# Fields of a model's config with a share of activations that training sets to zero.
_IS_DROPOUT = re.compile("(dropout|_pdrop|dropout_prob)$")
# Fields of a model's config that do not change what the model computes, and the tokenizer's ids;
# memory that is attached to it is the run's.
_IGNORED_MODEL_FIELDS = {
    *(LINEAGE, "architectures", "dtype", "transformers_version", "use_cache"),
    *("_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id"),
}


def save_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Save this process's part of the weights and of the optimizer's moments."""
    weights, moments = sharding.get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": moments}, checkpoint_id=folder / SHARDED)


def begin_sharded(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    groups: Mapping[str, Any],
    save_model: Callable[[str, dict[str, torch.Tensor]], None],
) -> Callable[[], None]:
    """Copy this process's part of the weights and moments; return what ends the writing of it.

    ``groups``: gloo groups for the threads that write, "all" processes and the first one "alone".
    The first process reads the whole weights back from the files, so that training sends nothing.
    """
    weights, moments = sharding.get_state_dict(model, optimizer)
    tensors: Any = weights.items()
    shapes = {name: (weight.shape, weight.dtype) for name, weight in tensors}
    state = {"model": weights, "optimizer": moments}
    writing: Any = async_save(state, checkpoint_id=folder / SHARDED, process_group=groups["all"])

    def write() -> None:
        writing.result()
        if distributed.get_rank() == 0:
            read = {name: torch.empty(s, dtype=dtype) for name, (s, dtype) in shapes.items()}
            load(
                {"model": read},
                checkpoint_id=folder / SHARDED,
                process_group=groups["alone"],
            )
            save_model(str(folder), read)

    return write


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Load a checkpoint's moments and learning rates into the optimizer, from either layout."""
    if (checkpoint / SHARDED).is_dir():
        moments = sharding.get_optimizer_state_dict(model, optimizer)
        state = {"optimizer": moments}
        alone = not distributed.is_initialized()
        with warnings.catch_warnings():
            # One process may read what several have written.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            load(state, checkpoint_id=checkpoint / SHARDED, no_dist=alone)
        sharding.set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
        return
    if not (checkpoint / OPTIMIZER_NAME).is_file():
        raise ValueError(
            f"{checkpoint} holds no optimizer state (neither {OPTIMIZER_NAME} nor {SHARDED}/): a "
            "run cannot go on from it; delete it to go on from the checkpoint before it"
        )
    state = torch.load(checkpoint / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        own = _own_state_by_name(state, model, optimizer)
        sharding.set_optimizer_state_dict(model, optimizer, optim_state_dict=own)
    else:
        optimizer.load_state_dict(state)


def _own_state_by_name(
    state: dict[str, Any], model: nn.Module, optimizer: Optimizer
) -> dict[str, Any]:
    """Return this process's part of an optimizer's state, by the parameters' names and not their
    numbers."""
    parameters = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    name_of: dict[int, str] = {}
    groups = []
    for ours, theirs in zip(optimizer.param_groups, state["param_groups"], strict=True):
        named = [names[id(parameter)] for parameter in ours["params"]]
        name_of |= dict(zip(theirs["params"], named, strict=True))
        groups.append({**theirs, "params": named})
    moments = {}
    for number, values in state["state"].items():
        name = name_of[number]
        own = {key: _own_part(value, parameters[name]) for key, value in values.items()}
        moments[name] = own
    return {"state": moments, "param_groups": groups}


def _own_part(value: Any, parameter: torch.Tensor) -> Any:
    """Return a value of a parameter's state divided as the parameter is."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    # Every process has read the whole, so that none is sent anything.
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def load_schedule(checkpoint: Path, scheduler: Any) -> None:
    """Load the schedule's state, which must be that of the checkpoint's step."""
    state = torch.load(checkpoint / SCHEDULER_NAME, map_location="cpu", weights_only=True)
    step = _trainer_state(checkpoint)["global_step"]
    if step_of(checkpoint) != step:
        raise ValueError(
            f"{checkpoint} is of step {step}: it was renamed; give its old name back, or delete it"
        )
    if state["last_epoch"] != step:
        raise ValueError(
            f"{checkpoint} is of step {step}, its schedule of step {state['last_epoch']}; delete "
            "it to go on from the checkpoint before it"
        )
    scheduler.load_state_dict(state)
    # A run that was extended has another rate at the step where it would have begun to decay.
    factors = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    rates = [base * factor(step) for base, factor in factors]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _trainer_state(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8")))


def load_unlogged_loss(checkpoint: Path) -> tuple[float, int]:
    """Return the sum of the losses since the step that was last logged, and that step."""
    saved = json.loads((checkpoint / _UNLOGGED).read_text(encoding="utf-8"))
    return saved["loss"], saved["last_logged"]


def describe_origin(
    run: Run, data: Mapping[str, SequenceDataset], precision: str
) -> dict[str, Any]:
    """Return the fields of a run, digests of what it reads, and what products are computed in."""
    digests = {name: sequences_digest(split) for name, split in data.items()}
    weights = starting_weights(run)
    return {"run": to_dict(run), "data": digests, "weights": weights, "precision": precision}


def save_record(checkpoint: Path, origin: Mapping[str, Any], loss: float, last_logged: int) -> None:
    """Record what a checkpoint came from, and what ``load_unlogged_loss`` returns."""
    (checkpoint / ORIGIN).write_text(json.dumps(origin, indent=1), encoding="utf-8")
    unlogged = json.dumps({"loss": loss, "last_logged": last_logged})
    (checkpoint / _UNLOGGED).write_text(unlogged, encoding="utf-8")


def check_origin(checkpoint: Path, origin: Mapping[str, Any], config: PreTrainedConfig) -> None:
    """Raise unless a checkpoint came from this run, its data and a model with this config."""
    recorded = json.loads((checkpoint / ORIGIN).read_text(encoding="utf-8"))
    _check_run_and_data(checkpoint, recorded, origin)
    saved = AutoConfig.from_pretrained(checkpoint)
    before, now = (
        {name: value for name, value in c.to_dict().items() if name not in _IGNORED_MODEL_FIELDS}
        for c in (getattr(saved, "host", saved), config)
    )
    changes = [(name, before.get(name), now[name]) for name in now]
    if changes := [change for change in changes if change[1] != change[2]]:
        raise ValueError(
            f"the model is not that of {checkpoint}: {_describe(changes)}. What it started from "
            "(--model.pretrained) or layermem has changed since: put it back, or begin again in "
            "another --out"
        )


def _check_run_and_data(
    checkpoint: Path, recorded: Mapping[str, Any], origin: Mapping[str, Any]
) -> None:
    before, now = run_from_dict(recorded["run"]), run_from_dict(origin["run"])
    if extends(before, now) and step_of(checkpoint) <= last_stable_step(before):
        now = before
    if changes := config_changes(before, now):
        raise ValueError(
            f"{checkpoint} was written by another run: {changes}. Delete it to go "
            "on from the checkpoint before it, or choose another --out"
        )
    start = origin["run"]["model"]["pretrained"] or origin["run"]["host"]["model"]
    _check_weights(
        f"that {checkpoint} was trained from", recorded["weights"], start, origin["weights"]
    )
    # Earlier versions did not record it.
    if (written := recorded.get("precision", origin["precision"])) != origin["precision"]:
        raise ValueError(
            f"{checkpoint} was trained in {written}, and here compute.precision="
            f"{origin['run']['compute']['precision']} is {origin['precision']}: add "
            f"--compute.precision {written}"
        )
    for split, digest in recorded["data"].items():
        if origin["data"].get(split) != digest:
            raise ValueError(
                f"the {split} data is not what {checkpoint} was trained with: its source, its "
                "tokenizer or what makes it has changed since. Put back what it was (a "
                "dataset's --data.revision, the version of layermem that config.yaml names), "
                "or begin again in another --out"
            )


def _check_weights(whose: str, before: str | None, source: str | None, now: str | None) -> None:
    """Raise unless the weights of ``source``, whose digest or commit is ``now``, are those of
    ``before``; None there: an earlier version recorded none of a model on the hub."""
    if before in (None, now):
        return
    if now is None:
        raise ValueError(
            f"which commit of {source} the hub has cannot be asked, and no cache here knows it: "
            f"whether it holds the weights {whose} ({before}) is not known. Go online, or begin "
            "again in another --out"
        )
    raise ValueError(
        f"{source} does not hold the weights {whose} ({before}): put them back, or begin again in "
        "another --out"
    )


def config_changes(before: Run, now: Run) -> str:
    """Describe the differences by which two runs are not one run; empty: there are none."""
    return _describe(differences(before, now))


def _describe(changes: Sequence[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{name} was {old!r}, is {new!r}" for name, old, new in changes)


def check_micro_batches(
    checkpoint: Path, config: PreTrainedConfig, args: TrainingArguments
) -> None:
    """Raise if other processes or micro-batches would change more than rounding."""
    ours = args.world_size, args.train_batch_size
    processes = len(list(checkpoint.glob("rng_state*.pth")))
    theirs = processes, _trainer_state(checkpoint)["train_batch_size"]
    dropouts = {name: p for name, p in config.to_dict().items() if p and _IS_DROPOUT.search(name)}
    if dropouts and ours != theirs:
        name, share = next(iter(dropouts.items()))
        raise ValueError(
            f"{checkpoint} was written by {theirs[0]} processes with micro-batches of {theirs[1]} "
            f"sequences, now there are {ours[0]} with {ours[1]}: {name} ({share}) draws its random "
            "numbers by both; resume it with the processes and the micro-batch it began with"
        )


def restore_rows(checkpoint: Path, folder: RunFolder) -> None:
    """Write the metrics anew from a checkpoint where they are not the rows it was saved after."""
    saved = _trainer_state(checkpoint)["log_history"]
    for row in saved:
        # transformers adds it.
        row.pop("epoch", None)
    # Compared as text, since NaN is not equal to itself.
    if json.dumps(saved, sort_keys=True) != json.dumps(folder.rows(), sort_keys=True):
        logger.warning(
            "%s does not hold the rows that %s was written after; they are restored from there",
            folder.metrics,
            checkpoint,
        )
        folder.write_rows(saved)
