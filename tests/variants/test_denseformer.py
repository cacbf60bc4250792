"""DenseFormer: the weight of a hand-computed sum."""

import torch
from tiny import TINY

from layermem.models.registry import build


def test_weights_on_earlier_layers_alone_give_the_embedding():
    model = build("denseformer", **TINY).eval()
    with torch.no_grad():
        weights = model.model.layers[-1].mlp_connection.weights.weight
        weights.copy_(torch.tensor([[1.0, 0, 0, 0, 0]]))
        ids = torch.arange(5)[None]
        hidden = model.model(ids).last_hidden_state
        torch.testing.assert_close(hidden, model.model.norm(model.model.embed_tokens(ids)))
