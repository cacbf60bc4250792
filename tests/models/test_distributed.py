"""Two processes on one machine: gradients averaged by DDP are those of the whole batch."""

import datetime

import pytest
import torch
from tiny import TINY, make
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import layermem
from layermem.ops.route import using

WORLD = 2


def a_batch():
    return torch.randint(TINY["vocab_size"], (4, 9), generator=torch.Generator().manual_seed(5))


def a_model(variant):
    config_class = layermem.LimeConfig if variant == "lime" else layermem.PlainConfig
    model_class = layermem.LimeForCausalLM if variant == "lime" else layermem.PlainForCausalLM
    return make(model_class, config_class(**TINY)).double()


def two_steps(model, batch):
    """Two steps of plain descent, so that a second backward is seen too; return the weights."""
    parameters = list(model.parameters())
    for _ in range(2):
        model.zero_grad()
        model(batch, labels=batch).loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=0.1)
    return [parameter.detach() for parameter in parameters]


def work(rank, variant, name, checkpointing, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    model = a_model(variant).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with using(name):
        weights = two_steps(DistributedDataParallel(model), a_batch().chunk(WORLD)[rank])
    torch.save(weights, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.parametrize(
    ("variant", "name", "checkpointing"),
    [("plain", "naive", False), ("lime", "deferred", False), ("lime", "deferred", True)],
    ids=["plain", "lime", "lime-checkpointed"],
)
def test_two_processes_descend_as_one(variant, name, checkpointing, tmp_path):
    torch.multiprocessing.spawn(
        work, (variant, name, checkpointing, tmp_path), nprocs=WORLD, join=True
    )
    with using("naive"):
        expected = two_steps(a_model(variant).train(), a_batch())
    for rank in range(WORLD):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
