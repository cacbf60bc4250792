"""The trainer with parameters, gradients and optimiser states sharded over processes (FSDP2).

Every layer is a unit of torch's ``fully_shard``, on CPUs as on GPUs. A checkpoint holds the model
whole, for whoever loads it, and beside it ``sharded/``, written and read by every process for its
own part (torch.distributed.checkpoint), in any number of processes.

It does not know: how parts are gathered and reduced.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers.trainer import SCHEDULER_NAME

from layermem.train.trainer import Trainer

_FOLDER = "sharded"


class ShardedTrainer(Trainer):
    """The same run, sharded."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        prepare = self.accelerator.prepare_model
        # As for evaluation: precision and compilation, and no copy for every process (DDP).
        self.accelerator.prepare_model = lambda model, **_: prepare(
            model, device_placement=False, evaluation_mode=True
        )

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None:
            self._shard()
        return super().create_optimizer(model)

    def _shard(self) -> None:
        device = self.args.device.type
        mesh = init_device_mesh(device, (self.args.world_size,))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        if not all(isinstance(parameter, DTensor) for parameter in self.model.parameters()):
            raise RuntimeError("parameters were not sharded: this torch's fully_shard did nothing")

    def own_metrics(self) -> dict[str, float]:
        """Nothing: no process has the routers whole."""
        return {}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Gather the model and have one process write it."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.model, options=options)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        model, optimizer = get_state_dict(self.model, self._own_optimizer())
        folder = Path(output_dir) / _FOLDER
        save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Do nothing yet: weights come with the optimiser, once there is one."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizer = self._own_optimizer()
        model_state, optimizer_state = get_state_dict(self.model, optimizer)
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
        load(state, checkpoint_id=Path(checkpoint) / _FOLDER)
        set_state_dict(
            self.model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        scheduler = torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True)
        self.lr_scheduler.load_state_dict(scheduler)

    def _own_optimizer(self) -> Any:
        """The optimiser itself, out of accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)
