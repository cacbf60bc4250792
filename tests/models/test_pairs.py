"""Pairs of variants: what is refused, what both bring, loading and unpickling in a new process."""

import itertools
import pickle
import subprocess
import sys

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tiny import TINY, is_own

import layermem
from layermem.models.registry import lookup
from layermem.models.seams import filled_seams
from layermem_bench.config.counting import count_read

PAIR = "lime+hyper_connections"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("mhc+hyper_connections", "mhc fills stream; hyper_connections fills stream"),
        ("hyper_connections+lime", "hyper_connections fills stream; lime fills memory"),
        ("plain+mhc", "plain fills neither"),
        ("lime+nothing", "unknown variant 'nothing'"),
        ("lime+mhc+hyper_connections", "is no pair"),
        ("depth_attention+lime_hidden", "both variants have a field gate"),
    ],
)
def test_what_is_no_pair_is_refused(name, named):
    with pytest.raises(ValueError, match=named):
        layermem.build(name, **TINY)


def test_a_pair_is_no_variant_of_its_own():
    assert PAIR not in layermem.list_variants()


def test_fields_and_their_checks_are_those_of_both():
    model = layermem.build(PAIR, **TINY, router_init="identity", streams=2)
    assert (model.config.router_init, model.config.streams) == ("identity", 2)
    assert {"router", "streams"} <= set(model.config.shape_fields())
    for fields in ({"router_window": 2}, {"streams": 0}):
        with pytest.raises(StrictDataclassError):
            layermem.build(PAIR, **TINY, **fields)
    with pytest.raises(TypeError, match="did you mean streams"):
        layermem.build(PAIR, **TINY, stream=2)


def test_what_both_have_is_joined():
    entry, parts = lookup(PAIR), [lookup(name) for name in PAIR.split("+")]
    config = entry.config(**TINY)
    assert entry.variant.overrides == (*parts[0].variant.overrides, *parts[1].variant.overrides)
    assert entry.variant.plain_fields == {"router_init": "identity"}
    for count in ("extra_parameters", "extra_flops"):
        expected = [getattr(p.variant, count)(p.config(**TINY)) for p in parts]
        assert getattr(entry.variant, count)(config) == sum(expected)
    model = entry.causal_lm(config)
    assert entry.variant.metrics(model).keys() == parts[0].variant.metrics(model).keys()


def test_methods_of_the_variant_of_the_memory_are_kept():
    model = layermem.build(PAIR, **TINY)
    with pytest.warns(UserWarning, match="have not moved"):
        assert len(model.router_summary()) == TINY["num_hidden_layers"] - 1
    model.prune_routers(keep=1)
    ids = torch.randint(61, (1, 5))
    assert model(ids).logits.isfinite().all()


def every_pair():
    by_seam = {}
    for name in layermem.list_variants():
        by_seam.setdefault(filled_seams(lookup(name).variant), []).append(name)
    pairs = itertools.product(by_seam["memory",], by_seam["stream",])
    # Both have fields of one name, which is refused.
    unlike = {("depth_attention", "lime_hidden"), ("value_residual", "lime_hidden")}
    assert unlike <= set(pairs := list(pairs))
    return ["+".join(pair) for pair in pairs if pair not in unlike]


def test_a_pair_keeps_what_each_variant_says_of_its_seam():
    deep = lookup("depth_attention+mudd")
    assert deep.variant.hands_on(deep.config(**TINY)) == "read"
    lite = lookup("fused_kv+hyper_connections")
    config = lite.config(**TINY, fusion="lite")
    assert count_read(config, lite.variant) == count_read(config, lookup("fused_kv").variant)
    hidden = lookup("lime+lime_hidden")
    assert hidden.variant.inputs_by_head(hidden.config(**TINY))
    model = layermem.build("value_residual+mudd", **TINY, form="svformer")
    projections = [hasattr(layer.self_attn, "v_proj") for layer in model.model.layers]
    assert projections == [True, False, False, False]


@pytest.mark.parametrize("name", every_pair())
def test_every_pair_is_the_plain_decoder_at_the_identity_setting(name, ids):
    entry, plain = lookup(name), lookup("plain")
    if entry.variant.plain_fields is None:
        pytest.skip("no fields of this pair make it the plain decoder")
    torch.manual_seed(0)
    ours = entry.causal_lm(entry.config(**TINY, **entry.variant.plain_fields)).eval().double()
    torch.manual_seed(0)
    theirs = plain.causal_lm(plain.config(**TINY)).eval().double()
    with torch.no_grad():
        expected = theirs(ids).logits
        assert (ours(ids).logits - expected).abs().max() <= 1e-12
        for parameter_name, parameter in ours.named_parameters():
            if is_own(parameter_name):
                parameter.add_(0.1 * torch.randn_like(parameter))
        # What is compared is not the plain decoder under another name, where there are parameters.
        if any(is_own(parameter_name) for parameter_name, _ in ours.named_parameters()):
            assert (ours(ids).logits - expected).abs().max() > 1e-6


@pytest.mark.slow
def test_a_new_process_loads_and_unpickles_a_pair(tmp_path):
    torch.manual_seed(0)
    model = layermem.build(PAIR, **TINY).eval()
    ids = torch.arange(5)[None]
    with torch.no_grad():
        expected = model(ids).logits.sum().item()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    for expression in (
        "AutoModelForCausalLM.from_pretrained(folder)",
        "pickle.load(open(folder + '/model.pickle', 'rb'))",
        "pairs.LimeHyperConnectionsForCausalLM.from_pretrained(folder)",
    ):
        code = f"""
import pickle, layermem, torch
from transformers import AutoModelForCausalLM
from layermem.models import pairs
folder = {str(tmp_path)!r}
model = {expression}
print(type(model).__name__, model(torch.arange(5)[None]).logits.sum().item())
"""
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        name, total = done.stdout.split()[-2:]
        assert name == "LimeHyperConnectionsForCausalLM"
        assert float(total) == pytest.approx(expected, rel=1e-5)
