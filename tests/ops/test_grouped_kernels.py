"""Routing in groups by kernels: against naive in float64, launches, traffic, when it is chosen.

What they share with matrices is in ``test_grouped.py``. On a CPU by triton's interpreter.
"""

import os

import pytest
import torch
from chain import Depth, an_input, tensors_of
from tiny import SLOW, TINY, make, needs_kernels

from layermem import LimeConfig, LimeForCausalLM
from layermem.ops.route import begin_buffer, route, store, using

COMPILED = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs a CUDA device, and TRITON_INTERPRET=0",
)
# Of the norm: weights and results are rounded to the slots' dtype, and nothing between.
CLOSE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=needs_kernels),
        pytest.param("cuda", marks=[pytest.mark.gpu, COMPILED]),
    ]
)
def device(request):
    return request.param


def draw_model(depth, shape, dtype, device, layout="token major"):
    """Return slots, weights and gradients of routes, of a model in which no layer needs another."""
    batch, heads, tokens, width = shape
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(device, dtype)

    def tensor():
        if layout == "head major":
            return draw(batch, heads, tokens, width)
        return draw(batch, tokens, heads, width).transpose(1, 2)

    slots = [(tensor(), tensor()) for _ in range(depth)]
    weights = [
        None if i == 0 else draw(heads, heads * (i + 1)) / (heads * (i + 1)) ** 0.5
        for i in range(depth)
    ]
    return slots, weights, [(tensor(), tensor()) for _ in range(depth)]


def run_model(slots, weights, grads, name="naive", group_size=3):
    """Return outputs, then all gradients, by groups of kernels or by an implementation's name."""
    slots = [tuple(part.detach().requires_grad_() for part in slot) for slot in slots]
    weights = [None if w is None else w.detach().requires_grad_() for w in weights]
    outs, given = [], []
    if name == "groups":
        from layermem.ops.route.grouped_kernels import KernelBuffer

        kept = KernelBuffer(weights, group_size)
    else:
        kept = []
    for slot, weight, grad in zip(slots, weights, grads, strict=True):
        if name == "groups":
            kept.append(*slot)
        else:
            with using(name):
                kept.append(store(*slot))
        if weight is not None:
            with using("grouped" if name == "groups" else name):
                outs += route(kept, weight)
            given += grad
    wanted = [t for t in (*weights, *(part for slot in slots for part in slot)) if t is not None]
    return [*outs, *torch.autograd.grad(outs, wanted, given)]


def errors(got, exact):
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, exact, strict=True)]


def exactly(slots, weights, grads):
    """By naive in float64."""
    double = [[tuple(part.double() for part in pair) for pair in pairs] for pairs in (slots, grads)]
    return run_model(double[0], [None if w is None else w.double() for w in weights], double[1])


@pytest.mark.parametrize(
    ("depth", "shape", "group_size"),
    [
        (4, (2, 3, 5, 6), 2),
        pytest.param(4, (1, 17, 7, 4), 3, marks=SLOW),
        pytest.param(7, (2, 8, 9, 20), 3, marks=SLOW),
        pytest.param(9, (1, 32, 3, 64), 8, marks=SLOW),
        pytest.param(4, (2, 2, 9, 16), 1, marks=SLOW),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float32,
        *(pytest.param(t, marks=SLOW) for t in (torch.float16, torch.float64)),
    ],
    ids=str,
)
def test_forward_and_every_gradient_equal_naive_in_float64(depth, shape, group_size, dtype, device):
    given = draw_model(depth, shape, dtype, device)
    got = run_model(*given, "groups", group_size)
    assert all(tensor.dtype == dtype for tensor in got)
    assert max(errors(got, exactly(*given))) <= CLOSE[dtype]


@pytest.mark.slow
def test_kernels_of_groups_are_as_exact_as_deferred_ones(device):
    """In bfloat16, at a depth where partial sums pass through three groups."""
    given = draw_model(18, (1, 4, 5, 16), torch.bfloat16, device)
    exact = exactly(*given)
    groups, deferred = (errors(run_model(*given, name, 8), exact) for name in ("groups", "triton"))
    for ours, other in zip(groups, deferred, strict=True):
        assert ours <= 1.05 * other
    assert sum(groups) <= 1.01 * sum(deferred)


