"""What two processes do for the tests, all in one launch; what they saw is written as JSON.

Started twice with the variables of torchrun, whose own start another test has: processes.py FOLDER
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from forked import leave
from single_runs import layout_run, long_run
from small_run import UNEVEN, a_run, curve, rewound
from tiny import TINY, make
from torch.distributed.fsdp import fully_shard
from torch.nn.modules.module import register_module_forward_hook

from layermem.models import registry as registry_of_models
from layermem_bench.config.run import Task
from layermem_bench.evals.solving import evaluate, greedy
from layermem_bench.run.training import train

TASK = Task(
    name="arithmetic",
    examples=30,
    validation=5,
    test=2,
    options=(*("operands=2", "operand_max=20", "value_max=40", "trivial=1.0", "held_out=strict"),),
)


def long(folder):
    """Twenty steps each way."""
    run = long_run(folder)
    for way, shard in (("ddp", False), ("fsdp", True)):
        train(replace(run, compute=replace(run.compute, shard=shard)), folder / "long" / way)


def precisions(folder):
    """The curve in each precision, and the precisions of weights in the forward, by module."""
    seen = {}
    for precision in ("float32", "bfloat16"):
        for shard in (False, True):
            weights = {}
            watching = register_module_forward_hook(partial(note_precisions, weights))
            compute = {"precision": precision, "micro_batch": 1, "shard": shard}
            if precision == "float32":
                compute["loss_chunk"] = 7
            name = f"{precision} {'sharded' if shard else 'copied'}"
            rows = curve(train(a_run(folder, **UNEVEN, compute=compute), folder / name))
            watching.remove()
            found = {kind: sorted(precisions) for kind, precisions in weights.items()}
            seen[name] = {"curve": rows, "weights": found}
    return seen


def note_precisions(seen, module, *_):
    """Note the precisions of a module's own weights in a forward that is trained."""
    if module.training:
        for weight in module.parameters(recurse=False):
            name = str(weight.dtype).removeprefix("torch.")
            seen.setdefault(type(module).__name__, set()).add(name)


def solving(folder):
    """The rows of a sharded model that solves problems, which takes all processes."""
    run = a_run(folder, max_steps=3, eval_every=2, task=TASK, compute={"shard": True})
    return train(run, folder / "solving", evaluate=evaluate).rows()


def generating(folder):
    """Answers of which some end early, of a whole and of a sharded model."""
    entry = registry_of_models.lookup("lime")
    model = make(entry.causal_lm, entry.config(**TINY))
    with torch.no_grad():
        model.lm_head.weight[1] *= 3
    draw = torch.Generator().manual_seed(0)
    lengths = [3, 9, 1, 5, 5, 2, 7, 9, 4, 6, 3]
    prompts = [torch.randint(2, 61, (n,), generator=draw).tolist() for n in lengths]
    settings = {"end": 1, "padding": 0, "max_new_tokens": 12, "batch_size": 2}
    seen = {"alone": greedy(model, prompts, **settings)}
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    seen["sharded"] = greedy(model, prompts, **settings)
    return seen


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
    seen = {
        each.__name__: each(folder) for each in (long, precisions, solving, layouts, generating)
    }
    if torch.distributed.get_rank() == 0:
        (folder / "probes.json").write_text(json.dumps(seen), encoding="utf-8")
    leave(folder)
