"""The bytes that benchmarks/traffic.py counts: against the products of groups."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from layermem.ops.route import begin_buffer

ROOT = Path(__file__).parents[1]
HEADS, TOKENS, WIDTH = 4, 16, 8


@pytest.fixture(scope="module")
def traffic():
    spec = importlib.util.spec_from_file_location("traffic", ROOT / "benchmarks" / "traffic.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CountedProducts(TorchDispatchMode):
    """Sums the slots that matrix products read and write; weights have fewer numbers in a row."""

    def __init__(self):
        super().__init__()
        self.slots = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if "mm" in str(function):
            tensors = [x for x in (*args, out) if isinstance(x, torch.Tensor)]
            # Keys and values are two matrices [heads, tokens * width].
            sizes = [x.numel() for x in tensors if TOKENS * WIDTH in x.shape]
            self.slots += sum(sizes) / (2 * HEADS * TOKENS * WIDTH)
        return out


def run_layers(layers, dtype=torch.float32):
    """Run a forward and backward of a buffer's routes, in which no layer needs another."""
    weights = [torch.randn(HEADS, HEADS * i, requires_grad=True) for i in range(1, layers + 1)]
    weights[0] = None
    buffer, total = begin_buffer(weights, torch.randn(2, dtype=dtype)), 0
    for weight in weights:
        # Token major.
        slot = torch.randn(2, 1, TOKENS, HEADS, WIDTH, dtype=dtype).transpose(2, 3)
        buffer.append(*slot.requires_grad_().unbind())
        if weight is not None:
            total += sum(part.square().sum() for part in buffer.route(weight))
    total.backward()


@pytest.mark.parametrize("layers", [9, 16])
def test_grouped_transfers_are_those_of_its_products(traffic, layers):
    with CountedProducts() as counted:
        run_layers(layers)
    assert counted.slots == traffic.count_grouped(layers)


@pytest.mark.parametrize("layers", [9, 20])
def test_transfers_of_one_group_are_those_of_its_products(traffic, layers):
    with CountedProducts() as counted:
        run_layers(layers, torch.bfloat16)
    assert counted.slots == traffic.count_one_group(layers)


def test_the_page_shows_what_is_counted(traffic):
    page = (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")
    counts = [traffic.count_transfers(layers) for layers in traffic.DEPTHS]
    for implementation in counts[0]:
        cells = " | ".join(str(count[implementation]) for count in counts)
        assert f"| {cells} |" in page, implementation
