"""DCA: bad settings, sources, and the sums at weights known beforehand."""

import pytest
import torch
from tiny import TINY

from layermem.models.registry import build
from layermem.variants.dca import DcaConfig, source_names


def test_the_sources_of_a_layer():
    config = DcaConfig(**TINY, recent=2)
    assert [source_names(config, i) for i in range(4)] == [
        ("embedding",),
        ("embedding", "layer 0"),
        ("embedding", "layer 0", "layer 1"),
        ("embedding", "middle layers", "layer 1", "layer 2"),
    ]
    assert source_names(DcaConfig(**TINY), 3)[1:] == ("layer 0", "layer 1", "layer 2")


@pytest.mark.parametrize("recent", [None, 1, 3])
def test_with_weights_of_one_the_sum_is_the_residual(recent, ids):
    """The stack holds the residual: nothing is added twice."""
    model = build("dca", **TINY, recent=recent).double().eval()
    plain = build("plain", **TINY).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        start = (model(ids).logits - plain(ids).logits).abs().max()
        for layer in model.model.layers:
            layer.attn_connection.weights.vectors.zero_()
        assert (model(ids).logits - plain(ids).logits).abs().max() <= 1e-12
    assert 0 < start < 1e-2
