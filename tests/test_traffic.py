"""The bytes that benchmarks/traffic.py counts: against the products and the launches of groups."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny import needs_kernels
from torch.utils._python_dispatch import TorchDispatchMode

from layermem.ops.route import begin_buffer, using

ROOT = Path(__file__).parents[1]
HEADS, TOKENS, WIDTH = 4, 16, 8
# Of keys and values in half precision.
SLOT_BYTES = 2 * 2 * HEADS * TOKENS * WIDTH


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
    # In the backward, layer 0 has rows of zeros in the products of its group: two reads.
    assert counted.slots - 2 == traffic.count_grouped(layers)


class CountedLaunches:
    """Sums the slots that launches read and write, in place of running them."""

    def __init__(self):
        self.slots, self.names = 0, []

    def stand_in(self, name):
        """Return what is launched as a kernel is: ``kernel[grid](...)``."""

        class Kernel:
            def __getitem__(_, grid):
                return lambda *args, **options: self.count(name, args)

        return Kernel()

    def count(self, name, args):
        pointed = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
        # Keys or values; weights and their gradients have less axes. A list of pointers is padded.
        parts = {x.data_ptr(): x for x in pointed if isinstance(x, torch.Tensor) and x.ndim == 4}
        self.slots += sum(part.nbytes for part in parts.values()) / SLOT_BYTES
        self.names.append(name)


@needs_kernels
@pytest.mark.parametrize("layers", [9, 17, 40])
def test_grouped_transfers_are_those_of_its_launches(traffic, layers, monkeypatch):
    from layermem.ops.route import kernels

    counted = CountedLaunches()
    for name in ("gather", "spread", "gram", "gather_group", "gram_group"):
        monkeypatch.setattr(kernels, name, counted.stand_in(name))
    with using("grouped"):
        run_layers(layers, torch.bfloat16)
    assert counted.slots == traffic.count_grouped(layers, partial=2)
    groups = -(-layers // 8)
    # A route, and the gradient of a slot; older slots, and later gradients; routers' gradients.
    expected = {
        "gather": layers - 1 + layers,
        "gather_group": 2 * (groups - 1),
        "gram_group": groups,
    }
    assert {name: counted.names.count(name) for name in counted.names} == expected


def test_the_page_shows_what_is_counted(traffic):
    page = (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")
    counts = [traffic.count_transfers(layers) for layers in traffic.DEPTHS]
    for implementation in counts[0]:
        cells = " | ".join(str(count[implementation]) for count in counts)
        assert f"| {cells} |" in page, implementation
