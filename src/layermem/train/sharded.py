"""The trainer with parameters, gradients and optimiser states sharded over processes (FSDP2).

Every layer is a unit of torch's ``fully_shard``, on CPUs as on GPUs. A checkpoint holds the model
whole, for whoever loads it, and beside it ``sharded/``, of which every process writes its own part.
Weights are loaded before they are sharded, the optimiser's moments after (``checkpoints``).

It does not know: how parts are gathered and reduced.
"""

from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers.trainer import SCHEDULER_NAME

from layermem.train import checkpoints
from layermem.train.trainer import Trainer


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
        if self.model.config.tie_word_embeddings:
            # A tied head is the embedding, which is saved already.
            for name in self.model._tied_weights_keys or ():
                state.pop(name, None)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        checkpoints.save_sharded(Path(output_dir), self.model, self.bare_optimizer())
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)
