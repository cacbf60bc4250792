"""Two processes on one machine, by DDP and by FSDP2, descend as one does on the whole batch."""

import datetime

import pytest
import torch
from forked import in_forks, leave
from tiny import CASES, SLOW, TINY, make, needs_kernels
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from layermem.models.registry import lookup
from layermem.ops import route
from layermem.ops.route import using

WORLD = 2


def a_batch():
    return torch.randint(TINY["vocab_size"], (4, 9), generator=torch.Generator().manual_seed(5))


def a_model(variant):
    """Build a variant, or one of its further forms by the name of the case."""
    name, fields = next((name, fields) for case, name, fields in CASES if case == variant)
    entry = lookup(name)
    return make(entry.causal_lm, entry.config(**{**TINY, **fields})).double()


def two_steps(model, batch):
    """Two steps of plain descent, so that a second backward is seen too; return the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    return [whole(parameter.detach()) for parameter in model.parameters()]


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded(model, as_one):
    """Shard every layer by itself and the rest together, or all as one."""
    for layer in [] if as_one else model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return model


def work(rank, cases, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=300),
    )
    # Several groups in a shallow model.
    route._GROUP_SIZE = 3
    weights = []
    for variant, name, how in cases:
        model = a_model(variant).train()
        if "checkpointed" in how:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        fsdp = "fsdp" in how
        model = sharded(model, "as one" in how) if fsdp else DistributedDataParallel(model)
        with using(name):
            weights.append(two_steps(model, a_batch().chunk(WORLD)[rank]))
    torch.save(weights, f"{folder}/{rank}.pt")
    leave(folder)


# (variant, implementation of routing, wrapping): those of every day, and the others.
WRAPPED = [("lime", "deferred", "ddp checkpointed"), ("lime", "grouped", "fsdp")]
OTHERS = [
    ("plain", "naive", "ddp"),
    ("lime", "deferred", "ddp"),
    ("lime", "deferred", "fsdp"),
    ("lime", "deferred", "fsdp checkpointed"),
    ("lime", "grouped", "ddp"),
    ("lime", "grouped", "fsdp as one"),
    ("lime-separate", "deferred", "fsdp checkpointed"),
    ("value_residual-svformer", "naive", "ddp"),
    ("depth_attention-raw", "naive", "ddp checkpointed"),
    ("lime_hidden", "naive", "ddp checkpointed"),
    ("lime_hidden-dynamic", "naive", "fsdp"),
    ("depth_attention", "naive", "fsdp"),
    ("value_residual-dense", "naive", "fsdp"),
    ("lime+hyper_connections", "deferred", "ddp"),
    ("lime+hyper_connections", "deferred", "fsdp checkpointed"),
    ("mhc", "naive", "ddp checkpointed"),
    ("mhc", "naive", "fsdp"),
    ("mudd-pre-post", "naive", "fsdp checkpointed"),
    ("attention_residuals", "naive", "ddp"),
    ("mudd", "naive", "ddp checkpointed"),
    ("attention_residuals-delta", "naive", "fsdp"),
    ("attention_residuals-block", "naive", "fsdp"),
    ("denseformer", "naive", "fsdp"),
    ("dca", "naive", "fsdp checkpointed"),
    ("lime_half", "deferred", "ddp"),
    ("lime_half", "deferred", "fsdp checkpointed"),
    ("cla", "naive", "ddp checkpointed"),
    ("fused_kv", "naive", "fsdp"),
]


@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(WRAPPED, id="of every day"),
        pytest.param([("lime", "triton", "fsdp")], id="kernels", marks=[SLOW, needs_kernels]),
        pytest.param(OTHERS, id="others", marks=SLOW),
    ],
)
def test_two_processes_descend_as_one(cases, tmp_path):
    in_forks(work, (cases, tmp_path), WORLD)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    for i, case in enumerate(cases):
        with using("naive"):
            expected = two_steps(a_model(case[0]).train(), a_batch())
        for found in ranks:
            torch.testing.assert_close(
                found[i], expected, rtol=1e-9, atol=1e-12, msg=lambda text, c=case: f"{c}: {text}"
            )
