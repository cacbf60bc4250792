"""LIMe: the initialisation table, the ablations, the summary and the pruning of routers."""

import copy
import itertools
import math

import pytest
import torch
from tiny import TINY, make

import layermem
from layermem import LimeConfig, LimeForCausalLM, LimeRouter
from layermem.variants.lime import Lime


def routers(model):
    return {m.sources[-1]: m for m in model.modules() if isinstance(m, LimeRouter)}


@pytest.mark.parametrize(("heads", "layer"), [(8, 1), (4, 7), (1, 30)])
def test_initial_weights_of_the_paper(heads, layer):
    bound = math.sqrt(3 / ((layer + 1) * heads))
    off, seeds = [], range(max(1, 4000 // (layer * heads * heads)))
    for seed in seeds:
        torch.manual_seed(seed)
        weight = LimeRouter(heads, range(layer + 1)).weight
        assert weight.shape == (heads, (layer + 1) * heads)
        assert torch.equal(weight[:, -heads:], torch.eye(heads))
        off.append(weight[:, :-heads].flatten())
    off = torch.cat(off).detach()
    # Uniform on (-b, b): the ends are reached and not crossed, mean 0, variance b^2 / 3.
    assert off.abs().max() <= bound
    assert off.abs().max() > 0.98 * bound
    assert abs(off.mean()) < 4 * bound / math.sqrt(3 * len(off))
    assert off.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


def test_identity_init_and_fixed_average():
    heads = 3
    identity = LimeRouter(heads, range(4), init="identity")
    assert torch.equal(identity.weight[:, -heads:], torch.eye(heads))
    assert identity.weight[:, :-heads].abs().sum() == 0
    average = LimeRouter(heads, range(4), init="average")
    assert torch.equal(average.weight, torch.eye(heads).repeat(1, 4) / 4)
    assert not list(average.parameters()) and not average.state_dict()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"router": "full"}, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        ({"router": "average"}, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        ({"router": "last", "router_window": 1}, [[0], [1], [2], [3], [4]]),
        ({"router": "last", "router_window": 2}, [[0], [0, 1], [1, 2], [2, 3], [3, 4]]),
        ({"router": "last", "router_window": 9}, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
        ({"router": "first", "router_window": 1}, [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]]),
        (
            {"router": "first", "router_window": 2},
            [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 3, 4]],
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_sources_of_the_ablations(fields, expected):
    config = LimeConfig(**{**TINY, "num_hidden_layers": len(expected)}, **fields)
    found = [[*Lime.sources(config, i), i] for i in range(len(expected))]
    assert found == expected
    built = routers(LimeForCausalLM(config))
    assert sorted(built) == list(range(1, len(expected)))
    assert all(list(built[i].sources) == expected[i] for i in built)


def test_the_average_is_exact_in_the_dtype_of_the_model(tmp_path):
    fields = {**TINY, "router": "average"}
    layermem.build("lime", **fields).save_pretrained(tmp_path)
    for model in (
        layermem.build("lime", **fields).double(),
        layermem.build("lime", **fields).bfloat16().double(),
        layermem.build("lime", **fields, dtype="float64"),
        LimeForCausalLM.from_pretrained(tmp_path, dtype=torch.float64),
    ):
        for n_layers, layer in enumerate(model.model.layers[1:], 2):
            weight = layer.self_attn.memory.weight
            mean = torch.eye(2, dtype=torch.float64).repeat(1, n_layers) / n_layers
            assert weight.dtype == torch.float64 and torch.equal(weight, mean)


def test_a_seed_repeats_the_routers_and_another_does_not():
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(routers(LimeForCausalLM(LimeConfig(**TINY))))
    first, again, other = models
    assert all(torch.equal(first[i].weight, again[i].weight) for i in first)
    assert not any(torch.equal(first[i].weight, other[i].weight) for i in first)
    assert not any(
        torch.equal(first[i].weight[:, :2], first[j].weight[:, :2])
        for i, j in itertools.combinations(first, 2)
    )


@pytest.mark.parametrize("init", ["paper", "identity"])
def test_the_summary_warns_of_routers_that_have_not_moved(init, ids, recwarn):
    model = LimeForCausalLM(LimeConfig(**TINY, router_init=init))
    with pytest.warns(UserWarning, match=r"layers \[1, 2, 3\] have not moved"):
        rows = model.router_summary()
    assert [row.layer for row in rows] == [1, 2, 3]
    assert not any(row.moved for row in rows)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(ids, labels=ids).loss.backward()
    optimiser.step()
    recwarn.clear()
    rows = model.router_summary()
    assert all(row.moved for row in rows) and not recwarn.list


def test_the_summary_has_the_share_of_earlier_layers_and_the_largest_weight():
    model = LimeForCausalLM(LimeConfig(**TINY))
    with torch.no_grad():
        for router in routers(model).values():
            router.weight.fill_(1.0)
        routers(model)[2].weight[0, 0] = -50.0
        routers(model)[3].weight[0, 0] = math.nan
    one, two, three = model.model.router_summary()
    assert (one.off_layer_share, one.largest, two.largest) == (0.5, 1, 50)
    assert math.isnan(three.largest)


# Of layer 2, two heads: the absolute weights of its sources are 1, 6 and 3.
BY_HAND = torch.tensor([[0.5, 0.0, -4.0, 1.0, 1.0, 0.0], [0.0, 0.5, 0.25, 0.75, 0.0, 2.0]])


@pytest.mark.parametrize(
    ("keep", "sources"),
    [
        (1.0, (0, 1, 2)),
        (0.91, (0, 1, 2)),
        (0.9, (1, 2)),
        (0.31, (1, 2)),
        (0.3, (2,)),
        (1e-9, (2,)),
        (1, (2,)),
        (2, (1, 2)),
        (7, (0, 1, 2)),
    ],
)
def test_the_fewest_and_largest_layers_are_kept(keep, sources):
    model = LimeForCausalLM(LimeConfig(**TINY))
    with torch.no_grad():
        routers(model)[2].weight.copy_(BY_HAND)
    rows = model.prune_routers(keep)
    assert [row.layer for row in rows] == [1, 2, 3] and rows[1].sources == sources
    columns = torch.tensor(sources).repeat_interleave(2) * 2 + torch.tensor([0, 1] * len(sources))
    assert torch.equal(routers(model)[2].weight, BY_HAND[:, columns])


@pytest.mark.parametrize(
    ("keep", "fields"),
    [
        (0.5, {}),
        (2, {"num_key_value_heads": 4}),
        (2, {"router": "last", "router_window": 3}),
        (0.6, {"router_shares_kv": False}),
        (2, {"router_shares_kv": False, "router_grain": "layer"}),
    ],
    ids=str,
)
def test_a_pruned_model_is_the_whole_one_with_zeros_and_trains_on(keep, fields, ids, tmp_path):
    config = LimeConfig(**{**TINY, "num_hidden_layers": 6, **fields})
    model = make(LimeForCausalLM, config).double()
    zeroed = copy.deepcopy(model)
    model.prune_routers(keep)
    dropped = 0
    with torch.no_grad():
        for layer, router in routers(model).items():
            whole = routers(zeroed)[layer]
            gone = [i for i, j in enumerate(whole.sources) if j not in router.sources]
            dropped += len(gone)
            for weight in whole.named_weights().values():
                weight.unflatten(1, (-1, whole.columns))[:, gone] = 0
        expected = zeroed(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-13)
        model.save_pretrained(tmp_path)
        loaded = LimeForCausalLM.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=0, atol=1e-13)
    own = [p for n, p in model.named_parameters() if ".memory." in n]
    assert dropped and sum(p.numel() for p in own) == Lime.extra_parameters(model.config)
    model.train()(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_pruning_twice_and_without_a_head():
    model = make(layermem.LimeModel, LimeConfig(**TINY))
    assert [len(row.sources) for row in model.prune_routers(2)] == [2, 2, 2]
    assert [row.sources for row in model.prune_routers(1)] == [(1,), (2,), (3,)]
    assert [layer.is_source for layer in model.layers] == [False] * 4


@pytest.mark.parametrize("keep", [0, 0.0, -1, 1.5, math.nan])
def test_a_share_or_a_number_is_asked_for(keep):
    model = LimeForCausalLM(LimeConfig(**TINY))
    with pytest.raises(ValueError, match="keep"):
        model.prune_routers(keep)
    assert model.config.router_sources is None


def test_separate_routers_begin_as_the_one_does_and_differ():
    torch.manual_seed(0)
    one = LimeForCausalLM(LimeConfig(**TINY)).model.layers[2].self_attn.memory
    torch.manual_seed(0)
    two = LimeForCausalLM(LimeConfig(**TINY, router_shares_kv=False)).model.layers[2]
    two = two.self_attn.memory
    assert torch.equal(two.weight, one.weight)
    assert not torch.equal(two.value_weight, one.weight)
    assert torch.equal(two.value_weight[:, -2:], torch.eye(2))


def test_weights_of_one_router_are_not_loaded_as_two(tmp_path):
    LimeForCausalLM(LimeConfig(**TINY)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="router_shares_kv"):
        LimeForCausalLM.from_pretrained(tmp_path, router_shares_kv=False)


def routers_of(**fields):
    model = LimeForCausalLM(LimeConfig(**{**TINY, **fields}))
    return [layer.self_attn.memory for layer in model.model.layers[1:]]


@pytest.mark.parametrize("grain", ["pair", "layer"])
def test_the_start_of_value_residual(grain, ids):
    fields = {"router_shares_kv": False, "router_grain": grain}
    config = LimeConfig(**TINY, router_init="value_residual", **fields)
    model = LimeForCausalLM(config).eval()
    residual = layermem.build("value_residual", **TINY).eval()
    residual.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(ids).logits, residual(ids).logits)


def test_pruned_layers_that_read_the_first_no_more_begin_with_their_own_values():
    fields = {"router_shares_kv": False, "router_init": "value_residual"}
    second, third, _ = routers_of(router_sources=[[], [0], [1], [0]], **fields)
    eye = torch.eye(2)
    assert torch.equal(second.value_weight, torch.cat((eye / 2, eye / 2), dim=1))
    assert torch.equal(third.value_weight, torch.cat((0 * eye, eye), dim=1))
    assert torch.equal(second.weight, torch.cat((0 * eye, eye), dim=1))


def test_the_recipe_is_lime_with_fields_of_its_own():
    model = layermem.build("lime", **TINY, **layermem.RECIPE)
    assert type(model) is LimeForCausalLM
    assert {name: getattr(model.config, name) for name in layermem.RECIPE} == layermem.RECIPE
    # A number for each source of each of the layers 1 to 3, of keys and of values.
    assert Lime.extra_parameters(model.config) == 2 * (2 + 3 + 4)
    with pytest.raises(TypeError):
        layermem.RECIPE["router_grain"] = "pair"
