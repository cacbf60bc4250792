"""Every known architecture with layer memory against equation (2) written out, and refusals."""

import copy

import pytest
import torch
from host_models import (
    DECODERS,
    HOSTS,
    make_attached,
    make_host,
    make_ids,
    run_literally,
    shake_routers,
)
from tiny import TINY
from torch import nn

import layermem
from layermem.retrofit import attach, detach, router_parameters, trainable
from layermem.retrofit.attachment import attachment_of

FAST = ("llama", "gpt2")


def few_fast(names):
    """Return all names, those beyond a few among the slow tests."""
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.mark.parametrize("name", HOSTS)
def test_attaching_changes_nothing_and_detaching_leaves_nothing(name):
    model, ids = make_host(name), make_ids()
    keys, hooks = list(model.state_dict()), _count_hooks(model)
    classes = [type(module) for module in model.modules()]
    with torch.no_grad():
        before = model(ids).logits
        assert attach(model) is model
        assert isinstance(model, classes[0]) and type(model).__name__ == classes[0].__name__
        assert torch.equal(model(ids).logits, before)
        assert len(list(router_parameters(model))) == 3
        shake_routers(model)
        assert (model(ids).logits - before).abs().max() > 1e-3
        assert detach(model) is model
        assert torch.equal(model(ids).logits, before)
    assert [type(module) for module in model.modules()] == classes
    assert list(model.state_dict()) == keys
    assert _count_hooks(model) == hooks
    assert not any("_layer_memory" in vars(module) for module in model.modules())


def _count_hooks(model):
    return [
        len(module._forward_hooks)
        + len(module._forward_pre_hooks)
        + len(module._forward_hooks_always_called)
        for module in model.modules()
        if ".memory" not in str(module)
    ]


@pytest.mark.parametrize(
    ("name", "window"),
    [
        *(pytest.param(name, None, id=name) for name in HOSTS),
        pytest.param("llama", 2, id="llama-last-2"),
        pytest.param("gpt2", 2, id="gpt2-last-2"),
        pytest.param("deberta-shared", 2, id="deberta-shared-last-2"),
    ],
)
def test_it_computes_the_equation(name, window):
    model, ids = make_attached(name, dtype=torch.float64, window=window), make_ids()
    if window is None:
        weights = dict(enumerate(router_parameters(model), start=1))
    else:
        weights = {
            layer: nn.functional.pad(w, (w.shape[0] * (layer - 1), 0))
            for layer, w in enumerate(router_parameters(model), start=1)
        }
    attachment, bare = attachment_of(model), detach(copy.deepcopy(model))
    loss = model(ids).logits.square().mean()
    expected = run_literally(bare, attachment, weights, input_ids=ids).logits.square().mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    routers, embeddings = list(router_parameters(model)), model.get_input_embeddings().weight
    got = torch.autograd.grad(loss, [*routers, embeddings])
    wanted = torch.autograd.grad(expected, [*routers, bare.get_input_embeddings().weight])
    assert all(gradient.abs().max() > 1e-6 for gradient in wanted)
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("grain", ["pair", "layer"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "deberta"])
def test_keys_and_values_apart_compute_the_equation(name, grain):
    model = make_attached(name, dtype=torch.float64, shares_kv=False, grain=grain)
    ids, routers = make_ids(), [*attachment_of(model).routers.items()]
    keys = {layer: _as_pairs(router.weight, router) for layer, router in routers}
    values = {layer: _as_pairs(router.value_weight, router) for layer, router in routers}
    attachment, bare = attachment_of(model), detach(copy.deepcopy(model))
    loss = model(ids).logits.square().mean()
    literal = run_literally(bare, attachment, keys, values, input_ids=ids)
    expected = literal.logits.square().mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    parameters = list(router_parameters(model))
    got, wanted = (torch.autograd.grad(x, parameters) for x in (loss, expected))
    assert all(gradient.abs().max() > 1e-6 for gradient in wanted)
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-11)


def _as_pairs(weight, router):
    """Return the weight of a router, for each head or layer, as one for each pair of heads."""
    if router.grain == "pair":
        return weight
    return torch.cat([torch.diag(w.expand(router.num_heads)) for w in weight.t()], dim=1)


