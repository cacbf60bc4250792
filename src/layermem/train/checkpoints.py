"""The optimizer, the schedule and the loss not yet logged, saved in and loaded from checkpoints.

They are loaded under any number of processes, sharded or not, however they were saved. A checkpoint
holds the full model (``model.safetensors``) and the optimizer in one of two layouts:
``optimizer.pt`` in one file, or ``sharded/``, where every process wrote its own part
(torch.distributed.checkpoint).
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from layermem.runs import step_of

SHARDED = "sharded"
_UNLOGGED = "unlogged.json"


def save_sharded(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Save this process's part of the weights and of the optimizer's moments."""
    weights, moments = get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": moments}, checkpoint_id=folder / SHARDED)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Load a checkpoint's moments and learning rates into the optimizer, from either layout."""
    if (checkpoint / SHARDED).is_dir():
        moments = get_optimizer_state_dict(model, optimizer)
        state = {"optimizer": moments}
        alone = not distributed.is_initialized()
        with warnings.catch_warnings():
            # One process may read what several have written.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            load(state, checkpoint_id=checkpoint / SHARDED, no_dist=alone)
        set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
        return
    if not (checkpoint / OPTIMIZER_NAME).is_file():
        raise ValueError(
            f"{checkpoint} holds no optimizer state (neither {OPTIMIZER_NAME} nor {SHARDED}/): a "
            "run cannot go on from it; delete it to go on from the checkpoint before it"
        )
    state = torch.load(checkpoint / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        named = _state_by_parameter_name(state, model, optimizer, checkpoint)
        full = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(model, optimizer, optim_state_dict=named, options=full)
    else:
        optimizer.load_state_dict(state)


def _state_by_parameter_name(
    state: dict[str, Any], model: nn.Module, optimizer: Optimizer, checkpoint: Path
) -> dict[str, Any]:
    """Return an optimizer's state with the parameters' names in place of their numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ours = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    theirs = [group["params"] for group in state["param_groups"]]
    if list(map(len, ours)) != list(map(len, theirs)):
        raise ValueError(
            f"{checkpoint / OPTIMIZER_NAME} has groups of {list(map(len, theirs))} parameters, the "
            f"run has groups of {list(map(len, ours))}: it belongs to another model"
        )
    name_of = dict(zip(sum(theirs, []), sum(ours, []), strict=True))
    return {
        "state": {name_of[number]: moments for number, moments in state["state"].items()},
        "param_groups": [
            {**group, "params": names}
            for group, names in zip(state["param_groups"], ours, strict=True)
        ],
    }


def load_schedule(checkpoint: Path, scheduler: Any) -> None:
    """Load the schedule's state, which must be that of the checkpoint's step."""
    state = torch.load(checkpoint / SCHEDULER_NAME, map_location="cpu", weights_only=True)
    trainer_state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    if step_of(checkpoint) != trainer_state["global_step"]:
        raise ValueError(
            f"{checkpoint} is of step {trainer_state['global_step']}: it was renamed; give it its "
            "old name back, or delete it"
        )
    if state["last_epoch"] != trainer_state["global_step"]:
        raise ValueError(
            f"{checkpoint} is of step {trainer_state['global_step']}, its schedule of step "
            f"{state['last_epoch']}; delete it to go on from the checkpoint before it"
        )
    scheduler.load_state_dict(state)


def process_layout(checkpoint: Path) -> tuple[int, int]:
    """Return how many processes wrote a checkpoint, and the sequences of their micro-batch."""
    trainer_state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    return len(list(checkpoint.glob("rng_state*.pth"))), int(trainer_state["train_batch_size"])


def logged_rows(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics that a run had logged when it wrote the checkpoint."""
    trainer_state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    # transformers adds an epoch to each.
    return [
        {name: value for name, value in row.items() if name != "epoch"}
        for row in trainer_state["log_history"]
    ]


def save_unlogged_loss(checkpoint: Path, loss: float, last_logged: int) -> None:
    """Save the sum of the losses since the step that was last logged."""
    text = json.dumps({"loss": loss, "last_logged": last_logged})
    (checkpoint / _UNLOGGED).write_text(text, encoding="utf-8")


def load_unlogged_loss(checkpoint: Path) -> tuple[float, int]:
    """Return that sum and that step."""
    saved = json.loads((checkpoint / _UNLOGGED).read_text(encoding="utf-8"))
    return float(saved["loss"]), int(saved["last_logged"])
