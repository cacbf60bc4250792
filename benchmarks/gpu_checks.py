"""Sections of the GPU benchmark that come first: are the kernels right, and how fast is memory."""

import math
import statistics
from functools import partial

import torch
from gpu_setup import SIZES_SMOKE
from measure import round_seconds

import layermem
from layermem.ops.route import implementations, route, store, using

# Relative errors that are allowed, by the norm: of one route, and of a whole model in float32.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
MODEL_LIMIT = 1e-4


def list_checks(setup):
    """Compare kernels and paths with naive; a row that fails stops what rests on it."""
    rows = {f"kernels, {dtype}": partial(check_kernels, setup, dtype) for dtype in LIMITS}
    return {**rows, "models, torch.float32": partial(check_paths, setup)}


def check_kernels(setup, dtype):
    """Compare forward and gradients with naive in float64, and two repetitions bit for bit."""
    worst = 0.0
    shapes = [(2, 2, 3, 5, 6), (5, 1, 8, 33, 16)]
    if not setup.smoke:
        shapes += [
            (16, 2, 8, 300, 64),
            (16, 1, 32, 130, 64),
            (130, 1, 4, 17, 24),
            (3, 2, 17, 65, 80),
        ]
    for shape in shapes:
        for stored in (True, False):
            slots, weight, grads = draw_inputs(shape, dtype, setup.device)
            exact = [tuple(x.double() for x in slot) for slot in slots]
            expected = _forward_and_gradients(
                "naive", exact, weight.double(), [g.double() for g in grads], stored
            )
            got = _forward_and_gradients("triton", slots, weight, grads, stored)
            again = _forward_and_gradients("triton", slots, weight, grads, stored)
            if not all(torch.equal(a, b) for a, b in zip(got, again, strict=True)):
                raise AssertionError(f"two repetitions differ at {shape} in {dtype}")
            worst = _check_errors(got, expected, LIMITS[dtype], f"{shape} in {dtype}", worst)
    return {"unit": "relative error", "figures": {"triton": worst}}


def check_paths(setup):
    """Compare the loss and every gradient of a small model in float32 with those of naive."""
    torch.manual_seed(0)
    fields = {**SIZES_SMOKE, "num_hidden_layers": 10}
    model = layermem.build("lime", **fields).to(setup.device)
    ids = torch.randint(fields["vocab_size"], (2, 33), device=setup.device)
    results = {}
    for name in implementations():
        with using(name):
            loss = model(ids, labels=ids, use_cache=False).loss
            results[name] = [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    expected = results.pop("naive")
    errors = {
        name: _check_errors(got, expected, MODEL_LIMIT, f"a model, {name}")
        for name, got in results.items()
    }
    return {"unit": "relative error", "figures": errors}


def _check_errors(got, expected, limit, where, worst=0.0):
    """Return the largest relative error; raise ``AssertionError`` if one is above the limit."""
    for a, b in zip(got, expected, strict=True):
        error = ((a.double() - b.double()).norm() / b.double().norm()).item()
        # Not ``error > limit``, which is false for NaN.
        if not error <= limit:
            raise AssertionError(f"relative error {error:.1e} above {limit:.1e} at {where}")
        worst = max(worst, error)
    return worst


def draw_inputs(shape, dtype, device):
    """Return slots, a router's weight and gradients of a route's result."""
    n_slots, batch, heads, tokens, width = shape
    generator = torch.Generator(device).manual_seed(0)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator, device=device).to(dtype)

    slots = [
        tuple(draw(batch, tokens, heads, width).transpose(1, 2) for _ in range(2))
        for _ in range(n_slots)
    ]
    weight = draw(heads, n_slots * heads) / math.sqrt(n_slots * heads)
    return slots, weight, [draw(batch, heads, tokens, width) for _ in range(2)]


def _forward_and_gradients(name, slots, weight, grads, stored):
    leaves = [x.detach().requires_grad_() for slot in slots for x in slot]
    weight = weight.detach().requires_grad_()
    with using(name):
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        out = route([store(*pair) for pair in pairs] if stored else pairs, weight)
    return [*out, *torch.autograd.grad(out, [weight, *leaves], grads)]


def list_bandwidths(setup):
    """Measure bytes a second of a copy and of each kernel, by the bytes it has to move at 1B."""
    return {f"{heads} kv heads": partial(measure_bandwidth, setup, heads) for heads in (8, 32)}


def measure_bandwidth(setup, heads):
    """Return bytes a second; a kernel reads each slot once, or writes it, and its result once."""
    from layermem.ops.route import launches

    size = 2**16 if setup.smoke else 2**30
    source = torch.randn(size, device=setup.device).bfloat16()
    target = torch.empty_like(source)
    shape = (4, 1, 2, 16, 16) if setup.smoke else (16, 4, heads, 2048, 64)
    slots, weight, grads = draw_inputs(shape, torch.bfloat16, setup.device)
    grads = tuple(launches.token_major(grad) for grad in grads)
    columns = weight.unflatten(1, (-1, grads[0].shape[1])).permute(1, 2, 0).contiguous()
    moved = 2 * grads[0].nbytes * (shape[0] + 1)
    works = {
        "copy": (partial(target.copy_, source), 2 * source.nbytes),
        "gather": (partial(launches.gather, (weight, weight), slots), moved),
        "spread": (partial(launches.spread, (columns, columns), grads), moved),
        "gram": (partial(launches.gram, grads, slots), moved),
    }
    count = 1 if setup.smoke else 10

    def repeat(work):
        for _ in range(count):
            work()

    columns = {name: (work, None) for name, (work, _) in works.items()}
    rounds = round_seconds(columns, repeat, setup.repeats, setup.device, count)
    figures = {name: works[name][1] / statistics.median(rounds[name]) for name in works}
    ratios = {name: value / figures["copy"] for name, value in figures.items()}
    return {"unit": "bytes/s", "base": "copy", "figures": figures, "ratios": ratios}
