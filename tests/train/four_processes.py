"""What four processes do for a test: two copies of a model, each sharded over two processes.

Started with the variables of torchrun: four_processes.py FOLDER
"""

import sys
from pathlib import Path

import torch
from forked import leave
from small_run import UNEVEN, a_run, rewound
from torch import distributed
from torch.distributed.tensor import Replicate, Shard

from layermem_bench.train.run import train
from layermem_bench.train.sharded import ShardedTrainer


def check_placements(self, model, *args, step=ShardedTrainer.training_step, **kwargs):
    """Take a step of a model that is both copied and sharded."""
    parameter = next(model.parameters())
    # What is kept whole is so from the first micro-batch on.
    if self.state.global_step == 0 and self.run.compute.keep_whole == "nothing":
        assert parameter.placements == (Replicate(), Shard(0))
        assert parameter.device_mesh.shape == (2, 2)
    return step(self, model, *args, **kwargs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    ShardedTrainer.training_step = check_placements
    compute = {"shard": True, "replicas": 2, "micro_batch": 1}
    for kept in ("nothing", "all"):
        run = a_run(folder, **UNEVEN, compute={**compute, "keep_whole": kept}, keep=9)
        train(run, folder / kept)
    # From a checkpoint that copies and shards have written together.
    if distributed.get_rank() == 0:
        rewound(folder / "nothing", folder / "resumed", 2)
    distributed.barrier()
    train(a_run(folder, **UNEVEN, compute=compute, keep=9), folder / "resumed", resume=True)
    leave(folder)
