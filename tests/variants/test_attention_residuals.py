"""Attention residuals: bad settings, the sources of each place, and weights that choose one."""

import pytest
import torch
from tiny import TINY, make

from layermem.models.registry import build, lookup
from layermem.variants.attention_residuals import AttentionResidualsConfig, source_names


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"residual_form": "block", "block_size": 3}, "= 8: one of 1, 2, 4, 8; got 3"),
        ({"residual_form": "block", "block_size": 0}, "got 0"),
        ({"block_size": 2}, 'residual_form="full" has no block_size, got block_size=2'),
        ({"residual_form": "delta", "block_size": 2}, 'residual_form="delta" has no block_size'),
        ({"residual_form": "blocks"}, "full.*block.*delta"),
        ({"gate_init": 1.0}, 'residual_form="full" has no gate_init, got gate_init=1'),
        ({"residual_form": "delta", "scale_by_sources": False}, "got scale_by_sources=False"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(Exception, match=message):
        AttentionResidualsConfig(**TINY, **fields)


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


def test_delta_with_an_open_gate_adds_the_mixture(ids):
    """The gate is added to the residual, not put in its place."""
    model = build("attention_residuals", **TINY, residual_form="delta", gate_init=1.0).eval()
    place = model.model.layers[0].mlp_connection.place
    x, y = torch.randn(2, 1, 3, 32)
    assert place.weights is None and place.gate.weight.item() == 1
    torch.testing.assert_close(place(x, *place.complete(y, ()))[0], x + y)


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


def test_blocks_keep_less_for_the_backward_than_all_outputs():
    """The open block, a source of one place, has no memory for sources that never come."""

    def kept_bytes(form):
        fields = {**TINY, "num_hidden_layers": 16, "residual_form": form}
        model, kept = build("attention_residuals", **fields), {}

        def record(tensor):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        ids = torch.zeros(2, 32, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            loss = model(ids, labels=ids, use_cache=False).loss
        del loss
        return sum(kept.values())

    assert kept_bytes("block") < kept_bytes("full")
