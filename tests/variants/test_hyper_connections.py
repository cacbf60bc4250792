"""Hyper-Connections: the read of each connection, autocast."""

import torch
from tiny import TINY

import layermem


def test_attention_and_mlp_count_as_connections():
    model = layermem.build("hyper_connections", **TINY, streams=3)
    read = []
    for layer in model.model.layers:
        for connection in (layer.attn_connection, layer.mlp_connection):
            read.append(int(connection.weights.static[0].argmax()))
    assert read == [0, 1, 2, 0, 1, 2, 0, 1]


def test_autocast_does_not_round_the_residual():
    """At the start the streams are the plain residual, in float32 under autocast too."""
    models = []
    for name in ("plain", "hyper_connections"):
        torch.manual_seed(0)
        models.append(layermem.build(name, **TINY).train())
    ids = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        plain, ours = (model.model(ids).last_hidden_state for model in models)
    assert plain.dtype == ours.dtype == torch.float32
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)
