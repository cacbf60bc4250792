"""LIMe with storage layers: what the cache holds, what layers borrow, what cannot be."""

import copy
from unittest import mock

import literal
import pytest
import torch
from tiny import TINY, make
from torch import nn
from torch.nn.utils.parametrize import register_parametrization
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import layermem
from layermem import LimeConfig, LimeForCausalLM, PlainConfig, PlainForCausalLM
from layermem.models import lent_heads
from layermem.models.decoder import DecoderLayer
from layermem.models.keywords import CACHE
from layermem.models.lent_heads import LentHeads
from layermem.models.registry import lookup
from layermem.models.sharded_routers import SourceHeads
from layermem.ops.rope import rotate
from layermem.variants.fused_kv import FusedMemory
from layermem.variants.lime import Lime, LimeRouter, LimeSeparateRouters
from layermem_bench.config.counting import count_cached, count_parameters, count_read

DEEP = {**TINY, "num_hidden_layers": 6}
HALF = {"storage": "half", **layermem.RECIPE}


def bytes_in(cache):
    """Return the bytes of all tensors that the layers of a cache hold."""
    tensors = [t for layer in cache.layers for t in vars(layer).values() if torch.is_tensor(t)]
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(
    ("name", "fields", "share"),
    [
        ("lime", {"storage": "half"}, 3 / 6),
        ("lime", {"storage": 2}, 2 / 6),
        ("lime", {"storage": [0, 4]}, 2 / 6),
        ("lime", {"storage": "half", "upper": "mix"}, 3 / 6),
        (
            "lime",
            {"storage": [0, 1, 2, 3, 4], "borrow_heads": [[[4, 1, 0, 0], [2, 0, 1, 1]]]},
            5 / 6,
        ),
        ("lime", {"storage": 2, "upper": "mix"}, 2 / 6),
        ("cla", {}, 3 / 6),
        ("cla", {"sharing": 6}, 1 / 6),
        ("yoco", {}, 3 / 6),
        ("fused_kv", {"num_kv_shared_layers": 4}, 2 / 6),
        ("fused_kv", {"fusion": "lite"}, 3 / 6),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_cache_holds_the_entries_of_storage_layers_alone(name, fields, share, kind, ids):
    found = []
    for model in (
        make(PlainForCausalLM, PlainConfig(**DEEP)),
        layermem.build(name, **DEEP, **fields).eval(),
    ):
        lengths = {"max_cache_len": 16} if kind is StaticCache else {}
        cache = kind(config=model.config, **lengths)
        with torch.no_grad():
            model(ids, use_cache=True, **{CACHE: cache})
        found.append(bytes_in(cache))
    plain, ours = found
    assert plain and ours == pytest.approx(share * plain, rel=0.01)
    if kind is DynamicCache:
        assert ours == 4 * ids.numel() * count_cached(model.config, model.variant)


def test_what_a_token_reads_of_the_cache_is_counted():
    """Entries of four layers: each layer reads one, and one that mixes all that it mixes."""
    entry = 2 * 2 * 8
    for name, fields, entries in (
        ("plain", {}, 4),
        ("lime", {"storage": "half"}, 4),
        # Layer 1 mixes one entry, layer 3 those of layers 0 and 2.
        ("lime", {"storage": "half", "upper": "mix"}, 5),
        ("lime", {"storage": 3, "borrow_heads": [[[0, 0, 1, 0], [2, 0, 1, 1]]]}, 4),
        ("yoco", {}, 4),
        ("fused_kv", {}, 6),
        ("fused_kv", {"fusion": "lite"}, 4),
    ):
        model = layermem.build(name, **TINY, **fields)
        assert count_read(model.config, model.variant) == entries * entry, (name, fields)


def test_every_second_head_borrows_values_of_the_first_layer():
    named = LimeConfig(**DEEP, storage=[0, 2, 3], borrow_heads="first_values")
    listed = [[[0, 0, 0, 0], [0, 1, 0, 1]], *[[[3, 0, 3, 0], [3, 1, 0, 1]]] * 2]
    config = LimeConfig(**DEEP, storage=[0, 2, 3], borrow_heads=listed)
    for layer in (1, 4, 5):
        assert named.heads_of(layer) == config.heads_of(layer)
        assert named.lenders_of(layer) == ((0,) if layer == 1 else (0, 3))
    with pytest.raises(Exception, match="in two ways"):
        LimeConfig(**DEEP, storage=5, borrow_heads="first_values", borrow_from=[0])


def test_layers_without_keys_and_values_have_no_projections():
    model = LimeForCausalLM(LimeConfig(**DEEP, storage="half"))
    stored = [hasattr(layer.self_attn, "k_proj") for layer in model.model.layers]
    assert stored == [True, False] * 3
    names = [name for name, _ in model.named_parameters() if "layers.1." in name]
    assert not [name for name in names if "k_proj" in name or "v_proj" in name]
    assert [layer.lenders for layer in model.model.layers] == [(), (0,), (), (2,), (), (4,)]
    assert model.config.kv_sharing_modes == [None, "reuse"] * 3
    assert LimeForCausalLM(LimeConfig(**TINY)).config.kv_sharing_modes is None


@pytest.mark.parametrize("fields", [HALF, {**HALF, "upper": "mix"}], ids=["borrow", "mix"])
def test_storage_layers_share_a_buffer(fields, ids):
    model = make(LimeForCausalLM, LimeConfig(**DEEP, **fields)).double()
    layers = list(model.model.layers)
    with torch.no_grad():
        buffer = model.model._begin_buffer(layers, model.model.embed_tokens(ids))
        assert buffer is not None
        with_buffer = model(ids).logits
        model.model._begin_buffer = lambda *_: None
        torch.testing.assert_close(model(ids).logits, with_buffer)


def test_what_is_lent_is_freed_after_its_last_reader():
    model = LimeForCausalLM(LimeConfig(**DEEP, storage=[0, 3], borrow_from=[0, 0, 3, 0])).model
    # Layers 1, 2 and 5 borrow from layer 0, layer 4 from layer 3, which reads the slot of layer 0.
    assert model._to_free == [[], [], [], [("slot", 0)], [("lent", 3)], [("lent", 0)]]


def test_of_what_a_layer_mixes_the_largest_is_kept(ids):
    """It has no slot of its own, which pruning would keep in any case."""
    model = make(LimeForCausalLM, LimeConfig(**DEEP, storage="half", upper="mix"))
    mixing = [layer for layer in model.model.layers if layer.lenders]
    for layer in mixing:
        of_sources = layer.self_attn.memory.weight.data.unflatten(1, (len(layer.lenders), -1))
        of_sources.fill_(0.01)[:, 0] = 1
    for row in model.prune_routers(1):
        assert row.kept == ((0,) if row.layer % 2 else (row.layer,))
    assert [layer.lenders for layer in mixing] == [(0,)] * 3


def test_mixing_routers_are_pruned_and_loaded(ids, tmp_path):
    model = make(LimeForCausalLM, LimeConfig(**DEEP, storage=4, upper="mix")).double()
    whole = copy.deepcopy(model)
    model.prune_routers(2)
    assert model.config.router_sources[5] == list(model.model.layers[5].lenders)
    assert len(model.model.layers[5].lenders) == 2
    with torch.no_grad():
        for old, new in zip(whole.model.layers[1:], model.model.layers[1:], strict=True):
            old, new = old.self_attn.memory, new.self_attn.memory
            kept = torch.zeros_like(old.weight).unflatten(1, (len(old.sources), -1))
            places = [old.sources.index(j) for j in new.sources]
            kept[:, places] = new.weight.unflatten(1, (len(places), -1))
            old.weight.copy_(kept.flatten(1))
        torch.testing.assert_close(model(ids).logits, whole(ids).logits, rtol=0, atol=1e-13)
        model.save_pretrained(tmp_path)
        loaded = LimeForCausalLM.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {**HALF, "router_sources": [[], [0], [0], [0, 2], [2], [2, 4]]},
        {"router_grain": "head", "attention_bias": True},
        {"router_shares_kv": False, "num_key_value_heads": 4},
    ],
    ids=str,
)
def test_layers_that_mix_are_pruned_to_one_head_for_each(fields, ids, tmp_path):
    model = LimeForCausalLM(LimeConfig(**{**DEEP, "storage": "half", "upper": "mix", **fields}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model = attentive(model)
    whole = copy.deepcopy(model)
    heads = model.config.num_key_value_heads
    with torch.no_grad():
        for layer in whole.model.layers:
            if layer.lenders:
                # All weights but the largest of each row, by hand; one row may stand for all.
                for weight in layer.self_attn.memory.parameters():
                    largest = weight.abs().amax(1, keepdim=True)
                    weight.mul_(weight.abs() == largest)
        rows = model.prune_to_heads()
        assert [row.layer for row in rows] == [1, 3, 5]
        assert all(len(row.heads) == heads for row in rows)
        assert all(0 <= row.dropped_share < 1 for row in rows)
        expected = whole(ids).logits
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-12)
        assert not torch.allclose(expected, LimeForCausalLM(whole.config).double()(ids).logits)
    assert count_read(model.config, model.variant) == count_read(
        PlainConfig(**{**DEEP, "num_key_value_heads": heads}), lookup("plain").variant
    )
    assert model.num_parameters() == count_parameters(model.config, model.variant)
    model.save_pretrained(tmp_path)
    loaded = LimeForCausalLM.from_pretrained(tmp_path, dtype="float64").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match='got upper="borrow"'):
        model.prune_to_heads()
    with pytest.raises(ValueError, match='got upper="borrow"'):
        LimeForCausalLM(LimeConfig(**TINY)).prune_to_heads()


