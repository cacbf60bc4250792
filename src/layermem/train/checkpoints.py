"""What a checkpoint holds beside the model: optimizer state, schedule, the loss not yet logged.

It is read under any number of processes, sharded or not, however it was written.

A checkpoint holds the model whole (``model.safetensors``) and the optimiser in one of two layouts:
``optimizer.pt``, whole, or ``sharded/``, of which every process wrote its own part
(torch.distributed.checkpoint).

It does not know: runs, the trainer, when a checkpoint is written.
"""

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
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
    """Write this process's part of the weights and the optimiser's moments."""
    weights, moments = get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": moments}, checkpoint_id=folder / SHARDED)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Give the optimiser the moments and rates of a checkpoint, in whichever layout they are."""
    if (checkpoint / SHARDED).is_dir():
        moments = get_optimizer_state_dict(model, optimizer)
        state = {"optimizer": moments}
        alone = not distributed.is_initialized()
        with warnings.catch_warnings():
            # That one process reads what several wrote is meant.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            load(state, checkpoint_id=checkpoint / SHARDED, no_dist=alone)
        set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
        return
    if not (checkpoint / OPTIMIZER_NAME).is_file():
        raise ValueError(
            f"{checkpoint} holds no optimiser state (neither {OPTIMIZER_NAME} nor {SHARDED}/): a "
            "run cannot go on from it; delete it to go on from the checkpoint before it"
        )
    state = torch.load(checkpoint / OPTIMIZER_NAME, map_location="cpu", weights_only=True)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        named = _by_name(state, model, optimizer, checkpoint)
        whole = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(model, optimizer, optim_state_dict=named, options=whole)
    else:
        optimizer.load_state_dict(state)


def _by_name(
    state: dict[str, Any], model: nn.Module, optimizer: Optimizer, checkpoint: Path
) -> dict[str, Any]:
    """Return an optimiser's state under the names of the parameters in place of their numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ours = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    theirs = [group["params"] for group in state["param_groups"]]
    if list(map(len, ours)) != list(map(len, theirs)):
        raise ValueError(
            f"{checkpoint / OPTIMIZER_NAME} has groups of {list(map(len, theirs))} parameters, the "
            f"run of {list(map(len, ours))}: it is of another model"
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
    """Give the schedule its place; it must be that of the checkpoint's step."""
    state = torch.load(checkpoint / SCHEDULER_NAME, map_location="cpu", weights_only=True)
    progress = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    if step_of(checkpoint) != progress["global_step"]:
        raise ValueError(
            f"{checkpoint} is of step {progress['global_step']}: it was renamed; give it back its "
            "name, or delete it"
        )
    if state["last_epoch"] != progress["global_step"]:
        raise ValueError(
            f"{checkpoint} is of step {progress['global_step']}, its schedule of step "
            f"{state['last_epoch']}; delete it to go on from the checkpoint before it"
        )
    scheduler.load_state_dict(state)


def processes_of(checkpoint: Path) -> tuple[int, int]:
    """Return how many processes wrote a checkpoint, and how many sequences each had at once."""
    progress = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    return len(list(checkpoint.glob("rng_state*.pth"))), int(progress["train_batch_size"])


def rows_of(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics that a run had written when it wrote the checkpoint."""
    progress = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    # transformers has put an epoch to each.
    return [
        {name: value for name, value in row.items() if name != "epoch"}
        for row in progress["log_history"]
    ]


def save_unlogged(checkpoint: Path, loss: float, logged: int) -> None:
    """Note the sum of the losses since the step that was last logged."""
    text = json.dumps({"loss": loss, "last_logged": logged})
    (checkpoint / _UNLOGGED).write_text(text, encoding="utf-8")


def load_unlogged(checkpoint: Path) -> tuple[float, int] | None:
    """Return what ``save_unlogged`` noted; nothing of a checkpoint written before it was."""
    path = checkpoint / _UNLOGGED
    if not path.exists():
        return None
    noted = json.loads(path.read_text(encoding="utf-8"))
    return float(noted["loss"]), int(noted["last_logged"])


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return, as a tensor, whether every number of this process's parts is finite."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    flags = [t.isfinite().all() for t in local if t.is_floating_point()]
    if not flags:
        return torch.tensor(True)
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all()