def test_two_runs_agree_to_the_last_bit(device):
    given = draw_model(3, (1, 3, 5, 6), torch.bfloat16, device)
    first, second = (run_model(*given, "groups", 2) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def misalign(pair):
    """Return the same pair, token major, in memory that begins anywhere."""
    moved = []
    for part in pair:
        pool = torch.empty(part.numel() + 1, dtype=part.dtype, device=part.device)[1:]
        batch, heads, tokens, width = part.shape
        moved.append(pool.view(batch, tokens, heads, width).transpose(1, 2).copy_(part))
        assert pool.data_ptr() % 16
    return tuple(moved)


@pytest.mark.parametrize("layout", ["head major", "unaligned", "another dtype"])
def test_slots_and_gradients_that_lie_otherwise(layout, device):
    slots, weights, grads = draw_model(3, (1, 3, 5, 6), torch.float32, device, layout)
    if layout == "unaligned":
        slots, grads = ([misalign(pair) for pair in pairs] for pairs in (slots, grads))
    expected = exactly(slots, weights, grads)
    if layout == "another dtype":
        slots[1:] = [(key.double(), value.double()) for key, value in slots[1:]]
    got = run_model(slots, weights, grads, "groups", 2)
    assert max(errors(got, expected)) <= CLOSE[torch.float32]


def test_what_kernels_read_is_aligned():
    """The interpreter does not care, a GPU does."""
    launches = pytest.importorskip("layermem.ops.route.launches")
    key, value = misalign(torch.randn(2, 1, 3, 5, 6))
    for part in (key, value):
        assert part.transpose(1, 2).is_contiguous() and part.data_ptr() % 16
        copy = launches.readable(part)
        assert torch.equal(copy, part) and copy.data_ptr() % 16 == 0


def test_more_slots_and_layers_than_one_launch_takes(device, monkeypatch):
    from layermem.ops.route import launches

    monkeypatch.setattr(launches, "_MAX_SLOTS", 2)
    monkeypatch.setattr(launches, "_MAX_GROUP", 2)
    given = draw_model(5, (1, 2, 3, 4), torch.bfloat16, device)
    got = run_model(*given, "groups", 3)
    assert max(errors(got, exactly(*given))) <= CLOSE[torch.bfloat16]


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=SLOW), torch.bfloat16], ids=str
)
def test_several_blocks_of_rows_and_of_columns_and_pieces(dtype, device, monkeypatch):
    """Of the weight's rows, of tokens, of a router's gradient, none of them whole."""
    from layermem.ops.route import launches

    monkeypatch.setattr(launches, "_PROGRAMS", 24)
    group_sizes, gram_sizes = launches.group_sizes, launches.gram_sizes
    blocks = {"M_PADDED": 16, "BLOCK": 4}
    monkeypatch.setattr(launches, "group_sizes", lambda *args: {**group_sizes(*args), **blocks})
    blocks_of_gram = {**blocks, "K_PADDED": 16}
    monkeypatch.setattr(launches, "gram_sizes", lambda *a: {**gram_sizes(*a), **blocks_of_gram})
    slots, _, grads = draw_model(5, (1, 7, 6, 4), dtype, device)
    weight = torch.randn(21, 35).to(device, dtype)
    sums = launches.gather_group(weight, slots)
    total = launches.gram_group(grads[:3], slots)
    wide = [
        [torch.cat([slot[k] for slot in pairs], 1).double() for k in (0, 1)]
        for pairs in (slots, grads[:3])
    ]
    for k in (0, 1):
        expected = torch.einsum("mk,bkte->bmte", weight.double(), wide[0][k])
        got = torch.cat([pair[k] for pair in sums], 1)
        # Not rounded: bfloat16 keeps three digits.
        assert (got - expected).norm() <= 1e-6 * expected.norm()
    expected = sum(torch.einsum("bmte,bkte->mk", wide[1][k], wide[0][k]) for k in (0, 1))
    assert (total - expected).norm() <= 1e-6 * expected.norm()


def test_keeping_a_slot_copies_nothing_and_routes_are_token_major(device):
    from layermem.ops.route.grouped_kernels import KernelBuffer

    slots, weights, _ = draw_model(3, (2, 3, 5, 8), torch.bfloat16, device)
    kept = KernelBuffer(weights, 2)
    for slot, weight in zip(slots, weights, strict=True):
        stored = kept.append(*slot)
        assert [t.data_ptr() for t in stored] == [t.data_ptr() for t in slot]
        if weight is not None:
            assert all(out.transpose(1, 2).is_contiguous() for out in kept.route(weight))


