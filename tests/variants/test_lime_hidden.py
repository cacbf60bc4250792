"""LIMe on hidden states: initial weights, pruning, inputs for each head, what is refused."""

import pytest
import torch
from tiny import TINY
from torch import nn

import layermem
from layermem.models.layers import HeadwiseLinear
from layermem.models.registry import lookup

ENTRY = lookup("lime_hidden")


def weights(model):
    return [layer.attn_connection.weights for layer in model.model.layers[1:]]


def test_initial_weights():
    torch.manual_seed(0)
    fields = {**TINY, "hidden_size": 64, "num_attention_heads": 32, "num_key_value_heads": 32}
    logits = [w.logits for w in weights(layermem.build("lime_hidden", **fields))]
    assert [tuple(x.shape) for x in logits] == [(32, 2), (32, 3), (32, 4)]
    together = torch.cat([x.flatten() for x in logits])
    assert together.std().item() == pytest.approx(0.1, rel=0.1)
    assert abs(together.mean().item()) < 0.02
    assert not torch.equal(logits[0][:, :2], logits[1][:, :2])
    dynamic = weights(layermem.build("lime_hidden", **fields, form="dynamic"))
    assert tuple(dynamic[2].projection.shape) == (32 * 4, 64)
    assert dynamic[2].projection.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("bias", [True, False])
def test_an_input_for_each_head(bias):
    torch.manual_seed(0)
    linear = HeadwiseLinear(6, 12, bias=bias)
    x = torch.randn(3, 2, 5, 6)
    out = linear(x)
    for head in range(3):
        expected = nn.functional.linear(x[head], linear.weight, linear.bias)
        here = slice(4 * head, 4 * head + 4)
        torch.testing.assert_close(out[..., here], expected[..., here])
    torch.testing.assert_close(linear(x[0]), nn.functional.linear(x[0], linear.weight, linear.bias))


def test_a_part_of_the_weight_is_refused():
    linear = HeadwiseLinear(6, 12, bias=False)
    linear.weight = nn.Parameter(linear.weight[:6])
    with pytest.raises(NotImplementedError, match="of 12 rows, for inputs of 3 heads, got 6 rows"):
        linear(torch.randn(3, 2, 5, 6))