def test_projections_that_cannot_be_scaled_keep_their_router(ids):
    peft = pytest.importorskip("peft")
    model = LimeForCausalLM(LimeConfig(**DEEP, storage="half", upper="mix"))
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="q_proj of layer 1 is a peft.*merge adapters"):
        adapted.base_model.model.prune_to_heads()
    assert model.config.upper == "mix"
    model = LimeForCausalLM(LimeConfig(**DEEP, storage="half", upper="mix"))
    with torch.no_grad():
        model.model.layers[3].self_attn.memory.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="layer 3 has weights that are not finite"):
        model.prune_to_heads()
    model = LimeForCausalLM(LimeConfig(**DEEP, storage="half", upper="mix"))
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["v_proj"], modules_to_save=["memory"])
    )
    with pytest.raises(ValueError, match="layer 1 is wrapped by an adapter.*merge_and_unload"):
        adapted.base_model.model.prune_to_heads()
    model = LimeForCausalLM(LimeConfig(**DEEP, storage="half", upper="mix"))
    register_parametrization(model.model.layers[3].self_attn.memory, "weight", nn.Identity())
    for prune in (model.prune_to_heads, lambda: model.prune_routers(0.5)):
        with pytest.raises(ValueError, match="layer 3 has weights that are offloaded or param"):
            prune()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((f"lime+{stream}", HALF) for stream in ("mudd", "dca", "lime_hidden", "mhc")),
        ("lime+lime_hidden", {**HALF, "gate": True}),
        ("cla+mudd", {"pre_post_norm": True}),
        ("value_residual+mudd", {"form": "svformer"}),
        ("value_residual+dca", {"form": "svformer", "gated": True}),
    ],
    ids=str,
)
def test_a_pair_has_no_inputs_of_what_a_layer_does_not_project(name, fields, ids):
    """Every parameter is read, and counted in closed form."""
    model = layermem.build(name, **TINY, **fields)
    model(ids, labels=ids).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert model.num_parameters() == count_parameters(model.config, model.variant)


