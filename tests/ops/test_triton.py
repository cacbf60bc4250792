"""The kernels: against the naive sum in float64, at odd sizes, on poisoned memory, run after run.

On a CPU by triton's interpreter; on a GPU (marker ``gpu``, TRITON_INTERPRET=0) as compiled.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import SLOW, TINY, make, needs_kernels

from layermem import LimeConfig, LimeForCausalLM
from layermem.ops.route import naive, route, store, using

INTERPRETED = pytest.param("cpu", marks=needs_kernels)
COMPILED = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
            reason="needs a CUDA device, and TRITON_INTERPRET=0",
        ),
    ],
)
# slots, batch, heads in, heads out, tokens, width
SHAPES = [
    (1, 1, 1, 1, 1, 2),
    (3, 2, 3, 3, 5, 6),
    (4, 2, 4, 2, 9, 8),
    (3, 1, 2, 2, 20, 64),
]
LARGE = [(3, 1, 2, 5, 40, 20), (5, 1, 8, 8, 33, 16), (2, 3, 17, 17, 7, 4)]
DTYPES = [
    *(torch.float32, torch.bfloat16),
    *(pytest.param(dtype, marks=SLOW) for dtype in (torch.float64, torch.float16)),
]
# Of the norm: weights and results are rounded to the slots' dtype, and nothing between.
CLOSE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@pytest.fixture(params=[INTERPRETED, COMPILED])
def device(request):
    return request.param


def inputs(shape, dtype, device, layout="token major", seed=0):
    n_slots, batch, heads, given, tokens, width = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(device, dtype)

    def tensor():
        if layout == "head major":
            return draw(batch, heads, tokens, width)
        if layout == "strided":
            return draw(batch, tokens, heads, 2 * width)[..., ::2].transpose(1, 2)
        return draw(batch, tokens, heads, width).transpose(1, 2)

    slots = [(tensor(), tensor()) for _ in range(n_slots)]
    weight = draw(given, n_slots * heads) / (n_slots * heads) ** 0.5
    grads = [draw(batch, given, tokens, width) for _ in range(2)]
    return slots, weight, grads


def forward_and_gradients(name, slots, weight, grads, *, stored):
    """Return outputs, then the gradients of weight, keys and values."""
    leaves = [tensor.detach().clone().requires_grad_() for slot in slots for tensor in slot]
    weight = weight.detach().clone().requires_grad_()
    with using(name):
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        out = route([store(*pair) for pair in pairs] if stored else pairs, weight)
    return [*out, *torch.autograd.grad(out, [weight, *leaves], grads)]


def kernel_routes():
    """Return the module of launches, which needs triton."""
    from layermem.ops.route import launches

    return launches


def assert_close(got, expected, dtype):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == dtype and a.shape == b.shape
        error = (a.double() - b).norm()
        assert error <= CLOSE[dtype] * b.norm(), f"{error / b.norm():.2e}"


@pytest.mark.parametrize("stored", [True, False], ids=["deferred", "ordinary"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [*SHAPES, *(pytest.param(shape, marks=SLOW) for shape in LARGE)], ids=str
)
def test_forward_and_every_gradient_equal_naive_in_float64(shape, dtype, stored, device):
    slots, weight, grads = inputs(shape, dtype, device)
    exact = [[tensor.double() for tensor in slot] for slot in slots]
    expected = forward_and_gradients(
        "naive", exact, weight.double(), [g.double() for g in grads], stored=stored
    )
    got = forward_and_gradients("triton", slots, weight, grads, stored=stored)
    assert_close(got, expected, dtype)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "one operator"])
@pytest.mark.parametrize("stored", [True, False], ids=["deferred", "ordinary"])
@pytest.mark.parametrize("scalars", [False, True], ids=["of heads", "a scalar a slot"])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_keys_and_values_with_weights_of_their_own(shape, scalars, stored, compiled, device):
    slots, weight, grads = inputs(shape, torch.float32, device)
    value_weight = inputs(shape, torch.float32, device, seed=1)[1]
    if scalars:
        weight, value_weight = weight[:1, : len(slots)], value_weight[:1, : len(slots)]
    outcomes = []
    for name in ("naive", "triton"):
        leaves = [tensor.clone().requires_grad_() for slot in slots for tensor in slot]
        router = [w.clone().requires_grad_() for w in (weight, value_weight)]
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        with using(name):
            if stored and not compiled:
                pairs = [store(*pair) for pair in pairs]
            if compiled and name == "triton":
                out = kernel_routes()._compiled_route(leaves[::2], leaves[1::2], router)
            else:
                out = route(pairs, *router)
        outcomes.append([*out, *torch.autograd.grad(out, [*router, *leaves], grads)])
    assert_close(outcomes[1], [tensor.double() for tensor in outcomes[0]], torch.float32)


@pytest.mark.parametrize("layout", ["head major", "strided"])
def test_slots_that_lie_otherwise(layout, device):
    slots, weight, grads = inputs(SHAPES[1], torch.float32, device, layout)
    expected = forward_and_gradients("naive", slots, weight, grads, stored=False)
    got = forward_and_gradients("triton", slots, weight, grads, stored=False)
    assert_close(got, [tensor.double() for tensor in expected], torch.float32)


@pytest.mark.parametrize("slot", [1, 2], ids=["one launch", "two launches"])
def test_slots_that_are_not_alike_are_refused(slot, device, monkeypatch):
    """A kernel would read the bits of one as numbers of the other's dtype."""
    from layermem.ops.route import launches

    monkeypatch.setattr(launches, "_MAX_SLOTS", 2)
    slots, weight, _ = inputs((3, 1, 2, 2, 5, 4), torch.bfloat16, device)
    key, value = slots[slot]
    with using("triton"):
        for other in (value.float(), value[:, :, :4]):
            mixed = [*slots[:slot], (key, other), *slots[slot + 1 :]]
            with pytest.raises(ValueError, match="must be alike, got torch.bfloat16|in slot"):
                route(mixed, weight)


