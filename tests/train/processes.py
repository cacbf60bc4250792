"""What two processes do for the tests, all in one launch; what they saw is written as JSON.

Started twice with the variables of torchrun, whose own start another test has: processes.py FOLDER
"""

import json
import sys
from contextlib import nullcontext
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
from torch.utils._python_dispatch import TorchDispatchMode

from layermem.models import registry as registry_of_models
from layermem.models.causal_lm import DecoderForCausalLM
from layermem_bench.config.run import Task
from layermem_bench.evals.generation import GreedySettings, greedy, shared_greedy
from layermem_bench.evals.solving import attempt, evaluate
from layermem_bench.tasks import registry
from layermem_bench.train import background as writing
from layermem_bench.train.run import train
from layermem_bench.train.sharded import ShardedTrainer
from layermem_bench.train.trainer import Trainer

TASK = Task(
    name="arithmetic",
    examples=30,
    validation=5,
    test=2,
    options=(
        *("operands=2", "operators=+", "operand_max=20", "value_max=40", "trivial=1.0"),
        "held_out=strict",
    ),
)


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
    compute = {"ddp_timeout": 77, "micro_batch": 1, "loss_chunk": 7}
    run = a_run(folder, **UNEVEN, compute=compute)
    rows = curve(train(run, folder / "copied"))
    Trainer.training_step = step
    return {"curve": rows, **seen}


def sharded(folder):
    """FSDP2, by what is kept whole, in both precisions: what a step sends, the curve, and the
    precisions of weights in the forward by the kind of their module."""
    step = ShardedTrainer.training_step
    sent, seen = counting(), {}
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
        weights = {}
        watching = register_module_forward_hook(partial(note_precisions, weights))
        rows = curve(train(run, folder / "sharded" / name.replace(" ", "-")))
        watching.remove()
        found = {kind: sorted(precisions) for kind, precisions in weights.items()}
        seen[name] = {"curve": rows, "sent": sent.seen, "weights": found}
    ShardedTrainer.training_step = step
    return seen


def note_precisions(seen, module, *_):
    """Note the precisions of a module's own weights in a forward that is trained."""
    if module.training:
        for weight in module.parameters(recurse=False):
            name = str(weight.dtype).removeprefix("torch.")
            seen.setdefault(type(module).__name__, set()).add(name)


def solving(folder):
    """Both: validation problems shared, against each process solving all of them."""
    seen = {}
    for shard in (False, True):
        found = seen["sharded" if shard else "copied"] = {"shared": [], "whole": [], "done": []}
        generate = DecoderForCausalLM.generate

        def watched(self, ids, *args, generate=generate, found=found, **kwargs):
            found["done"].append(len(ids))
            return generate(self, ids, *args, **kwargs)

        def both(model, tokenizer, task, split, found=found):
            result, attempts = evaluate(model, tokenizer, task, split)
            if split == "validation":
                kind = registry.get_task(task.name)
                problems = kind.problems(split, task.validation, task.seed, **task.fields())
                whole = attempt(model, tokenizer, kind, problems)
                found["shared"].append([a.row() for a in attempts])
                found["whole"].append([a.row() for a in whole])
            return result, attempts

        DecoderForCausalLM.generate = watched
        run = a_run(folder, max_steps=3, eval_every=2, task=TASK, compute={"shard": shard})
        found["curve"] = curve(train(run, folder / f"solving-{shard}", evaluate=both))
        DecoderForCausalLM.generate = generate
    return seen


def generating(folder):
    """Answers of which some end early, of a copied and of a sharded model."""
    entry = registry_of_models.lookup("lime")
    model = make(entry.causal_lm, entry.config(**TINY))
    with torch.no_grad():
        model.lm_head.weight[1] *= 3
    draw = torch.Generator().manual_seed(0)
    lengths = [3, 9, 1, 5, 5, 2, 7, 9, 4, 6, 3]
    prompts = [torch.randint(2, 61, (n,), generator=draw).tolist() for n in lengths]
    settings = GreedySettings(end=1, padding=0, max_new_tokens=12, batch_size=2)
    seen = {"alone": greedy(model, prompts, settings)}
    seen["copied"] = shared_greedy(model, prompts, settings)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    seen["sharded"] = shared_greedy(model, prompts, settings)
    seen["none"] = shared_greedy(model, [], settings)
    return seen


def long(folder):
    """Twenty steps each way."""
    run = long_run(folder)
    for way, shard in (("ddp", False), ("fsdp", True)):
        train(replace(run, compute=replace(run.compute, shard=shard)), folder / "long" / way)


def rewound_by_one(begun, to):
    """Copy a run in one process, as it was at an earlier checkpoint."""
    if torch.distributed.get_rank() == 0:
        rewound(begun, to)
    torch.distributed.barrier()


def layouts(folder):
    """Begin each way, and go on each other way."""
    root, run = folder / "layouts", layout_run(folder)
    ways = {"ddp": run, "fsdp": replace(run, compute=replace(run.compute, shard=True))}
    for way, each in ways.items():
        train(each, root / way)
    for begun, way in map(str.split, ("one ddp", "one fsdp", "ddp fsdp", "fsdp ddp", "fsdp fsdp")):
        rewound_by_one(root / begun, root / f"{begun}-{way}")
        train(ways[way], root / f"{begun}-{way}", resume=True)


def background(folder):
    """Checkpoints written in the background each way, and resumed each way."""
    root, run = folder / "background", layout_run(folder)
    # However fast steps are, every checkpoint is waited for.
    any_process, writing.any_process = writing.any_process, lambda busy, args: False
    for begun in ("ddp", "fsdp"):
        compute = replace(run.compute, shard=begun == "fsdp", async_checkpoints=True)
        train(replace(run, compute=compute), root / begun)
        for way in ("ddp", "fsdp"):
            rewound_by_one(root / begun, root / f"{begun}-{way}")
            goes_on = replace(compute, shard=way == "fsdp")
            train(replace(run, compute=goes_on), root / f"{begun}-{way}", resume=True)
    writing.any_process = any_process


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
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    # One start for all: it takes longer than most of them.
    probes = (copied, sharded, solving, long, layouts, background, generating)
    seen = {probe.__name__: probe(folder) for probe in probes}
    if torch.distributed.get_rank() == 0:
        (folder / "probes.json").write_text(json.dumps(seen), encoding="utf-8")
    leave(folder)
