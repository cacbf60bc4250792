"""Two processes on one machine, by DDP and by FSDP2, descend as one does on the whole batch."""

import pytest
import torch
from forked import in_forks, join, leave
from host_models import make_attached
from tiny import CASES, SLOW, TINY, make
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from layermem.models.registry import lookup
from layermem.ops import shared_buffer
from layermem.ops.shared_buffer import using_naive

WORLD = 2
needs_processes = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch has no distributed package"
)


def a_batch():
    return torch.randint(TINY["vocab_size"], (4, 9), generator=torch.Generator().manual_seed(5))


def a_model(variant):
    """Build a variant, or one of its further forms by the name of the case, or a host."""
    if variant == "attached":
        return make_attached("llama", dtype=torch.float64)
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


# Slots are views, which nothing changes in place.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@needs_processes
@pytest.mark.parametrize("reshards", [True, False])
def test_layers_sharded_one_by_one_have_the_gradients_of_the_plain_model(reshards, alone):
    """Of two passes, whose gradients are added up."""
    plain, other = a_model("lime").train(), a_model("lime").train()
    for part in (*other.model.layers, other):
        fully_shard(part, reshard_after_forward=reshards)
    for model in (plain, other):
        for batch in a_batch().chunk(2):
            model(batch, labels=batch).loss.backward()
    for (name, ours), theirs in zip(other.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(whole(ours.grad), theirs.grad, rtol=1e-9, atol=1e-12, msg=name)


def work(rank, cases, folder):
    join(rank, WORLD, folder)
    # Several groups in a shallow model.
    shared_buffer._GROUP = 3
    weights = []
    for variant, how in cases:
        model = a_model(variant).train()
        if "checkpointed" in how:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        fsdp = "fsdp" in how
        model = sharded(model, "as one" in how) if fsdp else DistributedDataParallel(model)
        weights.append(two_steps(model, a_batch().chunk(WORLD)[rank]))
    torch.save(weights, f"{folder}/{rank}.pt")
    leave(folder)


# (variant, wrapping): those of every day, and the others.
WRAPPED = [("lime", "ddp checkpointed"), ("lime", "fsdp")]
OTHERS = [
    ("lime", "fsdp checkpointed"),
    ("lime", "fsdp as one"),
    ("lime-separate", "fsdp checkpointed"),
    ("value_residual-svformer", "ddp"),
    ("depth_attention", "fsdp"),
    ("lime_hidden-dynamic", "fsdp"),
    ("lime+hyper_connections", "fsdp checkpointed"),
    ("mhc", "ddp checkpointed"),
    ("mudd-pre-post", "fsdp checkpointed"),
    ("mudd", "ddp checkpointed"),
    ("attention_residuals-block", "fsdp"),
    ("denseformer", "fsdp"),
    ("dca", "fsdp checkpointed"),
    ("lime_half", "fsdp checkpointed"),
    ("fused_kv", "fsdp"),
    ("attached", "ddp"),
    ("attached", "fsdp"),
    ("attached", "ddp checkpointed"),
    ("attached", "fsdp checkpointed"),
]


@needs_processes
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(WRAPPED, id="of every day"),
        pytest.param(OTHERS, id="others", marks=SLOW),
    ],
)
def test_two_processes_descend_as_one(cases, tmp_path):
    in_forks(work, (cases, tmp_path), WORLD)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    for i, case in enumerate(cases):
        with using_naive():
            expected = two_steps(a_model(case[0]).train(), a_batch())
        for found in ranks:
            torch.testing.assert_close(
                found[i], expected, rtol=1e-9, atol=1e-12, msg=lambda text, c=case: f"{c}: {text}"
            )
