"""LIMe on hidden states: initial weights, pruning, inputs for each head, what is refused."""

import pytest
import torch
from tiny import TINY, make
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


def test_pruning_keeps_the_fewest_layers_and_renormalises(ids, tmp_path):
    model = make(ENTRY.causal_lm, ENTRY.config(**TINY))
    with torch.no_grad():
        weights(model)[2].logits.copy_(
            torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.9, 0.04, 0.03, 0.03]]).log()
        )
    counts = model.prune_top_p(0.7)
    assert counts[2] == 3
    pruned = weights(model)[2](torch.zeros(1, 1, TINY["hidden_size"]))
    expected = torch.tensor([[0, 2 / 3, 0, 1 / 3], [1, 0, 0, 0]])
    torch.testing.assert_close(pruned, expected)
    # What is pruned stays so: through a file, and through training.
    model.save_pretrained(tmp_path)
    loaded = ENTRY.causal_lm.from_pretrained(tmp_path).train()
    optimiser = torch.optim.AdamW(loaded.parameters(), lr=1e-2, weight_decay=0.0)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    for _ in range(2):
        optimiser.zero_grad()
        loaded(ids, labels=ids).loss.backward()
        optimiser.step()
    assert all(p.isfinite().all() for n, p in loaded.named_parameters() if "logits" not in n)
    found = weights(loaded)[2](torch.zeros(1, 1, TINY["hidden_size"]))
    assert torch.equal(found == 0, expected == 0)


@pytest.mark.parametrize(
    ("fields", "p", "message"),
    [
        ({"form": "dynamic"}, 0.5, 'form="static", got "dynamic"'),
        ({}, 0.0, r"p must be in \(0, 1\], got 0.0"),
        ({}, 1.5, "got 1.5"),
        ({}, float("nan"), "got nan"),
    ],
)
def test_bad_pruning_is_refused(fields, p, message):
    model = layermem.build("lime_hidden", **TINY, **fields)
    with pytest.raises(ValueError, match=message):
        model.prune_top_p(p)


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