def test_mudd_beside_storage_equals_its_equations(ids):
    model = make(
        type(layermem.build("lime+mudd", **TINY)), lookup("lime+mudd").config(**TINY, **HALF)
    )
    model = model.double()
    lent = {}

    def memory(layer, query, slots):
        if not layer.lenders:
            lent[layer.layer_idx] = literal.find("lime").read(layer, query, slots)
            return lent[layer.layer_idx]
        return lent[layer.lenders[0]]

    with torch.no_grad():
        theirs = literal.find("mudd").logits(model, ids, memory)
        torch.testing.assert_close(model(ids).logits, theirs, rtol=0, atol=1e-10)


def test_weights_of_another_layout_are_refused(tmp_path):
    LimeForCausalLM(LimeConfig(**TINY, storage="half")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="storage"):
        LimeForCausalLM.from_pretrained(tmp_path, storage=2)


@pytest.mark.parametrize(
    ("fields", "change", "message"),
    [
        ({"storage": 3}, {"borrow_from": [0]}, r"layer 3 .* borrows from \[2\]; .* \[0\]"),
        ({}, {"router": "last", "router_window": 2}, r"layer 2 .* reads \[0, 1\] .* \[1\]"),
        ({}, {"num_hidden_layers": 2}, "has 4 layers, and its config says num_hidden_layers=2"),
    ],
    ids=["lender", "window", "layers"],
)
def test_a_config_that_was_changed_is_not_saved(fields, change, message, tmp_path):
    model = make(LimeForCausalLM, LimeConfig(**TINY, **fields))
    for name, value in change.items():
        setattr(model.config, name, value)
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()


