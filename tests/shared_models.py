"""Models that the processes of tensor parallelism share, and what they compute.

A case is a tiny model in float64, saved in a folder. Each process loads it as a user would, and
saves its outcome, which is compared with that of one process.
"""

import torch
from forked import in_forks, join, leave
from tiny import TINY, make
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.distributed import DistributedConfig

from layermem.models.registry import lookup
from layermem_bench.config.run import Optim
from layermem_bench.run.optimizer import parameter_groups

# Older transformers share no vocabulary that the number of processes does not divide.
SIZES = {**TINY, "vocab_size": 64}
# id: (variant, fields). Two sequences are classified where there are labels.
CASES = {
    "plain": ("plain", {}),
    "plain-mha": ("plain", {"num_key_value_heads": 4}),
    "plain-one-head": ("plain", {"num_key_value_heads": 1}),
    "plain-classes": ("plain", {"num_labels": 3, "pad_token_id": 0}),
    "lime": ("lime", {}),
    "lime-mha": ("lime", {"num_key_value_heads": 4}),
    "lime-gqa-of-4": (
        "lime",
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 6, "attention_bias": True},
    ),
    "lime-of-3": ("lime", {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}),
    # Heads that two processes cannot share evenly: each of them routes and attends with all.
    "lime-one-head": ("lime", {"num_key_value_heads": 1}),
    "lime-last-2": ("lime", {"router": "last", "router_window": 2}),
    "lime-first-1": ("lime", {"router": "first", "router_window": 1}),
    "lime-average": ("lime", {"router": "average"}),
    "lime-average-mha": ("lime", {"router": "average", "num_key_value_heads": 4}),
    "lime-pruned": ("lime", {"router_sources": [[], [], [0], [0, 2]]}),
    "lime-separate": ("lime", {"router_shares_kv": False}),
    "lime-separate-mha": ("lime", {"router_shares_kv": False, "num_key_value_heads": 4}),
    "lime-of-layers": ("lime", {"router_shares_kv": False, "router_grain": "layer"}),
    "lime_half": ("lime_half", {"router_shares_kv": False}),
    "lime_half-mha": ("lime_half", {"storage": 2, "num_key_value_heads": 4}),
    "cla": ("cla", {"attention_bias": True}),
    "yoco": ("yoco", {"num_key_value_heads": 4}),
    "fused_kv": ("fused_kv", {}),
    "lime-biases": ("lime", {"attention_bias": True, "mlp_bias": True}),
    "lime-tied": ("lime", {"tie_word_embeddings": True}),
    "lime-classes": ("lime", {"num_labels": 3, "pad_token_id": 0}),
    "value_residual-svformer": ("value_residual", {"form": "svformer", "attention_bias": True}),
    "depth_attention": ("depth_attention", {"gate": "head"}),
    "lime+hyper_connections": ("lime+hyper_connections", {}),
    "lime+mudd": ("lime+mudd", {}),
}
# The variants whose processes attend with heads of their own, where these can be shared evenly.
OF_OWN_HEADS = ("plain", "lime", "lime_half", "lime+hyper_connections", "lime+mudd")


def a_config(case, **more):
    variant, fields = CASES.get(case, (case, {}))
    return lookup(variant).config(**{**SIZES, **fields, **more})


def a_model(case, **more):
    variant, fields = CASES.get(case, (case, {}))
    entry = lookup(variant)
    model_class = entry.sequence_classification if "num_labels" in fields else entry.causal_lm
    model = make(model_class, a_config(case, **more)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.linspace(-1, 1, len(parameter)))
    return model


def load(path, tp_size=1, **sizes):
    """Load a checkpoint as a process of many, or as the only one."""
    labels = "num_labels" in CASES.get(path.name, ("", {}))[1]
    auto = AutoModelForSequenceClassification if labels else AutoModelForCausalLM
    if tp_size == 1:
        return auto.from_pretrained(path, dtype="float64")
    # Older transformers do not count the processes themselves.
    config = DistributedConfig(tp_plan="auto", tp_size=tp_size, **sizes)
    return auto.from_pretrained(path, distributed_config=config, dtype="float64")


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def some_ids(seed=5, rows=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, SIZES["vocab_size"], (rows, 9), generator=generator)


def outcome(model, case):
    """Return logits, losses, every gradient, what the model writes, and how many heads it caches.

    Gradients are those of three backward passes, the last one with gradient checkpointing.
    """
    ids = some_ids()
    classes = "num_labels" in CASES[case][1]
    out = model(ids, labels=torch.tensor([2, 0]) if classes else ids)
    out.loss.backward()
    model(ids, labels=torch.tensor([0, 1]) if classes else ids.flip(0)).loss.backward()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(ids, labels=torch.tensor([1, 1]) if classes else ids.flip(1)).loss.backward()
    model.eval()
    model.gradient_checkpointing_disable()
    with torch.no_grad():
        quiet = model.base_model(ids, use_cache=True)
        numbers = [whole(out.logits.detach()), out.loss.detach(), quiet.last_hidden_state]
    return {
        "numbers": numbers,
        "gradients": {name: whole(p.grad) for name, p in model.named_parameters()},
        "written": [] if classes else [x for how in WRITING for x in write(model, ids, **how)],
        "cached heads": quiet.past_key_values.layers[0].keys.shape[1],
    }


WRITING = ({}, {"cache_implementation": "static"}, {"num_beams": 2})


def write(model, ids, **how):
    """Return the tokens that the model writes and their scores."""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=3,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        disable_compile=True,
        **how,
    )
    return out.sequences, torch.stack(out.logits)


def clip(parameters, limit):
    """Clip gradients as ``clip_grad_norm_`` does; torch's takes no mixture of kinds of tensors."""
    norms = torch.stack([whole(p.grad.norm()) for p in parameters])
    for parameter in parameters:
        parameter.grad.mul_(min(1.0, limit / norms.norm().item()))


def descend(model, steps, rows=slice(None)):
    """Train on some rows of a batch a step, and return the losses."""
    groups = parameter_groups(model, type(model).variant.overrides, Optim(lr=1e-2))
    optimizer, losses = torch.optim.AdamW(groups), []
    model.train()
    for step in steps:
        ids = some_ids(step, rows=4)[rows]
        # With labels, the model would compute the loss in float32.
        logits = whole(model(ids).logits)[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        clip(list(model.parameters()), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def in_processes(work, world, folder, *args):
    """Run ``work(rank, world, folder, *args)`` in each of some processes; return what they say."""
    in_forks(_begin, (work, world, folder, *args), world)
    (folder / f"meet-{world}").unlink(missing_ok=True)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


def _begin(rank, work, world, folder, *args):
    join(rank, world, folder)
    torch.save(work(rank, world, folder, *args), f"{folder}/{rank}.pt")
    leave(folder)
