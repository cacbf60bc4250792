"""Hyper-Connections: bad input, the read of each connection, the initial write, autocast."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tiny import TINY

import layermem
from layermem.variants.hyper_connections import HyperConnectionsConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"streams": 0}, "streams must be at least 1, got 0"),
        ({"coefficients": "learned"}, "learned"),
        ({"output_scale": "2"}, "output_scale"),
        ({"coefficients": "static", "tanh": False}, "leave tanh=False out"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(StrictDataclassError) as raised:
        HyperConnectionsConfig(**TINY, **fields)
    assert message in f"{raised.value} {raised.value.__cause__}"


def test_attention_and_mlp_count_as_connections():
    model = layermem.build("hyper_connections", **TINY, streams=3)
    read = []
    for layer in model.model.layers:
        for connection in (layer.attn_connection, layer.mlp_connection):
            read.append(int(connection.weights.static[0].argmax()))
    assert read == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize(("power", "factor"), [("-1/2", 0.5), ("none", 1.0), ("+1/2", 2.0)])
def test_output_scale_is_what_outputs_are_written_with(power, factor):
    model = layermem.build("hyper_connections", **TINY, output_scale=power)
    for layer in model.model.layers:
        for connection in (layer.attn_connection, layer.mlp_connection):
            assert connection.weights.static[-1].tolist() == [factor] * 4


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