def test_what_needs_all_projections_is_refused():
    sizes = {k: v for k, v in TINY.items() if k in LlamaConfig().to_dict()}
    with pytest.raises(ValueError, match="storage='half' 2 of the 4 layers"):
        LimeForCausalLM.from_llama(LlamaForCausalLM(LlamaConfig(**sizes)), storage="half")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"storage": []}, r"begins with 0, got \[\]"),
        ({"storage": 0}, "begins with 0, got 0"),
        ({"storage": [1, 2]}, r"begins with 0, got \[1, 2\]"),
        ({"storage": [0, 2, 1]}, "ascending"),
        ({"storage": 5}, "from 1 to 4"),
        ({"storage": [0, 4]}, "up to 3"),
        ({"storage": "halff"}, '"half".*, got .halff.$'),
        ({"upper": "mix"}, "set storage"),
        ({"borrow_from": [0]}, "set storage"),
        ({"storage": 2, "borrow_from": [0]}, r"each of the layers \[2, 3\], got \[0\]"),
        ({"storage": 2, "borrow_from": [0, 2]}, r"storage layers \[0, 1\]"),
        ({"storage": [0, 3], "borrow_from": [0, 3]}, r"layers \[1, 2\], got \[0, 3\]"),
        ({"storage": 2, "upper": "mix", "borrow_from": [0, 0]}, "leave it None"),
        ({"borrow_heads": [[[0] * 4] * 2]}, r"borrow_heads=\[\[\[0, 0, 0, 0\].*set storage"),
        (
            {"storage": 3, "borrow_heads": [[[0] * 4]]},
            r"layers \[3\], with an entry for each of the 2",
        ),
        ({"storage": 2, "borrow_heads": [[[0] * 4] * 2]}, r"each of the layers \[2, 3\]"),
        ({"storage": 3, "borrow_heads": [[[0] * 4, [0, 2, 0, 0]]]}, r"up to 1, got \[0, 2, 0, 0\]"),
        ({"storage": 3, "borrow_heads": [[[0] * 4, [0, 0, 3, 0]]]}, r"layers \[0, 1, 2\].*3, 0\]"),
        ({"storage": 3, "borrow_heads": [[[0] * 4, [0, 0]]]}, r"got \[0, 0\]"),
        ({"storage": 3, "borrow_heads": [[[0] * 4, [0, -1, 0, 0]]]}, "borrow_heads must be"),
        ({"storage": 3, "borrow_from": [0], "borrow_heads": [[[0] * 4] * 2]}, "in two ways"),
        ({"storage": 3, "borrow_heads": "last_values"}, "borrow_heads"),
        ({"borrow_heads": "first_values"}, "borrow_heads=first_values is for layers that store"),
        ({"storage": 3, "upper": "mix", "borrow_heads": [[[0] * 4] * 2]}, "leave it None"),
        (
            {"storage": 3, "borrow_heads": [[[0] * 4] * 2], "router_sources": [[], [], [], [1]]},
            r"must be \[0\]",
        ),
        ({"storage": 2, "upper": "mix", "router_sources": [[], [0], [], [0]]}, "one at least"),
        ({"storage": 2, "upper": "mix", "router_sources": [[], [0], [0], [2]]}, "storage layers"),
        ({"storage": [1, 2], "router_sources": [[], [], [1], [1]]}, "begins with 0"),
        ({"storage": 2, "router_sources": [[], [0], [0], [1]]}, r"\[1\], which it borrows from"),
        ({"storage": 2, "router": "last", "router_window": 2}, 'for router="full"'),
    ],
    ids=str,
)
def test_storage_that_cannot_be_is_named(fields, message):
    with pytest.raises(Exception, match=message):
        LimeConfig(**TINY, **fields)


