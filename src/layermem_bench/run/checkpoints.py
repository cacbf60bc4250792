"""Checkpoints of a run: the model as ``save_pretrained`` writes it, and ``training.pt`` beside it.

One process writes both in full, so that any number of processes goes on from them, sharded or not.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from layermem_bench.config.run import Run
from layermem_bench.run.processes import whole
from layermem_bench.run.trained_models import ORIGIN

_TRAINING = "training.pt"


def whole_weights(model: Any) -> dict[str, Any] | None:
    """Return the weights of a sharded model in full, None of another, which holds them itself;
    every process must call this."""
    if not isinstance(model, FSDPModule):
        return None
    state: dict[str, Any] = model.state_dict()  # type: ignore[attr-defined]
    weights = {name: whole(value) for name, value in state.items()}
    # A tied head is the embedding, which is saved under its own name.
    return {name: value for name, value in weights.items() if name not in _tied_names(model)}


def whole_moments(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """Return the moments of each parameter in full; every process must call this."""
    return {
        number: {name: whole(value) for name, value in values.items()}
        for number, values in optimizer.state_dict()["state"].items()
    }


def random_state(accelerator: Accelerator) -> dict[str, Tensor]:
    """Return the state of each process's random numbers; every process must call this."""
    states = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return {
        name: accelerator.gather(state[None].to(accelerator.device)).cpu()
        for name, state in states.items()
    }


def save_training(
    checkpoint: Path, run: Run, moments: Any, progress: Mapping[str, Any], random: Any
) -> None:
    """Write what a run needs beside the model to go on from its checkpoint; ``progress``: step, sum
    of the losses since the last row of metrics, step of that row, step and loss of the best
    validation."""
    state = {"moments": moments, "progress": progress, "random": random}
    torch.save(state, checkpoint / _TRAINING)
    (checkpoint / ORIGIN).write_text(json.dumps({"run_id": run.id}) + "\n", encoding="utf-8")


def load_training(checkpoint: Path, run: Run) -> Any:
    """Return moments, progress and random states of a checkpoint of this run, by these names."""
    run_id = json.loads((checkpoint / ORIGIN).read_text(encoding="utf-8"))["run_id"]
    if run_id != run.id:
        raise ValueError(f"{checkpoint} is of the run {run_id}, and this is {run.id}: delete it")
    return torch.load(checkpoint / _TRAINING, map_location="cpu", weights_only=True)


def load_weights(checkpoint: Path, model: Any) -> None:
    """Load a checkpoint's weights into the model, before it is sharded or wrapped."""
    weights: dict[str, Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        weights |= load_file(file)
    result = model.load_state_dict(weights, strict=False)
    other = {*result.missing_keys, *result.unexpected_keys} - {*_tied_names(model)}
    if other:
        raise ValueError(
            f"{checkpoint} does not hold the model's weights ({', '.join(sorted(other))}): delete "
            "it to go on from the checkpoint before it"
        )


def load_moments(optimizer: Optimizer, moments: Mapping[int, Mapping[str, Any]]) -> None:
    """Load moments into the optimizer, each divided as its parameter is; rates and other settings
    stay, which the run says."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = {
        number: {name: _divided(value, parameters[number]) for name, value in values.items()}
        for number, values in moments.items()
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _divided(value: Any, parameter: nn.Parameter) -> Any:
    """Return this process's part of a parameter's moment."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    # Every process has read the whole, so that none is sent anything.
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def _tied_names(model: Any) -> list[str]:
    return list(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else []


def set_random_state(states: Mapping[str, Tensor], accelerator: Accelerator) -> None:
    """Have this process draw the numbers that it would have drawn next, if there were as many."""
    if len(states["cpu"]) != accelerator.num_processes:
        return
    # A copy: torch crashes on a row of a matrix.
    own = {name: rows[accelerator.process_index].clone() for name, rows in states.items()}
    torch.set_rng_state(own["cpu"])
    if "cuda" in own and accelerator.device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"])
