"""Attention residuals: bad settings, the sources of each place, and weights that choose one."""

import pytest
import torch
from tiny import TINY, make

from layermem.models.registry import lookup
from layermem.variants.attention_residuals import AttentionResidualsConfig, source_names


def test_a_block_is_completed_before_the_sub_layer_that_opens_the_next_reads():
    config = AttentionResidualsConfig(**TINY, residual_form="block", block_size=2)
    names = [source_names(config, place) for place in range(5)]
    assert names == [
        ("embedding",),
        ("embedding", "open block"),
        ("embedding", "block 0"),
        ("embedding", "block 0", "open block"),
        ("embedding", "block 0", "block 1"),
    ]
    assert source_names(config, 8) == ("embedding", *(f"block {i}" for i in range(4)))


@pytest.mark.parametrize(("layers", "size"), [(1, 1), (4, 1), (5, 2), (32, 8), (33, 11), (100, 25)])
def test_there_are_at_most_8_blocks_unless_told(layers, size):
    fields = {**TINY, "num_hidden_layers": layers}
    config = AttentionResidualsConfig(**fields, residual_form="block")
    assert config.sub_layers_per_block() == size


def test_the_weights_of_a_place_sum_to_the_number_of_its_sources(ids):
    entry = lookup("attention_residuals")
    model = make(entry.causal_lm, entry.config(**TINY))
    seen = []
    weights = model.model.stream.place.weights
    weights.register_forward_hook(lambda *args: seen.append(args[-1]))
    with torch.no_grad():
        model(ids)
    assert seen[0].shape == (*ids.shape, 1, 9) and len(weights.sources) == 9
    torch.testing.assert_close(seen[0].sum(-1), torch.full((*ids.shape, 1), 9.0))
    assert seen[0].std() > 0.01
