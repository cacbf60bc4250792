"""FusedKV: its start, its two sources, and what is known of its weights."""

import pytest
import torch
from tiny import TINY

import layermem
from layermem.models.seams import WeightsUnknown
from layermem.variants.fused_kv import FusedKVConfig


def build(**fields):
    torch.manual_seed(0)
    return layermem.build("fused_kv", **TINY, **fields).eval()


def test_a_new_mixture_computes_what_lite_does(ids):
    mixed, lite = build(), build(fusion="lite")
    assert torch.equal(mixed(ids).logits, lite(ids).logits)
    assert mixed.num_parameters() - lite.num_parameters() == 2 * 3 * 2 * 8


def test_lite_reads_keys_of_the_last_and_values_of_the_first():
    weights = build(fusion="lite").model.layers[3].self_attn.memory.static_weights_by_part()
    for part, expected in (("key", [0, 1]), ("value", [1, 0])):
        sources, weight = weights[part]
        assert sources == (0, 1)
        assert weight.flatten().tolist() == expected


def test_weights_of_channels_are_no_weights_of_heads():
    with pytest.raises(WeightsUnknown, match="each channel"):
        build().model.layers[3].self_attn.memory.static_weights_by_part()


def test_two_layers_are_left_by_default():
    two = {**TINY, "num_hidden_layers": 2}
    assert FusedKVConfig(**two).num_storing == 2
    # Nothing to mix: the plain decoder.
    assert FusedKVConfig(**TINY, num_kv_shared_layers=0).kv_sharing_modes is None
