"""What two processes do, for test_processes.py: run by torchrun, writes what it saw as JSON.

torchrun --nproc-per-node 2 processes.py PROBE FOLDER
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from small_run import UNEVEN, a_run, curve
from torch.utils._python_dispatch import TorchDispatchMode

from layermem.train.run import train
from layermem.train.sharded import ShardedTrainer
from layermem.train.trainer import Trainer


def copied(folder):
    """DDP: how it was set up."""
    seen = {}
    step = Trainer.training_step

    def watched(self, model, *args, **kwargs):
        group = torch.distributed.group.WORLD
        seen["kind"] = type(model).__name__
        seen["looks for unused parameters"] = model.find_unused_parameters
        seen["timeout"] = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        return step(self, model, *args, **kwargs)

    Trainer.training_step = watched
    run = a_run(folder, max_steps=2, eval_every=2, save_every=0, compute={"ddp_timeout": 77})
    return {"curve": curve(train(run, folder / "copied")), **seen}


def sharded(folder):
    """FSDP2: what a step sends, and the curve, by what is kept whole, in both precisions."""
    sent = counting()
    seen = {}
    for precision, kept, micro, *more in (
        ("float32", "nothing", 4),
        ("float32", "nothing", 1),
        ("float32", "gradients", 1),
        ("float32", "all", 1, {"loss_chunk": 7}),
        ("bfloat16", "nothing", 1),
        ("bfloat16", "all", 1, {"checkpoint_activations": True}),
    ):
        name = f"{precision} {kept} {micro}"
        compute = {"precision": precision, "keep_whole": kept, "micro_batch": micro, "shard": True}
        # Validated and saved at the same step, and trained on.
        run = a_run(folder, **UNEVEN, compute=compute | (more[0] if more else {}))
        rows = curve(train(run, folder / "sharded" / name.replace(" ", "-")))
        seen[name] = {"curve": rows, "sent": sent.seen}
    return seen


def counting():
    """Have the collectives of a run's second step counted, and their bytes."""
    sent = Sent()
    step = ShardedTrainer.training_step

    def counted(self, *args, **kwargs):
        if self.state.global_step == 0:
            sent.reset()
        with sent if self.state.global_step == 1 else nullcontext():
            return step(self, *args, **kwargs)

    ShardedTrainer.training_step = counted
    return sent


class Sent(TorchDispatchMode):
    """Count the calls of collectives, and the bytes of the whole tensor."""

    NAMES = {"c10d::_allgather_base_": ("gathers", 0), "c10d::_reduce_scatter_base_": ("sums", 1)}

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.seen = {"gathers": 0, "gathered": 0, "sums": 0, "summed": 0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name in self.NAMES:
            what, place = self.NAMES[function._schema.name]
            self.seen[what] += 1
            size = args[place].numel() * args[place].itemsize
            self.seen["gathered" if what == "gathers" else "summed"] += size
        return function(*args, **(kwargs or {}))


if __name__ == "__main__":
    seen = globals()[sys.argv[1]](Path(sys.argv[2]))
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[2], f"{sys.argv[1]}.json").write_text(json.dumps(seen), encoding="utf-8")
