"""The bytes that benchmarks/traffic.py counts: against the products and copies of a step."""

import importlib.util
from pathlib import Path

import chain
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parents[1]
# Numbers of a row of the buffers: no weight of the chain has rows as long.
COLUMNS = 2 * 7 * 5
SLOT = chain.HEADS * COLUMNS


@pytest.fixture(scope="module")
def traffic():
    spec = importlib.util.spec_from_file_location("traffic", ROOT / "benchmarks" / "traffic.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counted(TorchDispatchMode):
    """Sums the slots that matrix products read and write, and copies."""

    def __init__(self):
        super().__init__()
        self.products = self.copies = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.count(function, [*args, out])
        return out

    def count(self, function, tensors):
        # Keys and values are two matrices [heads, COLUMNS], half of a slot each.
        if "mm" in str(function):
            sizes = [x.numel() for x in tensors if COLUMNS in x.shape]
            self.products += sum(sizes) / (2 * SLOT)
        elif "copy_" in str(function) and tensors[0].numel() == SLOT:
            self.copies += 1

    def count_graph(self, graph, _):
        for node in graph.graph.nodes:
            if node.op == "call_function":
                inputs = [x for x in node.args if isinstance(x, torch.fx.Node)]
                self.count(node.target, [x.meta.get("val") for x in (*inputs, node)])
        return make_boxed_func(graph.forward)


@pytest.mark.parametrize("layers", [9, 20])
def test_transfers_are_those_of_a_step(traffic, layers):
    x, model, counted = chain.an_input(dtype=torch.bfloat16), chain.Depth(layers), Counted()
    # As on a GPU; in float32 on a CPU layers are in groups.
    model.bfloat16()
    with counted:
        model(x).sum().backward()
    assert counted.products == traffic.count_products(layers)
    assert counted.copies == traffic.count_copies(layers)


def test_compiled_products_are_the_same(traffic):
    x, model, counted = chain.an_input(), chain.Depth(9), Counted()
    backend = aot_autograd(fw_compiler=counted.count_graph, bw_compiler=counted.count_graph)
    step = torch.compile(model, fullgraph=True, backend=backend)
    step(x).sum().backward()
    assert counted.products == traffic.count_products(9)


def test_the_page_shows_what_is_counted(traffic):
    page = (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")
    counts = [traffic.count_transfers(layers) for layers in traffic.DEPTHS]
    for form in counts[0]:
        cells = " | ".join(str(count[form]) for count in counts)
        assert f"| {cells} |" in page, form