def test_more_slots_than_one_launch_takes(device, monkeypatch):
    from layermem.ops.route import launches

    monkeypatch.setattr(launches, "_MAX_SLOTS", 2)
    slots, weight, grads = inputs((7, 1, 2, 2, 5, 4), torch.bfloat16, device)
    exact = [[tensor.double() for tensor in slot] for slot in slots]
    expected = forward_and_gradients(
        "naive", exact, weight.double(), [g.double() for g in grads], stored=True
    )
    for stored in (True, False):
        got = forward_and_gradients("triton", slots, weight, grads, stored=stored)
        assert_close(got, expected, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "pieces"), [(20, 64), (13, 2), (5, 1)], ids=["blocks-1", "blocks-4", "blocks-3"]
)
def test_a_gradient_in_several_pieces_and_blocks(tokens, pieces, device, monkeypatch):
    """Blocks of four rows: a piece of the router's gradient is summed over all that it has."""
    from layermem.ops.route import launches

    monkeypatch.setattr(launches, "_TILE_BYTES", 1024)
    monkeypatch.setattr(launches, "_MAX_PIECES", pieces)
    slots, weight, grads = inputs((3, 2, 3, 3, tokens, 4), torch.float32, device)
    assert launches.kernel_sizes(slots[0][0], 3)["BLOCK"] == 4
    expected = forward_and_gradients("naive", slots, weight, grads, stored=True)
    got = forward_and_gradients("triton", slots, weight, grads, stored=True)
    assert_close(got, [tensor.double() for tensor in expected], torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_runs_agree_to_the_last_bit(dtype, device):
    given = inputs(LARGE[0], dtype, device)
    first = forward_and_gradients("triton", *given, stored=True)
    second = forward_and_gradients("triton", *given, stored=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_memory_beyond_the_slots_is_neither_read_nor_written(device):
    """Slots with poison before and behind; results with poison around."""
    from layermem.ops.route import launches

    batch, heads, tokens, width = 1, 3, 5, 6
    size = batch * heads * tokens * width
    pool = torch.full((9, size), torch.nan, device=device)
    slots = []
    for i in range(2):
        for j in (1, 3):
            pool[4 * i + j] = torch.randn(size)
        key, value = (
            pool[4 * i + j].view(batch, tokens, heads, width).transpose(1, 2) for j in (1, 3)
        )
        slots.append((key, value))
    weight = torch.randn(heads, 2 * heads, device=device)
    before = pool.clone()
    out = launches.gather((weight, weight), slots)
    grads = tuple(torch.randn_like(x) for x in out)
    columns = weight.view(heads, 2, heads).permute(1, 2, 0)
    launches.spread((columns, columns), grads)
    launches.gram(grads, slots)
    torch.testing.assert_close(pool, before, rtol=0, atol=0, equal_nan=True)
    assert all(x.isfinite().all() for x in out)
    expected = naive.route(slots, weight)
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_storing_copies_nothing(device):
    slots, _, _ = inputs(SHAPES[1], torch.bfloat16, device)
    with using("triton"):
        stored = store(*slots[0])
    assert [t.data_ptr() for t in stored] == [t.data_ptr() for t in slots[0]]


def test_what_comes_out_is_token_major(device):
    slots, weight, grads = inputs(SHAPES[1], torch.bfloat16, device)
    with using("triton"):
        out = route(slots, weight)
    assert all(tensor.transpose(1, 2).is_contiguous() for tensor in out)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPES[1], pytest.param(LARGE[1], marks=SLOW)], ids=str)
def test_the_operators_keep_torchs_rules(shape, device):
    """Fake shapes and strides, aliasing, autograd's registration."""
    from layermem.ops.route import launches

    slots, weight, grads = inputs(shape, torch.float32, device)
    keys, values = ([slot[k].requires_grad_() for slot in slots] for k in (0, 1))
    torch.library.opcheck(launches._compiled_route, (keys, values, [weight.requires_grad_()]))
    plain = [[t.detach() for t in side] for side in (keys, values)]
    torch.library.opcheck(launches._compiled_backward, (*plain, [weight.detach()], *grads))


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointed"])
def test_a_model_trains_by_the_kernels_as_by_the_naive_way(checkpointing, ids, device):
    model = make(LimeForCausalLM, LimeConfig(**TINY)).to(device).train()
    ids = ids.to(device)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    found = []
    for name in ("naive", "triton"):
        with using(name):
            loss = model(ids, labels=ids).loss
            found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_a_model_decodes_by_the_kernels(ids, device):
    model = make(LimeForCausalLM, LimeConfig(**TINY)).to(device)
    ids = ids.to(device)
    outs = []
    for name in ("naive", "triton"):
        with using(name):
            outs.append(model.generate(ids, max_new_tokens=4, do_sample=False))
    assert torch.equal(*outs)


def test_without_triton_it_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ImportError, match="pip install triton"), using("triton"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_interpreter_is_chosen_before_anything_imports_triton():
    """Also where nothing was set before and no parent process has set it."""
    unset = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = "import conftest, triton.language as tl; print(type(tl.zeros).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=unset,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "InterpretedFunction", done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_kernels_compile_for_a_gpu_without_one():
    """Through triton's own compiler and assembler, for Hopper: no spills, memory within limits."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = os.path.join(os.path.dirname(__file__), "compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