# Layers that need not form what they attend to while decoding.
UNFORMED = {
    "pairs": ("lime", {"storage": "half", "upper": "mix"}),
    "recipe": ("lime", {**HALF, "upper": "mix"}),
    "heads": ("lime", {"storage": "half", "upper": "mix", "router_grain": "head"}),
    "lent heads": (
        "lime",
        {
            "storage": 4,
            "borrow_heads": [[[0, 1, 2, 0], [2, 1, 0, 1]], [[1, 0, 3, 0], [3, 1, 3, 1]]],
        },
    ),
    "fused": ("fused_kv", {"num_kv_shared_layers": 3}),
}


@pytest.fixture
def formed(monkeypatch):
    """The memories that were asked to form what they attend to; few keys too need not be."""
    asked = []
    monkeypatch.setattr(lent_heads, "COPIED", 0)
    kinds = (LimeRouter, LimeSeparateRouters, LentHeads, FusedMemory)
    # Where it is defined: a subclass that overrides it is always asked.
    for kind in {next(c for c in kind.__mro__ if "forward" in vars(c)) for kind in kinds}:

        def forward(memory, query, slots, usual=kind.forward):
            asked.append(memory)
            return usual(memory, query, slots)

        monkeypatch.setattr(kind, "forward", forward)
    return asked


def unformed_model(case, **more):
    name, fields = UNFORMED[case]
    torch.manual_seed(0)
    model = layermem.build(name, **DEEP, **fields, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return attentive(model)


def last_token(model, ids, formed, mask=None, **given):
    """Return the logits of the last token, the others cached; and the layers that formed it."""
    masks = (
        ({}, {}) if mask is None else ({"attention_mask": mask[:, :-1]}, {"attention_mask": mask})
    )
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True, **masks[0])[CACHE]
    formed.clear()
    logits = model(ids[:, -1:], **{CACHE: cache}, **masks[1], **given).logits[:, -1]
    lent = {layer.self_attn.memory for layer in model.model.layers if layer.lenders}
    return logits, [memory for memory in formed if memory in lent]


@pytest.mark.parametrize("case", UNFORMED)
@pytest.mark.parametrize("padded", [False, True])
def test_one_token_attends_without_forming_what_it_attends_to(case, padded, ids, formed):
    model, mask = unformed_model(case), None
    if padded:
        mask = torch.ones_like(ids)
        mask[1, :3], mask[2, :5] = 0, 0
    with torch.no_grad():
        given = {} if mask is None else {"attention_mask": mask}
        whole = model(ids, use_cache=False, **given).logits[:, -1]
        assert len([m for m in formed if m in {x.self_attn.memory for x in model.model.layers}])
        logits, by_forming = last_token(model, ids, formed, mask)
    assert by_forming == []
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", UNFORMED)
@pytest.mark.parametrize("reason", ["gradients", "eager", "bfloat16", "hook", "traced"])
def test_it_is_formed_where_something_else_is_to_follow_it(case, reason, ids, formed, monkeypatch):
    model = unformed_model(case, attn_implementation="eager" if reason == "eager" else "sdpa")
    lent = [layer.self_attn.memory for layer in model.model.layers if layer.lenders]
    if reason == "bfloat16":
        model = model.bfloat16()
    seen = []
    for memory in lent if reason == "hook" else ():
        memory.register_forward_hook(lambda *_: seen.append(1))
    if reason == "traced":
        # A graph would hold for some lengths alone.
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.set_grad_enabled(reason == "gradients"):
        _, by_forming = last_token(model, ids, formed)
    assert by_forming == lent


