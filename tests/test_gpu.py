"""On a GPU every variant computes what it computes on a CPU, and the commands' ways work there."""

import copy

import pytest
import torch
from host_models import make_attached
from small_run import a_run
from tiny import CASES, TINY, make
from transformers import StaticCache

import layermem
from layermem.models.inputs import CACHE
from layermem.models.registry import lookup
from layermem.ops.shared_buffer import using_naive
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.training import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Sums of float32 in another order.
CLOSE = {"rtol": 1e-3, "atol": 1e-5}
FORMS = {"lime": {}, "recipe": layermem.RECIPE}
FIXED = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=CASES, ids=[case[0] for case in CASES])
def models(request):
    """One model of each form of every variant, on the CPU and on the GPU."""
    _, name, fields = request.param
    entry = lookup(name)
    model = make(entry.causal_lm, entry.config(**{**TINY, **fields}))
    return model, copy.deepcopy(model).cuda()


def loss_and_gradients(model, ids):
    loss = model(ids, labels=ids, use_cache=False).loss
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return {"loss": loss.detach(), **dict(zip(names, gradients, strict=True))}


def test_loss_and_gradients(models, ids):
    ours, theirs = (loss_and_gradients(m, ids.to(m.device)) for m in models)
    for name, expected in ours.items():
        torch.testing.assert_close(theirs[name].cpu(), expected, **CLOSE, msg=name)


def test_decoding_with_padding(models, ids):
    mask = torch.ones_like(ids)
    mask[1, :3], mask[2, :5] = 0, 0
    expected = models[0].generate(ids, attention_mask=mask, **FIXED)
    for chosen in ({}, {"cache_implementation": "static", "disable_compile": True}):
        got = models[1].generate(ids.cuda(), attention_mask=mask.cuda(), **FIXED, **chosen)
        assert torch.equal(got.cpu(), expected), chosen


@torch.no_grad()
def test_a_token_in_a_cuda_graph(models, ids):
    model, ids, prompt = models[1], ids.cuda(), 6
    cache = StaticCache(config=model.config, max_cache_len=16)
    model(ids[:, :prompt], **{CACHE: cache}, use_cache=True)
    token, positions = ids[:, prompt : prompt + 1].clone(), torch.full((len(ids), 1), prompt)
    positions = positions.cuda()

    def decode():
        return model(token, position_ids=positions, **{CACHE: cache}, use_cache=True).logits

    def rewind():
        # A layer that borrows has no keys of its own.
        for layer in cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(prompt)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decode()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = decode()
    for shift in (0, 1):
        rewind()
        token.copy_((ids[:, prompt : prompt + 1] + shift) % TINY["vocab_size"])
        graph.replay()
        text = torch.cat([ids[:, :prompt], token], 1)
        torch.testing.assert_close(logits[:, 0], model(text).logits[:, prompt], **CLOSE)


def test_half_precision(models, ids):
    """Weights in bfloat16, as models are served, and autocast, as they are trained."""
    expected = models[0](ids, labels=ids).loss.detach()
    model = models[1]
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(ids.cuda(), labels=ids.cuda()).loss
    loss.backward()
    torch.testing.assert_close(loss.detach().cpu(), expected, rtol=2e-2, atol=0)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        loss = model.bfloat16()(ids.cuda(), labels=ids.cuda()).loss
    torch.testing.assert_close(loss.cpu(), expected, rtol=2e-2, atol=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("form", FORMS)
def test_routing(form, precision, compiled, ids):
    """On a shared buffer as by the naive form, to rounding."""
    model = make(lookup("lime").causal_lm, lookup("lime").config(**FORMS[form], **TINY)).cuda()
    if precision == "bfloat16":
        model.bfloat16()

    def compute(run):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast"):
            loss = run(ids.cuda(), labels=ids.cuda(), use_cache=False).loss
        return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))

    with using_naive():
        expected, gradients = compute(model)
    got, ours = compute(torch.compile(model, fullgraph=True) if compiled else model)
    of_loss, of_gradients = (1e-4, 1e-3) if precision == "float32" else (2e-2, 0.1)
    torch.testing.assert_close(got, expected, rtol=of_loss, atol=0)
    for mine, theirs in zip(ours, gradients, strict=True):
        error = (mine - theirs).float().norm() / theirs.float().norm().clamp(min=1e-6)
        assert error < of_gradients


def test_an_attached_model(ids):
    model = make_attached("llama")
    expected, text = loss_and_gradients(model, ids), model.generate(ids, **FIXED)
    model.cuda()
    for key, value in loss_and_gradients(model, ids.cuda()).items():
        torch.testing.assert_close(value.cpu(), expected[key], **CLOSE, msg=key)
    assert torch.equal(model.generate(ids.cuda(), **FIXED).cpu(), text)


@pytest.mark.parametrize(
    "compute",
    [
        {"precision": "float32"},
        {"precision": "float32", "compile": True},
        {"precision": "bfloat16", "compile": True},
        {"precision": "auto", "checkpoint_activations": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["lime", "plain"])
def test_a_training_run_descends_as_on_a_cpu(variant, compute, tmp_path, monkeypatch):
    run = a_run(tmp_path, variant=variant)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        train(run, tmp_path / "cpu")
    train(a_run(tmp_path, variant=variant, compute=compute), tmp_path / "gpu")
    ours, theirs = (
        [row["loss"] for row in RunFolder(tmp_path / name).rows() if "loss" in row]
        for name in ("cpu", "gpu")
    )
    assert len(ours) == 8
    assert theirs == pytest.approx(ours, rel=1e-3 if compute["precision"] == "float32" else 2e-2)
