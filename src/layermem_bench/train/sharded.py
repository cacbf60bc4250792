"""The trainer with parameters, gradients and optimizer states divided over processes.

A model may be copied, sharded (FSDP2) and shared by its heads (tensor parallelism), each over one
dimension of a mesh of processes. Copies are FSDP2's too, with shards of one process.

Every layer is a unit of torch's ``fully_shard``. The root unit, gathered once a forward, holds the
embeddings and the head. In bfloat16 the weights of linear layers are gathered in bfloat16, as
autocast would cast them, and all others in float32, so that a run computes what the unsharded run
does; gradients are summed in float32. A checkpoint also holds the full model, to be loaded as any.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers.trainer import SCHEDULER_NAME

from layermem.models.tensor_parallel import share_weights
from layermem_bench.config.precision import uses_bfloat16
from layermem_bench.train import checkpoints
from layermem_bench.train.processes import mesh_shape
from layermem_bench.train.trainer import Trainer


class ShardedTrainer(Trainer):
    """The training loop of one sharded run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.run.compute.async_checkpoints:
            ranks = {"all": None, "alone": [0]}
            limit = timedelta(seconds=self.run.compute.ddp_timeout)
            self._groups = {
                name: distributed.new_group(members, backend="gloo", timeout=limit)
                for name, members in ranks.items()
            }

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # Under these names accelerate gives the processes of a "tp" group the same sequences.
        self.accelerator.state.device_mesh = init_device_mesh(
            self.args.device.type,
            mesh_shape(self.run.compute, self.args.world_size),
            mesh_dim_names=("dp_replicate", "dp_shard", "tp"),
        )
        prepare = self.accelerator.prepare_model
        # Prepared as for evaluation: precision and compilation, but no DistributedDataParallel.
        self.accelerator.prepare_model = lambda model, **_: prepare(
            model, device_placement=False, evaluation_mode=True
        )

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None:
            self._shard()
        return super().create_optimizer(model)

    def _shard(self) -> None:
        whole_mesh = self.accelerator.state.device_mesh
        copies, shards, degree = whole_mesh.shape
        if degree > 1:
            # Each process would warn that norms and whole weights take two collectives.
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
            share_weights(self.model, whole_mesh["tp"])
        if copies * shards == 1:
            return
        mesh = whole_mesh["dp_replicate", "dp_shard"] if copies > 1 else whole_mesh["dp_shard"]
        policy = MixedPrecisionPolicy()
        if uses_bfloat16(self.run.compute.precision):
            # What autocast leaves in float32, but for embeddings, is one small unit, gathered from
            # the first norm to the end of the backward.
            parts = [m for m in self.model.model.modules() if list(m.parameters(recurse=False))]
            kept = [m for m in parts if not isinstance(m, nn.Linear | nn.Embedding)]
            fully_shard(kept, mesh=mesh, reshard_after_forward=False)
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh)
        if not all(isinstance(parameter, DTensor) for parameter in self.model.parameters()):
            raise RuntimeError("parameters were not sharded: this torch's fully_shard did nothing")
        if self.run.compute.keep_whole == "all":
            self.model.set_reshard_after_forward(False)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Scatter gradients and free weights after each micro-batch, unless ``compute.keep_whole``
        keeps them in full until a step's last one."""
        keep_whole, is_last = self.run.compute.keep_whole, self.accelerator.sync_gradients
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(is_last or keep_whole == "nothing")
            self.model.set_requires_all_reduce(is_last)
            self.model.set_reshard_after_backward(is_last or keep_whole != "all")
        return super().training_step(*args, **kwargs)

    def variant_metrics(self) -> dict[str, float]:
        """Return no metrics where no process holds the full routers."""
        return {} if isinstance(self.model, FSDPModule) else super().variant_metrics()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Gather the model and have one process write it."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        if self.args.should_save:
            self._save_whole(str(output_dir), state)

    def _save_whole(self, output_dir: str, state: dict[str, Any]) -> None:
        if self.model.config.tie_word_embeddings:
            # A tied head is the embedding, which is saved under its own name.
            for name in self.model._tied_weights_keys or ():
                state.pop(name, None)
        self._save(output_dir, state_dict=state)

    def begin_writing(self, checkpoint: Path) -> Callable[[], None]:
        return checkpoints.begin_sharded(
            checkpoint, self.model, self.unwrapped_optimizer(), self._groups, self._save_whole
        )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        checkpoints.save_sharded(Path(output_dir), self.model, self.unwrapped_optimizer())
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)
