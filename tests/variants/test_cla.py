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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sharing": 0}, "sharing"),
        ({"kv_source_layers": [0, 0, 2]}, r"each of 4 layers, got \[0, 0, 2\]"),
        ({"kv_source_layers": [0, 0, 1, 3]}, r"kv_source_layers\[2\].*got 1 in"),
        ({"kv_source_layers": [0, 2, 2, 3]}, r"kv_source_layers\[1\].*got 2 in"),
        ({"kv_source_layers": [1, 1, 2, 3]}, r"kv_source_layers\[0\].*got 1 in"),
        ({"kv_source_layers": [0, 0, 2, -1]}, "kv_source_layers"),
        ({"kv_source_layers": [0, 0, 2, 2], "sharing": 4}, "give one of them"),
    ],
    ids=str,
)
def test_sources_that_cannot_be_are_named(fields, message):
    with pytest.raises(Exception, match=message):
        ClaConfig(**TINY, **fields)
