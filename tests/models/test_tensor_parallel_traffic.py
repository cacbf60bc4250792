"""What benchmarks/tensor_parallel_traffic.py counts is what processes send, and what docs show."""

import importlib.metadata
import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from shared_models import a_config, a_model, in_processes, load, some_ids
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from layermem.variants.lime import LimeConfig

TRANSFORMERS = tuple(map(int, importlib.metadata.version("transformers").split(".")[:2]))
ROOT = Path(__file__).parents[2]
# By source, except where the heads of the case are said to be gathered.
SOURCE, GATHERED = "LIMe, by source", "LIMe, gathered"
MEASURED = [
    ("plain-mha", "plain"),
    ("lime-mha", SOURCE),
    ("lime-gqa-of-4", SOURCE),
    ("lime-separate-mha", SOURCE),
    ("lime-average-mha", SOURCE),
    ("lime-mha", GATHERED),
    ("lime-gqa-of-4", GATHERED),
]


@pytest.fixture(scope="module")
def traffic():
    path = ROOT / "benchmarks" / "tensor_parallel_traffic.py"
    spec = importlib.util.spec_from_file_location("tensor_parallel_traffic", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CountedCollectives(TorchDispatchMode):
    """Sums the numbers of all processes that each kind of collective takes."""

    def __init__(self, world):
        super().__init__()
        self.world, self.numbers, self.others = world, Counter(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "c10d" in function.namespace:
            name = function.__name__.partition(".")[0].rstrip("_")
            # torch.distributed's own take a list of tensors.
            tensor = args[0][0] if isinstance(args[0], list) else args[0]
            if name in ("all_reduce", "allreduce"):
                self.numbers["all_reduce"] += tensor.numel()
            elif name == "all_gather_into_tensor":
                self.numbers["all_gather"] += tensor.numel() * self.world
            elif name == "reduce_scatter_tensor":
                self.numbers["reduce_scatter"] += tensor.numel()
            elif name not in ("wait_tensor", "_wrap_tensor_autograd"):
                self.others.add(str(function))
        return function(*args, **(kwargs or {}))


def count(rank, world, folder):
    found = []
    rules = LimeConfig.local_heads_tp_plan
    for case, way in MEASURED:
        LimeConfig.local_heads_tp_plan = {} if way == GATHERED else rules
        model = load(folder / case, world)
        ids = some_ids()
        with CountedCollectives(world) as counted:
            model(ids, labels=ids).loss.backward()
        assert not counted.others, counted.others
        found.append(dict(counted.numbers))
    return found


@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no distributed package")
@pytest.mark.skipif(TRANSFORMERS < (5, 23), reason="older transformers send something else")
@pytest.mark.slow
def test_a_step_sends_what_is_counted(tmp_path, traffic):
    world = 4
    for case, _ in MEASURED:
        a_model(case).save_pretrained(tmp_path / case)
    tokens = some_ids().numel()
    for of_rank in in_processes(count, world, tmp_path):
        for (case, way), found in zip(MEASURED, of_rank, strict=True):
            config = a_config(case)
            numbers = traffic.count_collectives(config, way)
            expected = {kind: tokens * n for kind, n in numbers.items() if n}
            expected["all_reduce"] += traffic.count_router_gradients(config, way)
            assert found == expected, f"{case}, {way}"


def test_the_page_shows_what_is_counted(traffic):
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for model, way, cells in traffic.rows(traffic.DEGREES, 8192):
        assert f"| {model} | {way} | {' | '.join(cells)} |" in page, (model, way)
