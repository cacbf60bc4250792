"""Fields that no variant of a name can have: each is refused, and what is wrong is named."""

import math

import pytest
from tiny import TINY

from layermem import RECIPE
from layermem.models.registry import lookup

# Of models of four layers: the variant, its fields, and what the error names.
REFUSED = [
    ("attention_residuals", {"residual_form": "block", "block_size": 3}, "block_size|got 3"),
    ("attention_residuals", {"residual_form": "block", "block_size": 0}, "got 0"),
    ("attention_residuals", {"block_size": 2}, "block_size=2"),
    ("attention_residuals", {"residual_form": "blocks"}, "delta"),
    ("attention_residuals", {"gate_init": 1.0}, "gate_init"),
    ("attention_residuals", {"residual_form": "delta", "scale_by_sources": False}, "scale_by"),
    ("cla", {"sharing": 0}, "sharing"),
    ("cla", {"kv_source_layers": [0, 0, 2]}, "each of 4 layers"),
    ("cla", {"kv_source_layers": [0, 0, 1, 3]}, r"kv_source_layers\[2\]"),
    ("cla", {"kv_source_layers": [0, 2, 2, 3]}, r"kv_source_layers\[1\]"),
    ("cla", {"kv_source_layers": [1, 1, 2, 3]}, r"kv_source_layers\[0\]"),
    ("cla", {"kv_source_layers": [0, 0, 2, 2], "sharing": 4}, "sharing"),
    ("dca", {"recent": 0}, "recent"),
    ("dca", {"recent": 5}, "recent"),
    ("depth_attention", {"stride": 0}, "stride"),
    ("depth_attention", {"stride": 5}, "stride"),
    ("depth_attention", {"window": 1}, "window"),
    ("depth_attention", {"values": "rotated"}, "rotated"),
    ("depth_attention", {"gate": "token"}, "token"),
    ("fused_kv", {"num_kv_shared_layers": 3}, "got 3"),
    ("fused_kv", {"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
    ("midpoint", {"num_upper_layers": 4}, "at most 3"),
    ("yoco", {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
    ("lime", {"router": "last"}, "router_window"),
    ("lime", {"router": "first", "router_window": 0}, "router_window"),
    ("lime", {"router": "average", "router_window": 2}, "router_window"),
    ("lime", {"router": "average", "router_grain": "layer"}, "router_grain"),
    ("lime", {"router": "average", "router_shares_kv": False}, "router_shares_kv"),
    ("lime", {"router_init": "value_residual"}, "router_init"),
    ("lime", {**RECIPE, "router": "last", "router_window": 2}, "router_init"),
    ("lime", {"router": "nearest"}, "nearest"),
    ("lime", {"router_sources": [[], [0]]}, "router_sources"),
    ("lime", {"router_sources": [[], [0], [2], []]}, "router_sources"),
    ("lime", {"router_sources": [[], [0], [1, 0], []]}, "router_sources"),
    ("lime", {"router_sources": [[], [0], [-1], []]}, "router_sources"),
    ("lime", {"router_sources": [[], [0, 0], [], []]}, "router_sources"),
    ("lime_half", {"storage": 0}, "storage"),
    ("lime_half", {"storage": [1, 2]}, "storage"),
    ("lime_half", {"storage": [0, 2, 1]}, "storage"),
    ("lime_half", {"storage": [0, 4]}, "storage"),
    ("lime_half", {"router_sources": [[], [], [1], []]}, "router_sources"),
    ("lime_hidden", {"form": "average"}, "average"),
    ("mudd", {"mixing_layers": 5}, "mixing_layers"),
    ("mudd", {"mixing_sources": [0, 4]}, "mixing_sources"),
    ("mudd", {"mixing_ways": ["value"], "mixing_layers": 1}, "residual"),
    ("mudd", {"mixing_ways": ["keys"]}, "keys"),
    ("value_residual", {"form": "mean"}, "mean"),
    ("value_residual", {"form": "constant", "first_weight": math.nan}, "first_weight"),
    ("value_residual", {"last_layers": 0}, "last_layers"),
]


@pytest.mark.parametrize(("name", "fields", "named"), REFUSED, ids=str)
def test_fields_that_cannot_be_are_named(name, fields, named):
    # An unknown choice is an error of a type of huggingface_hub's.
    with pytest.raises(Exception, match=named):
        lookup(name).config(**TINY, **fields)
