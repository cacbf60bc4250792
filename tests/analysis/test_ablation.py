"""Groups of routers' weights that are left out, and put back."""

import copy

import pytest
import torch
from tiny import TINY
from torch.nn.utils import parametrize

import layermem
from layermem_bench.analysis.ablation import weight_groups, without

IDS = torch.arange(12)[None] % 13


def build(**fields):
    torch.manual_seed(0)
    return layermem.build("lime", **{**TINY, "num_hidden_layers": 4, **fields}).eval()


APART = [
    *("keys of the first layer", "keys of the other earlier layers"),
    *("values of the first layer", "values of the other earlier layers"),
]


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({}, ["keys and values of the first layer", "keys and values of the other earlier layers"]),
        ({"router_shares_kv": False}, APART),
        (dict(layermem.RECIPE), APART),
        ({"router_shares_kv": False, "router": "last", "router_window": 1}, []),
    ],
    ids=["one", "apart", "recipe", "own alone"],
)
def test_groups_are_named_by_what_is_read_and_from_where(fields, groups):
    assert list(weight_groups(build(**fields))) == groups


def test_a_plain_decoder_has_none():
    assert weight_groups(layermem.build("plain", **TINY)) == ()


@pytest.mark.parametrize("grain", ["pair", "layer"])
@pytest.mark.parametrize("group", APART)
@torch.no_grad()
def test_a_model_without_a_group_is_one_whose_weights_are_zero(grain, group):
    model = build(router_shares_kv=False, router_grain=grain)
    zeroed = copy.deepcopy(model)
    name = "value_weight" if group.startswith("values") else "weight"
    for layer in zeroed.model.layers[1:]:
        router = layer.self_attn.memory
        for place, source in enumerate(router.sources):
            if source != router.layer and (source == 0) == ("first" in group):
                at = slice(place * router.columns, (place + 1) * router.columns)
                getattr(router, name)[:, at] = 0
    before = model(IDS).logits
    with without(model, group):
        assert torch.equal(model(IDS).logits, zeroed(IDS).logits)
    assert torch.equal(model(IDS).logits, before)
    assert not torch.equal(zeroed(IDS).logits, before)


def test_weights_are_put_back_after_an_error():
    model = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="stopped"), without(model, weight_groups(model)[0]):
        raise RuntimeError("stopped")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_what_cannot_be_left_out_is_refused():
    group = "keys of the first layer"
    with pytest.raises(ValueError, match=f"has no weights for '{group}'"), without(build(), group):
        pass
    model = build()
    parametrize.register_parametrization(
        model.model.layers[2].self_attn.memory, "weight", torch.nn.Tanh()
    )
    with pytest.raises(ValueError, match="router of layer 2 are computed at each look"):
        weight_groups(model)