@pytest.mark.parametrize("case", UNFORMED)
def test_what_a_subclass_forms_is_attended_to(case, ids):
    model = unformed_model(case)
    for layer in model.model.layers:
        if layer.lenders:
            memory = layer.self_attn.memory
            usual = type(memory).forward

            def halved(memory, query, slots, usual=usual):
                key, value = usual(memory, query, slots)
                return key, value / 2

            memory.__class__ = type("Halved", (type(memory),), {"forward": halved})
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, -1]
        logits, _ = last_token(model, ids, [])
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", UNFORMED)
@pytest.mark.parametrize("reason", ["mask by head", "other function", "bias"])
def test_it_is_formed_where_attention_is_not_alike_for_all_heads(
    case, reason, ids, formed, monkeypatch
):
    model = unformed_model(case)
    lent = [layer.self_attn.memory for layer in model.model.layers if layer.lenders]
    T = ids.shape[1]
    mask = torch.ones(len(ids), 4, T, T, dtype=torch.bool).tril()
    if reason == "mask by head":
        mask[:, 1, :, 2:4] = False
    elif reason == "other function":
        usual = ALL_ATTENTION_FUNCTIONS["sdpa"]

        def capped(module, query, *others, **kwargs):
            return usual(module, query.tanh(), *others, **kwargs)

        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", capped)
    name, of_heads = {
        "mask by head": ("attention_mask", mask),
        "bias": ("position_bias", torch.randn(1, 4, T, T, dtype=torch.float64)),
    }.get(reason, (None, mask))

    def given(*part):
        return {name: of_heads[:, :, *part]} if name else {}

    with torch.no_grad():
        whole = model(ids, use_cache=False, **given()).logits[:, -1]
        cache = model(ids[:, :-1], use_cache=True, **given(slice(-1), slice(-1)))[CACHE]
        formed.clear()
        logits = model(ids[:, -1:], **{CACHE: cache}, **given(slice(-1, None))).logits[:, -1]
    assert [memory for memory in formed if memory in lent] == lent
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


