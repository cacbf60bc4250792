"""What two and four processes that share heads do for the tests: they begin, and go on.

Started with the variables of torchrun, first twice and then four times: shared_heads.py FOLDER
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from forked import leave
from single_runs import heads_run
from small_run import rewound
from torch import distributed
from torch.distributed.tensor import DTensor

from layermem_bench.config.run import Optim, Task
from layermem_bench.evals.solving import attempt, evaluate
from layermem_bench.tasks.registry import get_task
from layermem_bench.train.optimizer import build_optimizer
from layermem_bench.train.run import train
from layermem_bench.train.trainer import Trainer

SHARED, SHARDED = {"tensor": 2, "micro_batch": 2}, {"tensor": 2, "shard": True}
TASK = Task(
    name="arithmetic",
    examples=30,
    validation=5,
    test=2,
    options=("operands=2", "operators=+", "operand_max=20", "value_max=40", "held_out=strict"),
)
# Name, what it goes on from (None: the beginning), and how.
TWO = [("two", None, SHARED), ("one-two", "one", {**SHARED, "async_checkpoints": True})]
FOUR = [
    ("copies", None, {**SHARED, "async_checkpoints": True}),
    ("shards", None, SHARDED),
    ("two-shards", "two", SHARDED),
    ("one-shards", "one", SHARDED),
    ("shards-copies", "shards", SHARED),
]


def seen_in_a_step(model):
    """Return how a projection is divided, how a router is, and whether a GPU's step is fused."""
    weight = model.model.layers[1].self_attn.k_proj.weight
    assert isinstance(weight, DTensor)
    router = model.model.layers[1].self_attn.memory.weight
    # A fused step takes no mixture of divided and whole parameters.
    overrides, cuda = model.variant.overrides, torch.device("cuda")
    return {
        "sizes": list(weight.device_mesh.shape),
        "numbers": weight.to_local().numel(),
        "router is whole": not isinstance(router, DTensor),
        "router": list(router.shape),
        "fused": build_optimizer(model, overrides, Optim(), cuda).defaults["fused"],
    }


def watch(seen):
    """Have the first step of each run noted."""
    step = Trainer.training_step

    def watched(self, model, inputs, *args, **kwargs):
        if self.folder.path.name not in seen:
            rows = inputs["input_ids"].tolist()
            seen[self.folder.path.name] = {**seen_in_a_step(model), "rows": rows}
        return step(self, model, inputs, *args, **kwargs)

    Trainer.training_step = watched


def solve(model, tokenizer, task, split):
    """Solve the problems of a split, which processes share; each also solves all of them."""
    result, attempts = evaluate(model, tokenizer, task, split)
    kind = get_task(task.name)
    problems = kind.problems(split, getattr(task, split), task.seed, **task.fields())
    whole = attempt(model, tokenizer, kind, problems)
    assert [each.row() for each in attempts] == [each.row() for each in whole]
    return result, attempts


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, seen = Path(sys.argv[1]), {}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    watch(seen)
    for name, begun, compute in TWO if world == 2 else FOUR:
        if begun and rank == 0:
            rewound(folder / begun, folder / name, 2)
        if distributed.is_initialized():
            distributed.barrier()
        train(heads_run(folder, **compute), folder / name, resume=begun is not None)
    run = heads_run(folder, **SHARED)
    sizes = replace(run.model, vocab_size=None)
    run = replace(run, max_steps=2, save_every=0, task=TASK, model=sizes)
    train(run, folder / f"solving-{world}", evaluate=solve)
    (folder / f"seen-{world}-{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    leave(folder)