@needs_kernels
def test_gradients_are_kept_where_they_are_and_no_longer_than_the_pass():
    from layermem.ops.route.grouped_backward import Group
    from layermem.ops.route.grouped_kernels import KernelGradients

    grads = KernelGradients(
        Group(first=0, last=2, stacked=torch.zeros(4, 4)), torch.Size((1, 2, 3, 4))
    )
    token_major, head_major = torch.randn(1, 3, 2, 4).transpose(1, 2), torch.randn(1, 2, 3, 4)
    grads.write(0, token_major, None)
    grads.write(1, None, head_major)
    assert grads._grads[0][0].data_ptr() == token_major.data_ptr()
    assert not grads._grads[0][1].any() and not grads._grads[1][0].any()
    assert torch.equal(grads._grads[1][1], head_major)
    assert grads._grads[1][1].transpose(1, 2).is_contiguous()


@pytest.mark.slow
def test_a_partial_pass_after_a_full_one(device):
    """Layers that a pass has not reached are left out of its launches."""
    from layermem.ops.route.grouped_kernels import KernelBuffer

    model, x = Depth(5), an_input()
    model.buffer = KernelBuffer
    model, x = model.to(device), x.detach().to(device).requires_grad_()
    grads = []
    for group_size in (2, None):
        outputs = model(x, group_size, all_layers=True)
        loss = outputs[2].square().sum()
        grads.append(torch.autograd.grad(loss, tensors_of(model, x), allow_unused=True))
    for got, expected in zip(*grads, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected)


def weights_of(depth=3, **options):
    return [None, *(torch.randn(2, 2 * (i + 1), **options) for i in range(1, depth))]


@needs_kernels
def test_kernels_are_chosen_on_request_in_half_precision():
    from layermem.ops.route.grouped_kernels import KernelBuffer
    from layermem.ops.route.grouped_matrices import MatrixBuffer

    half = torch.randn(2, dtype=torch.bfloat16)
    assert begin_buffer(weights_of(), half) is None
    with using("grouped"):
        assert isinstance(begin_buffer(weights_of(), half), KernelBuffer)
        assert isinstance(begin_buffer(weights_of(), half.half()), KernelBuffer)
        assert isinstance(begin_buffer(weights_of(), half.float()), MatrixBuffer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert isinstance(begin_buffer(weights_of(), half.float()), KernelBuffer)
        assert begin_buffer(weights_of(), half.to("meta")) is None
        assert begin_buffer([None, weights_of()[1][:, 1:]], half) is None
    for name in ("naive", "functional", "deferred", "triton"):
        with using(name):
            assert begin_buffer(weights_of(), half) is None


@needs_kernels
def test_without_kernels_half_precision_has_no_buffer(monkeypatch):
    from layermem.ops import route as room
    from layermem.ops.route import launches

    half = torch.randn(2, dtype=torch.bfloat16)
    monkeypatch.setattr(launches, "is_interpreted", lambda: False)
    with using("grouped"):
        assert begin_buffer(weights_of(), half) is None
    monkeypatch.undo()
    monkeypatch.setattr(room, "_has_triton", lambda: False)
    with using("grouped"):
        assert begin_buffer(weights_of(), half) is None


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=SLOW)], ids=["", "autocast"])
@pytest.mark.parametrize(
    "checkpointing", [False, pytest.param(True, marks=SLOW)], ids=["", "checkpointed"]
)
def test_a_model_in_half_precision_trains_by_groups(autocast, checkpointing, ids, device):
    """Kernels where layers share a buffer, matrix products under checkpointing."""
    model = make(LimeForCausalLM, LimeConfig(**{**TINY, "num_hidden_layers": 3})).to(device).train()
    model = model if autocast else model.bfloat16()
    ids = ids[:2, :5].to(device)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    results = []
    for name in ("naive", "grouped"):
        with using(name), torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = model(ids, labels=ids).loss
        # A checkpoint routes again.
        with using(name):
            results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for expected, got in zip(*results, strict=True):
        assert got.dtype == expected.dtype
        assert (got - expected).norm() <= 0.04 * expected.norm()


@pytest.mark.slow
def test_a_model_in_half_precision_decodes_by_groups(ids, device):
    model = make(LimeForCausalLM, LimeConfig(**TINY)).to(device).bfloat16()
    outs = []
    for name in ("triton", "grouped"):
        with using(name):
            outs.append(model.generate(ids.to(device), max_new_tokens=4, do_sample=False))
    assert torch.equal(*outs)


@pytest.mark.slow
@needs_kernels
def test_uninitialised_memory_is_never_read_in_half_precision(monkeypatch):
    given = draw_model(5, (1, 3, 5, 6), torch.bfloat16, "cpu")
    for owner, name in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, real=real, **k: real(*a, **k).fill_(torch.nan))
    assert all(tensor.isfinite().all() for tensor in run_model(*given, "groups", 2))