@pytest.mark.parametrize("shares_kv", [True, False])
@pytest.mark.parametrize("grain", ["pair", "layer"])
def test_routers_of_every_kind_start_as_the_identity(grain, shares_kv):
    model, ids = make_host("llama"), make_ids()
    before = model(ids).logits
    attach(model, shares_kv=shares_kv, grain=grain)
    assert torch.equal(model(ids).logits, before)
    count = sum(parameter.numel() for parameter in router_parameters(model))
    assert count == {"pair": 4, "layer": 1}[grain] * (2 + 3 + 4) * (1 if shares_kv else 2)


@pytest.mark.parametrize("grain", ["pair", "layer"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_keys_and_values_apart_through_a_cache_and_checkpointing(name, grain):
    model, ids = make_attached(name, shares_kv=False, grain=grain), make_ids()
    expected = model.generate(ids, **GREEDY, use_cache=False)
    assert torch.equal(model.generate(ids, **GREEDY), expected)
    gradients = []
    for recompute in (False, True):
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train().zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_it_computes_what_the_native_model_does():
    model, ids = make_attached("llama"), make_ids()
    native = layermem.LimeForCausalLM.from_llama(detach(copy.deepcopy(model))).eval()
    with torch.no_grad():
        for layer, weight in enumerate(router_parameters(model), start=1):
            native.model.layers[layer].self_attn.memory.weight.copy_(weight)
        torch.testing.assert_close(model(ids).logits, native(ids).logits, rtol=1e-5, atol=1e-5)
    rows = [(model, router_parameters(model))]
    rows.append((native, (m.self_attn.memory.weight for m in native.model.layers[1:])))
    gradients = []
    for each, weights in rows:
        each(ids, labels=ids).loss.backward()
        gradients.append([weight.grad for weight in weights])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3"])
@pytest.mark.filterwarnings("ignore:router_init")
def test_random_weights_train_with_the_recipe(name, tmp_path):
    """A LLaMA as our own model does, and each is loaded as it was saved."""
    models, ids, runs = [make_host(name)], make_ids(), []
    if name == "llama":
        models.append(layermem.LimeForCausalLM.from_llama(models[0], **layermem.RECIPE))
    attach(models[0], init="value_residual", shares_kv=False, grain="layer")
    for model in models:
        optimizer, runs = torch.optim.AdamW(model.parameters(), lr=1e-3), [*runs, []]
        for _ in range(3):
            output = model(ids, labels=ids)
            runs[-1].append(output.logits)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
    torch.testing.assert_close(runs[0], runs[-1], rtol=1e-4, atol=1e-4)
    models[0].save_pretrained(tmp_path)
    loaded = layermem.load_attached(tmp_path).eval()
    torch.testing.assert_close(loaded(ids).logits, models[0](ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "deberta"])
def test_routers_alone_learn(name):
    model, ids = attach(make_host(name)).train(), make_ids()
    frozen = {k: p.clone() for k, p in model.named_parameters() if ".memory." not in k}
    assert trainable(model, "routers") == sum(p.numel() for p in router_parameters(model))
    optimizer = torch.optim.Adam(router_parameters(model), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        assert losses or all(p.grad.abs().max() > 0 for p in router_parameters(model))
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.03
    assert all(torch.equal(p, frozen[k]) for k, p in model.named_parameters() if k in frozen)
    assert trainable(model, "all") == sum(p.numel() for p in model.parameters())
    detach(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_routers_keep_32_bits_in_a_model_that_is_cast_later():
    """In 16, a step of 1e-3 on a weight of 1 would be rounded away."""
    model = attach(make_host("llama"))
    shake_routers(model)
    expected = [weight.clone() for weight in router_parameters(model)]
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model.to(dtype)
        at_least = torch.promote_types(dtype, torch.float32)
        assert {weight.dtype for weight in router_parameters(model)} == {at_least}
        assert model.lm_head.weight.dtype == dtype
    for weight, before in zip(router_parameters(model), expected, strict=True):
        assert torch.equal(weight.float(), before)
    model.to("meta")
    assert all(weight.is_meta for weight in router_parameters(model))
    model.bfloat16().to_empty(device="cpu")
    assert {weight.dtype for weight in router_parameters(model)} == {torch.float64}


def test_what_trained_before_trains_after_detaching():
    model = attach(make_host("llama"))
    model.lm_head.weight.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    trainable(model, "routers")
    trainable(model, "all")
    detach(model)
    assert all(p.requires_grad == before[name] for name, p in model.named_parameters())
    with pytest.raises(ValueError, match="lora"):
        trainable(attach(model), "lora")


@pytest.mark.parametrize("name", few_fast(DECODERS))
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str
)
def test_generation_with_a_cache_equals_without(name, options):
    model, ids = make_attached(name), make_ids()
    options = {**GREEDY, **options}
    expected = model.generate(
        ids, **{**GREEDY, "num_beams": options.get("num_beams", 1)}, use_cache=False
    )
    assert torch.equal(model.generate(ids, **options), expected)


@pytest.mark.parametrize("name", DECODERS)
def test_padding_on_the_left_changes_nothing(name):
    model, ids = make_attached(name), make_ids(2, 7)
    padded = nn.functional.pad(ids, (3, 0))
    got = model.generate(padded, attention_mask=(padded != 0).long(), **GREEDY)
    assert torch.equal(got[:, 3:], model.generate(ids, **GREEDY))


def test_assisted_generation_equals_greedy():
    model, ids = make_attached("llama"), make_ids(1)
    assistant = make_attached("llama", seed=5)
    expected = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(ids, **GREEDY, assistant_model=assistant), expected)
    assert torch.equal(model.generate(ids, **GREEDY, prompt_lookup_num_tokens=3), expected)
    assert torch.equal(model.generate(ids, **GREEDY, assistant_early_exit=2), expected)


def test_heads_of_an_odd_width():
    model, ids = make_attached("bert", dtype=torch.float64, hidden_size=20), make_ids()
    attachment, weights = attachment_of(model), dict(enumerate(router_parameters(model), start=1))
    assert attachment.shape.head_dim == 5
    expected = run_literally(detach(copy.deepcopy(model)), attachment, weights, input_ids=ids)
    torch.testing.assert_close(model(ids).logits, expected.logits, rtol=1e-10, atol=1e-10)


def refused():
    one_layer, differing = make_host("llama", num_hidden_layers=1), make_host("llama")
    attention = differing.model.layers[2].self_attn
    attention.k_proj = nn.Linear(32, 8, bias=False)
    attention.v_proj = nn.Linear(32, 8, bias=False)
    yield layermem.build("plain", **TINY), {}, "PlainForCausalLM has no stacks"
    yield nn.Linear(2, 2), {}, "Linear has no stacks"
    yield one_layer, {}, "two layers or more"
    yield differing, {}, "2 heads of width 8 and 1 heads of width 8"
    yield attach(make_host("llama")), {}, r"detach\(model\)"
    yield attach(make_host("llama")).model, {}, r"detach\(model\)"
    yield nn.DataParallel(make_host("llama")), {}, "DataParallel"
    pair = nn.ModuleDict({"left": make_host("bert"), "right": make_host("bert")})
    yield pair, {}, r"left\.bert\.encoder and right\.bert\.encoder"
    yield make_host("llama"), {"router": "last"}, "router_window"
    yield make_host("llama"), {"window": 2}, "router_window"
    yield make_host("llama"), {"grain": "row"}, "router_grain"


def test_what_cannot_have_memory_is_refused():
    for model, options, message in refused():
        with pytest.raises(Exception, match=message):
            attach(model, **options)
    for call in (detach, lambda model: next(router_parameters(model))):
        with pytest.raises(ValueError, match=r"attach\(model\)"):
            call(make_host("llama"))


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_self_attention_beside_cross_attention(name):
    model = make_host(name, add_cross_attention=True, is_decoder=True)
    inputs = {"input_ids": make_ids(), "encoder_hidden_states": torch.ones(3, 5, 32)}
    with torch.no_grad():
        before = model(**inputs).logits
        assert torch.equal(attach(model)(**inputs).logits, before)
        assert not torch.allclose(shake_routers(model)(**inputs).logits, before)
