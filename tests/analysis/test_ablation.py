"""Groups of routers' weights that are left out, and put back."""

import copy

import pytest
import torch
from tiny import TINY
from torch.nn.utils import parametrize

import layermem
from layermem_bench.analysis.ablation import weight_groups, without

IDS = torch.arange(12)[None] % 13
PLACES = ("the first layer", "the other earlier layers")
APART = [f"{reads} of {place}" for reads in ("keys", "values") for place in PLACES]


def build(variant="lime", **fields):
    torch.manual_seed(0)
    return layermem.build(variant, **{**TINY, "num_hidden_layers": 4, **fields}).eval()


@pytest.mark.parametrize(
    ("variant", "fields", "groups"),
    [
        ("lime", {}, [f"keys and values of {place}" for place in PLACES]),
        ("lime", {"router_shares_kv": False}, APART),
        ("lime", dict(layermem.RECIPE), APART),
        ("lime", {"router_shares_kv": False, "router": "last", "router_window": 1}, []),
        ("plain", {}, []),
    ],
)
def test_groups_are_named_by_what_is_read_and_from_where(variant, fields, groups):
    assert list(weight_groups(build(variant, **fields))) == groups


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
    with pytest.raises(RuntimeError), without(model, group):
        assert torch.equal(model(IDS).logits, zeroed(IDS).logits)
        raise RuntimeError("stopped")
    # They are put back, also after an error.
    assert torch.equal(model(IDS).logits, before)
    assert not torch.equal(zeroed(IDS).logits, before)


def test_what_cannot_be_left_out_is_refused():
    model = build()
    with pytest.raises(ValueError, match="keys of nothing"), without(model, "keys of nothing"):
        pass
    router = model.model.layers[2].self_attn.memory
    parametrize.register_parametrization(router, "weight", torch.nn.Tanh())
    with pytest.raises(ValueError, match="layer 2"):
        weight_groups(model)
