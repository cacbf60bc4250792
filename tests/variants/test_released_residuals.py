"""Connections of released models: modules of transformers compute what ours do, equal weights."""

import pytest
import torch
from tiny import TINY, make

from layermem.models.registry import lookup

X = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
Y = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
STREAMS = torch.randn(2, 5, 4, 32, generator=torch.Generator().manual_seed(2))


def module_of(model, name, **fields):
    """Return a module of transformers' and its config."""
    path = f"transformers.models.{model}"
    reason = f"this transformers has no {model}"
    modeling = pytest.importorskip(f"{path}.modeling_{model}", reason=reason)
    config = pytest.importorskip(f"{path}.configuration_{model}", reason=reason)
    kind, module = (getattr(of, name) for of, name in zip((config, modeling), name, strict=True))
    return module(kind(**fields))


def layer_of(name, **fields):
    """Return layer 1 of a model of ours."""
    model = make(lookup(name).causal_lm, lookup(name).config(**TINY, **fields))
    return model.model.layers[1]


def load(module, **weights):
    names = {name for name, _ in module.named_parameters()}
    module.load_state_dict(weights)
    assert names == weights.keys()


@torch.no_grad()
def test_laurel_is_that_of_gemma3n():
    layer = layer_of("laurel", laurel_form="gemma3n", laurel_rank=3)
    theirs = module_of(
        "gemma3n",
        ("Gemma3nTextConfig", "Gemma3nTextLaurelBlock"),
        hidden_size=32,
        laurel_rank=3,
        rms_norm_eps=1e-6,
    )
    ours = layer.attn_connection.low_rank
    names = ("linear_left.weight", "linear_right.weight", "post_laurel_norm.weight")
    load(theirs, **dict(zip(names, (ours.left, ours.right, ours.gain), strict=True)))
    h, carry = layer.attn_connection.read((X,), layer.input_layernorm)
    (got,) = layer.attn_connection.write(carry, Y)
    torch.testing.assert_close(got, (X + Y + theirs(h)) / 2**0.5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "prefix", "fields"),
    [
        ("hy_v4", "HYV4", {"res": "identity"}),
        ("deepseek_v4", "DeepseekV4", {"res": "sinkhorn", "rounds": 7}),
    ],
)
def test_mhc_is_that_of_a_released_model(model, prefix, fields):
    """But for their hc_eps, which is added to weights."""
    layer, n = layer_of("mhc", **fields), 4
    theirs = module_of(
        model,
        (f"{prefix}Config", f"{prefix}HyperConnection"),
        **{"hidden_size": 32, "hc_mult": n, "hc_eps": 0.0, "rms_norm_eps": 1e-6},
        **({"hc_sinkhorn_iters": fields["rounds"]} if "rounds" in fields else {}),
    )
    ours, matrix = layer.attn_connection.weights, layer.attn_connection.projection.weight
    base = ours.bias.clone()
    base[:n] += ours._read_logits(base)
    # Their mixing matrix is the transpose of ours.
    order = torch.arange(len(base))
    order[2 * n :] = order[2 * n :].view(-1, n).mT.flatten() if len(base) > 2 * n else order[:0]
    load(theirs, fn=matrix[order], base=base[order], scale=ours.scale)
    write, *mixing, read = theirs(STREAMS)
    expected = write[..., None] * Y[:, :, None] + (mixing[0].mT @ STREAMS if mixing else STREAMS)
    x, carry = layer.attn_connection.read((X, STREAMS), lambda h: h)
    torch.testing.assert_close(x, read)
    torch.testing.assert_close(layer.attn_connection.write(carry, Y)[1], expected)


@torch.no_grad()
def test_the_gated_residual_is_that_of_qwen4_exp():
    layer = layer_of("gated_residual", streams=4, gate_rank=3)
    theirs = module_of(
        "qwen4_exp",
        ("Qwen4ExpTextConfig", "Qwen4ExpTextGatedResidual"),
        **{"hidden_size": 32, "hc_count": 4, "hc_lowrank": 3, "rms_norm_eps": 1e-6},
    )
    ours = layer.attn_connection.gates
    load(
        theirs,
        **{
            "hc_norm.weight": ours.gain - 1,
            "input_mix_weight_down.weight": ours.down,
            "input_mix_weight_up.weight": ours.up,
            "block_inject_weight.weight": ours.write,
        },
    )
    read, _, write = theirs(STREAMS.flatten(2))
    x, carry = layer.attn_connection.read((X, STREAMS), layer.input_layernorm)
    torch.testing.assert_close(x, read)
    after = layer.attn_connection.write(carry, Y)[1]
    torch.testing.assert_close(after, STREAMS + write[..., None] * Y[:, :, None])


@torch.no_grad()
def test_blocks_are_weighed_as_in_inkling2():
    """It sums sources that are normed too, which the paper's form and ours sum as they are."""
    layer = layer_of("attention_residuals", residual_form="block", block_size=4)
    place, seen = layer.mlp_connection.place, []
    weights = place.weights
    theirs = module_of(
        "inkling2", ("Inkling2TextConfig", "Inkling2BlockAttentionResidual"), hidden_size=32
    )
    # Theirs divides by sqrt(D) and has no gain.
    load(theirs, query=weights.query * weights.gain * 32**0.5)
    weights.register_forward_hook(lambda *args: seen.append(args[-1] / weights.factor))
    place(X, *place.complete(Y, ()))
    (expected,) = theirs(Y[:, :, None], X)
    normed = torch.nn.functional.rms_norm(torch.stack([Y, X], 2), (32,), eps=place.eps)
    torch.testing.assert_close((seen[0] @ normed).squeeze(2), expected)
