"""DenseFormer: bad settings, and the sources and the weight of a hand-computed sum."""

import torch
from tiny import TINY

from layermem.models.registry import build
from layermem.variants.denseformer import DenseformerConfig, source_depths


def test_the_sources_of_a_sum():
    config = DenseformerConfig(**{**TINY, "num_hidden_layers": 6}, dilation=4, period=2)
    sources = [source_depths(config, depth) for depth in range(1, 7)]
    assert sources == [(), (2,), (), (0, 4), (), (2, 6)]


def test_weights_on_earlier_layers_alone_give_the_embedding():
    model = build("denseformer", **TINY).eval()
    with torch.no_grad():
        weights = model.model.layers[-1].mlp_connection.weights.weight
        weights.copy_(torch.tensor([[1.0, 0, 0, 0, 0]]))
        ids = torch.arange(5)[None]
        hidden = model.model(ids).last_hidden_state
        torch.testing.assert_close(hidden, model.model.norm(model.model.embed_tokens(ids)))
