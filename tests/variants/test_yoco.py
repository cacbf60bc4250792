"""YOCO: which layers share, and how many can."""

import pytest
import torch
from tiny import TINY

import layermem
from layermem.variants.yoco import YocoConfig


@pytest.mark.parametrize(
    ("shared", "sources"),
    [(None, [0, 1, 1, 1]), (0, [0, 1, 2, 3]), (1, [0, 1, 2, 2]), (3, [0, 0, 0, 0])],
)
def test_it_is_cla_with_a_list(shared, sources, ids):
    models = []
    for name, fields in (
        ("yoco", {"num_kv_shared_layers": shared}),
        ("cla", {"kv_source_layers": sources}),
    ):
        torch.manual_seed(0)
        models.append(layermem.build(name, **TINY, **fields).eval())
    yoco, cla = models
    assert torch.equal(yoco(ids).logits, cla(ids).logits)


def test_half_of_an_odd_depth_is_the_smaller_one():
    assert YocoConfig(**{**TINY, "num_hidden_layers": 5}).num_storing == 3
