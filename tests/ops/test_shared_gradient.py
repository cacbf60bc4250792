"""Gradients of stored tensors themselves: asked for, retained or seen by hooks, they are whole."""

import gc
import weakref

import pytest
import torch
from chain import HEADS, assert_same

from layermem.ops import depth, depth_attention
from layermem.ops.depth import naive as depth_naive

WIDTH, LAYERS = 5, 5


def an_input():
    noise = torch.Generator().manual_seed(3)
    x = torch.randn(2, HEADS, 7, WIDTH, generator=noise, dtype=torch.float64)
    return x.requires_grad_()


def by_depth(ops, room):
    def run():
        x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(3)).double()
        out, states = x.requires_grad_(), []
        for i in range(LAYERS):
            states.append(ops.store(out * (i + 1), states, room) if ops is depth else out * (i + 1))
            scores = ops.score(states, torch.ones(2, 6).double())
            inverse = ops.inverse_rms(states[0], 1e-3)
            one, two = ops.mix(states, scores.tanh())
            out = (one + two * inverse[..., None]).tanh() + states[0].square()
        return out.square().sum(), states, [x]

    return run


def by_depth_attention(stored):
    def run():
        x, states = an_input(), []
        out, store = x, depth_attention.store if stored else (lambda state: state)
        for i in range(LAYERS):
            states.append(store(out * (i + 1)))
            weights = depth_attention.score(out, states).softmax(-1)
            out = depth_attention.mix(weights, states).tanh() + states[0].square()
        return out.square().sum(), states, [x]

    return run


# How a loss is computed on stored tensors, and the same without storing.
PAIRS = {
    "depth": (by_depth(depth, 1), by_depth(depth_naive, 1)),
    "depth in shared memory": (by_depth(depth, LAYERS), by_depth(depth_naive, 1)),
    "depth attention": (by_depth_attention(True), by_depth_attention(False)),
}


@pytest.fixture(params=PAIRS.values(), ids=PAIRS)
def pair(request):
    return request.param


def test_losses_are_equal(pair):
    torch.testing.assert_close(*(run()[0].detach() for run in pair))


def test_the_gradient_of_one_stored_tensor(pair):
    """Alone, so that the backward pass ends at the node that made the tensor."""
    results = []
    for run in pair:
        loss, stored, _ = run()
        results.append([])
        for tensor in stored:
            results[-1] += torch.autograd.grad(loss, tensor, retain_graph=True, allow_unused=True)
    assert all(grad is not None for grad in results[0])
    assert_same(*results)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with all other tensors"])
def test_the_gradients_of_all_stored_tensors(pair, others):
    grads = []
    for run in pair:
        loss, stored, inputs = run()
        wanted = [*stored, *(inputs if others else ())]
        grads.append([*torch.autograd.grad(loss, wanted, retain_graph=True)])
        # A second pass over the graph, after the first.
        grads[-1] += torch.autograd.grad(loss, wanted[::2])
    assert_same(*grads)


def test_retained_gradients_and_hooks(pair):
    """A hook sees the whole gradient at once, and what it returns goes on to earlier tensors."""
    results = []
    for run in pair:
        loss, stored, inputs = run()
        seen = {}
        for i, tensor in enumerate(stored):
            tensor.retain_grad()
            tensor.register_hook(
                lambda grad, i=i, seen=seen: seen.setdefault(i, []).append(grad) or 2 * grad
            )
        loss.backward()
        assert [len(seen[i]) for i in range(len(stored))] == [1] * len(stored)
        grads = [*(seen[i][0] for i in range(len(stored)))]
        results.append([*grads, *(tensor.grad for tensor in (*stored, *inputs))])
    assert_same(*results)


@pytest.mark.parametrize("name", ["depth", "depth in shared memory", "depth attention"])
def test_second_derivatives_with_respect_to_stored_tensors(name):
    pair, grads = PAIRS[name], []
    for run in pair:
        loss, stored, inputs = run()
        first = torch.autograd.grad(loss, stored, create_graph=True)
        total = sum(grad.square().sum() for grad in first)
        grads.append([*first, *torch.autograd.grad(total, inputs)])
    assert_same(*([grad.detach() for grad in some] for some in grads))


def test_a_stored_tensor_is_freed_with_its_last_reader(pair):
    """By reference counts alone: there is no cycle."""
    loss, stored, inputs = pair[0]()
    torch.autograd.grad(loss, inputs, retain_graph=True)
    alive = [weakref.ref(tensor) for tensor in stored]
    gc.collect()
    gc.disable()
    try:
        del loss, stored, inputs
        assert [reference() for reference in alive] == [None] * len(alive)
    finally:
        gc.enable()
