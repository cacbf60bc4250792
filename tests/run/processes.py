"""What two processes do for the tests, all in one launch; what they saw is written as JSON.

Started twice with the variables of torchrun, whose own start another test has: processes.py FOLDER
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from forked import leave
from small_run import SUMS, UNEVEN, a_run, curve, layout_run, rewound

from layermem_bench.evals.solving import evaluate
from layermem_bench.run.training import train


def precisions(folder):
    """The curve in each precision."""
    seen = {}
    for precision in ("float32", "bfloat16"):
        for shard in (False, True):
            compute = {"precision": precision, "micro_batch": 1, "shard": shard}
            if precision == "float32":
                compute["loss_chunk"] = 7
            name = f"{precision} {'sharded' if shard else 'copied'}"
            seen[name] = curve(train(a_run(folder, **UNEVEN, compute=compute), folder / name))
    return seen


def solving(folder):
    """The rows of a sharded model that solves problems, which takes all processes."""
    task = replace(SUMS, test=2)
    run = a_run(folder, max_steps=3, eval_every=2, task=task, compute={"shard": True})
    return train(run, folder / "solving", evaluate=evaluate).rows()


def layouts(folder):
    """Begin each way, and go on each other way."""
    root, run = folder / "layouts", layout_run(folder)
    ways = {"ddp": run, "fsdp": replace(run, compute=replace(run.compute, shard=True))}
    for way, each in ways.items():
        train(each, root / way)
    for begun, way in map(str.split, ("one ddp", "one fsdp", "ddp fsdp", "fsdp ddp", "fsdp fsdp")):
        if torch.distributed.get_rank() == 0:
            rewound(root / begun, root / f"{begun}-{way}")
        torch.distributed.barrier()
        train(ways[way], root / f"{begun}-{way}", resume=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    # One start for all: it takes longer than most of them.
    seen = {each.__name__: each(folder) for each in (precisions, solving, layouts)}
    if torch.distributed.get_rank() == 0:
        (folder / "probes.json").write_text(json.dumps(seen), encoding="utf-8")
    leave(folder)
