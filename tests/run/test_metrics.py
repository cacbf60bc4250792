"""Peaks of devices, each card its own or none; and the rate of routers in a row."""

import pytest
import torch
from tiny import TINY

import layermem
from layermem.models.lime_router import LimeRouter
from layermem_bench.config.run import Optim
from layermem_bench.run.metrics import peak_flops, training_row
from layermem_bench.run.optimizer import parameter_groups


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H20", None),
    ],
)
def test_each_card_has_its_own_peak(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda", 0)) == peak


def test_a_cpu_has_none():
    assert peak_flops(torch.device("cpu")) is None


@pytest.mark.parametrize("variant", ["lime", "lime+hyper_connections", "lime+denseformer"])
def test_the_rate_of_routers_is_theirs_beside_those_of_other_parts(variant):
    model = layermem.build(variant, **TINY)
    groups = parameter_groups(model, model.variant.overrides, Optim(lr=1e-3))
    rates = {group["name"]: group["lr"] for group in groups}
    row = training_row(1.0, 1.0, rates)
    routers = {id(p) for m in model.modules() if isinstance(m, LimeRouter) for p in m.parameters()}
    (expected,) = {g["lr"] for g in groups if routers & set(map(id, g["params"]))}
    assert row["router_lr"] == expected == 1e-2 and row["lr"] == 1e-3