def test_a_row_of_padding_alone_is_attended_to_as_when_formed(ids, formed):
    model = unformed_model("pairs")
    mask = torch.ones_like(ids)
    mask[1] = 0
    with torch.no_grad():
        logits, by_forming = last_token(model, ids, formed, mask)
        assert by_forming == []
        for layer in model.model.layers:
            layer.self_attn.memory.register_forward_hook(lambda *_: None)
        expected, by_forming = last_token(model, ids, formed, mask)
        assert by_forming
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def test_few_keys_are_copied(ids):
    """A copy of few keys costs less than a call for each head."""
    memory = LentHeads([[0, 1, 0, 0], [0, 0, 0, 1]], 2)
    query = torch.randn(1, 4, 1, 8)
    for tokens, is_copied in (
        (lent_heads.COPIED // 16, True),
        (lent_heads.COPIED // 16 + 1, False),
    ):
        slot = torch.randn(1, 2, tokens, 8), torch.randn(1, 2, tokens, 8)
        assert (memory.attend(query, [slot], None, 1.0) is None) == is_copied


def test_processes_that_share_heads_cannot_lend_them():
    memory = LentHeads([[0, 1, 2, 0], [2, 1, 0, 1]], 2)
    with pytest.raises(NotImplementedError, match="LentHeads reads heads that other processes"):
        SourceHeads().install_forward(memory, None)


def test_the_cache_of_continuous_batching_is_refused(ids):
    paged = object.__new__(PagedAttentionCache)
    with pytest.raises(NotImplementedError, match="generate with another cache"):
        LimeForCausalLM(LimeConfig(**TINY, storage="half")).model(ids, **{CACHE: paged})


def test_parameters_are_counted_without_what_is_absent():
    config = LimeConfig(**TINY, storage="half", upper="mix")
    heads, width = config.num_key_value_heads, config.num_key_value_heads * config.head_dim
    # Routers of layers 1 (of layer 0), 2 (of 0 and its own) and 3 (of 0 and 2).
    routers = heads**2 * (1 + 2 + 2)
    assert Lime.extra_parameters(config) == routers - 2 * 2 * config.hidden_size * width


def tokens_run(model, ids, **kwargs):
    """Return how many tokens each layer runs on, and the logits of the last one."""
    counts, usual = [], DecoderLayer.forward

    # No hook, for which all tokens would be computed.
    def counted(layer, state, *others, **given):
        counts.append(state.shape[1])
        return usual(layer, state, *others, **given)

    with torch.no_grad(), mock.patch.object(DecoderLayer, "forward", counted):
        logits = model(ids, logits_to_keep=1, **kwargs).logits
    return counts, logits


@pytest.mark.parametrize(
    ("name", "fields", "cut"),
    [
        ("lime", {"storage": 2, **layermem.RECIPE}, 4),
        ("lime", {"storage": 3, "upper": "mix"}, 3),
        ("lime", {"storage": "half"}, 1),
        ("lime", {"storage": [0, 5]}, 0),
        ("yoco", {}, 3),
        ("fused_kv", {"num_kv_shared_layers": 2}, 2),
        ("lime+hyper_connections", {"storage": 2}, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layers_without_a_cache_read_the_last_token_of_a_prompt(name, fields, cut, attention, ids):
    model = attentive(layermem.build(name, **DEEP, **fields, attn_implementation=attention))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    for given in ({}, {"attention_mask": mask}):
        with torch.no_grad():
            whole = model(ids, use_cache=True, **given).logits[:, -1:]
        counts, logits = tokens_run(model, ids, use_cache=True, **given)
        assert counts == [ids.shape[1]] * (6 - cut) + [1] * cut
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("where", ["layer", "decoder", "before a layer"])
def test_a_hook_sees_all_tokens_of_a_prompt(where, ids):
    model = make(lookup("yoco").causal_lm, lookup("yoco").config(**DEEP))
    seen, watched = [], model.model if where == "decoder" else model.model.layers[4]
    if where == "before a layer":
        watched.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    else:
        watched.register_forward_hook(lambda _, __, out: seen.append(out[0].shape[1]))
    with torch.no_grad():
        model(ids, use_cache=True, logits_to_keep=1)
    assert seen == [ids.shape[1]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["yoco", "lime"])
def test_a_prompt_in_a_static_cache_is_read_without_its_empty_places(name, attention, ids):
    """Without padding sdpa is given no mask, and one query alone would attend to empty places."""
    fields = {"storage": 3, **layermem.RECIPE} if name == "lime" else {}
    model = attentive(layermem.build(name, **DEEP, **fields, attn_implementation=attention))
    padded = torch.ones_like(ids)
    padded[1, :3] = 0
    for given, is_cut in (({}, attention == "eager"), ({"attention_mask": padded}, True)):
        with torch.no_grad():
            whole = model(ids, use_cache=False, **given).logits[:, -1:]
        cache = StaticCache(config=model.config, max_cache_len=4 * ids.shape[1])
        counts, logits = tokens_run(model, ids, **{CACHE: cache}, **given)
        assert (counts[-1] == 1) == is_cut
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)


def test_a_layer_that_borrows_is_asked_with_the_rotated_query(ids, monkeypatch):
    """What it is lent is rotated too, so that a memory may compare the two."""
    model = make(LimeForCausalLM, LimeConfig(**TINY, storage="half"))
    seen = []
    attention = model.model.layers[1].self_attn
    forward = type(attention.memory).forward
    monkeypatch.setattr(
        type(attention.memory), "forward", lambda m, q, s: seen.append(q) or forward(m, q, s)
    )
    projected = []
    attention.q_proj.register_forward_hook(lambda _, __, output: projected.append(output))
    model(ids)
    query = projected[0].view(*ids.shape, -1, attention.head_dim).transpose(1, 2)
    tables = model.model.rotary_emb(query, torch.arange(ids.shape[1])[None])
    torch.testing.assert_close(seen[0], rotate(query, *tables))
    assert not torch.allclose(seen[0], query)


def attentive(model):
    """Return a model in float64 whose tokens attend to some tokens more than to others."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(20)
    return model.eval().double()


@pytest.mark.parametrize(
    "given",
    [
        {"use_cache": False},
        {"output_hidden_states": True},
        {"output_attentions": True},
    ],
    ids=str,
)
def test_all_layers_run_on_a_prompt_that_is_looked_at_or_not_cached(given, ids):
    model = layermem.build("yoco", **DEEP, attn_implementation="eager").eval()
    counts, _ = tokens_run(model, ids, **{"use_cache": True, **given})
    assert counts == [ids.shape[1]] * 6
    counts, _ = tokens_run(model.train(), ids, use_cache=True)
    assert counts == [ids.shape[1]] * 6
