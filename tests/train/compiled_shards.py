"""What two processes do for a test: a compiled run that is sharded, of more than eight layers.

Started with the variables of torchrun: compiled_shards.py FOLDER
"""

import functools
import json
import sys
from pathlib import Path

import torch
from forked import leave
from small_run import a_run
from torch import distributed
from torch._dynamo.utils import counters

from layermem_bench.train.run import train
from layermem_bench.train.sharded import ShardedTrainer

SEEN = []


def count_versions(self, *args, step=ShardedTrainer.training_step, **kwargs):
    """Take a step, and note how many graphs, breaks and what is left uncompiled there are."""
    loss = step(self, *args, **kwargs)
    frames = counters["frames"]
    SEEN.append(
        {
            "graphs": counters["stats"]["unique_graphs"],
            "breaks": sum(counters["graph_break"].values()),
            "uncompiled": frames["total"] - frames["ok"],
        }
    )
    return loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.compile = functools.partial(torch.compile, backend="eager")
    ShardedTrainer.training_step = count_versions
    folder = Path(sys.argv[1])
    compute = {"compile": True, "shard": True}
    run = a_run(folder, max_steps=3, eval_every=3, model={"num_hidden_layers": 10}, compute=compute)
    train(run, folder / "compiled")
    if distributed.get_rank() == 0:
        (folder / "seen.json").write_text(json.dumps(SEEN), encoding="utf-8")
    leave(folder)
