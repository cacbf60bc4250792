"""What scripts of benchmarks/ count of traffic: what a step moves or sends, and the pages' rows."""

import chain
import pytest
import torch
from scripts import ROOT, load_script
from tiny import TINY, make
from torch.utils._python_dispatch import TorchDispatchMode

from layermem.models.registry import lookup
from layermem.models.stages import DecoderStage, stage_layers

routing, pipeline, tensor_parallel = (
    load_script(f"benchmarks/{name}.py")
    for name in ("traffic", "pipeline_traffic", "tensor_parallel_traffic")
)
# Numbers of a row of the buffer, and of its half: no weight of the chain has rows as long.
ROWS = {2 * 2 * 7 * 5, 2 * 7 * 5}
SLOT = chain.HEADS * max(ROWS)


class Counted(TorchDispatchMode):
    """Sums the slots that matrix products read and write, and copies."""

    products = copies = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if "mm" in str(function):
            self.products += sum(x.numel() for x in (*args, out) if ROWS & {*x.shape}) / SLOT
        elif "copy_" in str(function) and args[0].numel() == SLOT / 2:
            self.copies += 1
        return out


def test_transfers_of_routing_are_those_of_a_step():
    # As on a GPU; in float32 on a CPU layers are in groups.
    x, model = chain.an_input(dtype=torch.bfloat16), chain.Depth(9).bfloat16()
    with Counted() as counted:
        model(x).sum().backward()
    assert counted.products == routing.count_products(9)
    assert counted.copies == routing.count_copies(9)


@pytest.mark.parametrize("way", pipeline.WAYS)
def test_bytes_of_a_pipeline_are_those_that_stages_send(way, ids, monkeypatch):
    sizes = 8, TINY["hidden_size"], TINY["num_attention_heads"], TINY["num_key_value_heads"]
    monkeypatch.setitem(pipeline.MODELS, "tiny", sizes)
    name, fields = pipeline.WAYS[way]
    entry = lookup(name)
    model = make(entry.causal_lm, entry.config(**{**TINY, "num_hidden_layers": 8, **fields}))
    sent, total = (ids,), 0
    for layers in stage_layers(8, 4)[:-1]:
        sent = DecoderStage(model, layers)(*sent)
        total += sum(x.nbytes for x in sent)
    assert total == pipeline.count_bytes("tiny", way, 4, ids.numel(), size=4)


def test_the_page_of_costs_shows_what_is_counted():
    page = (ROOT / "docs" / "results" / "costs.md").read_text(encoding="utf-8")
    counts = [routing.count_transfers(layers) for layers in routing.DEPTHS]
    for form in counts[0]:
        row = f"| {' | '.join(str(count[form]) for count in counts)} |"
        assert row in page, row


def test_the_page_of_training_says_what_is_counted():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    said = []
    for model in ("1B, 8 kv heads", "1B, 32 kv heads"):
        for degree in tensor_parallel.DEGREES:
            ours, plain = (
                tensor_parallel.count_bytes(model, way, degree, 8192)
                for way in ("LIMe, by source", "plain")
            )
            said.append(f"{ours / plain:.2f} times")
    for way in ("LIMe, full", "LIMe, last 4"):
        ours, plain = (
            pipeline.count_bytes("1B, 8 kv heads", each, 4, 2048) for each in (way, "plain")
        )
        said.append(f"{ours / plain:.1f} times")
    assert [each for each in said if each not in page] == []
