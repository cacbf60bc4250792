"""CLA: groups and lists of sources, and what cannot be."""

import pytest
import torch
from tiny import TINY, make

import layermem
from layermem.variants.cla import ClaConfig

SIZES = {k: v for k, v in TINY.items() if k != "num_hidden_layers"}


@pytest.mark.parametrize(
    ("layers", "sharing", "sources"),
    [(4, 2, [0, 0, 2, 2]), (5, 2, [0, 0, 2, 2, 4]), (5, 3, [0, 0, 0, 3, 3]), (3, 9, [0, 0, 0])],
)
def test_groups_are_the_lists_of_their_lowest_layers(layers, sharing, sources, ids):
    groups, listed = (
        make(
            type(layermem.build("cla", **TINY)),
            ClaConfig(**SIZES, num_hidden_layers=layers, **fields),
        )
        for fields in ({"sharing": sharing}, {"kv_source_layers": sources})
    )
    assert torch.equal(groups(ids).logits, listed(ids).logits)
    assert [layer.lenders for layer in listed.model.layers] == [
        () if source == layer else (source,) for layer, source in enumerate(sources)
    ]
