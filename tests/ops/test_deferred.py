"""Routing of slots that share no buffer against the naive one, in every odd circumstance."""

import pytest
import torch
from tiny import SLOW, needs_kernels
from torch import nn
from torch.utils.checkpoint import checkpoint

from layermem.ops.route import implementations, naive, store, using
from layermem.ops.route import route as chosen_route

LAYERS, HEADS = 4, 3
# Tokens enough for slots to be read one by one.
MANY = 600


def few_if_interpreted(tokens, name):
    """The interpreter takes milliseconds for what a kernel does at once."""
    return min(tokens, 21) if name == "triton" else tokens


class Depth(nn.Module):
    """A chain as a model has it: every layer stores a slot and routes over the slots so far."""

    def __init__(self, width=5, windows=None, seed=0, rows=HEADS):
        super().__init__()
        torch.manual_seed(seed)
        self.width, self.windows = width, windows or [LAYERS] * LAYERS
        inner = HEADS * width
        self.keys = nn.ModuleList(nn.Linear(inner, inner) for _ in self.windows)
        self.values = nn.ModuleList(nn.Linear(inner, inner) for _ in self.windows)
        self.weights = nn.ParameterList(
            torch.randn(rows, rows * min(i + 1, self.windows[i])) / (i + 1)
            for i in range(len(self.windows))
        )
        # Float64 unless a test says otherwise: two orders of one sum differ, a mistake more.
        self.double()

    def layer(self, i, x, *tensors):
        key, value = (
            p(x).unflatten(-1, (HEADS, self.width)).transpose(1, 2)
            for p in (self.keys[i], self.values[i])
        )
        own = store(key, value)
        slots = [*zip(tensors[::2], tensors[1::2], strict=True), own]
        key, value = chosen_route(slots[-self.windows[i] :], self.weights[i])
        x = x + torch.tanh(key * 2 + value).transpose(1, 2).flatten(2)
        return x, *own

    def forward(self, x, run=None):
        tensors = []
        for i in range(len(self.windows)):
            arguments = (x, *tensors)
            x, *own = run(i, self.layer, *arguments) if run else self.layer(i, *arguments)
            tensors += own
        return x


def plainly(i, layer, *arguments):
    return layer(i, *arguments)


def checkpointed(reentrant):
    def run(i, layer, *arguments):
        return checkpoint(lambda *a: layer(i, *a), *arguments, use_reentrant=reentrant)

    return run


def an_input(batch=2, tokens=7, width=5, dtype=torch.float64):
    x = torch.randn(batch, tokens, HEADS * width, generator=torch.Generator().manual_seed(3))
    return x.to(dtype).requires_grad_()


def outcome(model, x, name, run=None):
    """Return output and all gradients under one implementation."""
    with using(name):
        y = model(x, run)
        wanted = [x, *(p for p in model.parameters() if p.requires_grad)]
        grads = torch.autograd.grad(y.square().sum(), [w for w in wanted if w.requires_grad])
    return [y.detach(), *grads]


def assert_same(got, expected, **close):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, **close)


@pytest.fixture(params=["deferred", pytest.param("triton", marks=[needs_kernels, SLOW])])
def name(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("batch", "tokens", "width"), [(1, 1, 1), (2, 7, 5), (3, 13, 2), (2, MANY, 6)], ids=str
)
def test_a_chain_equals_naive(name, batch, tokens, width, dtype):
    tokens = few_if_interpreted(tokens, name)
    model, x = Depth(width).to(dtype), an_input(batch, tokens, width, dtype)
    assert_same(outcome(model, x, name), outcome(model, x, "naive"), rtol=1e-4, atol=1e-4)


def test_a_scalar_for_each_slot(name):
    model, x = Depth(rows=1), an_input(tokens=few_if_interpreted(MANY, name))
    assert_same(outcome(model, x, name), outcome(model, x, "naive"))


@pytest.mark.parametrize("window", [99, 9])
def test_a_deep_chain_equals_naive(window):
    model, x = Depth(windows=[window] * 13), an_input(2, MANY)
    assert_same(outcome(model, x, "deferred"), outcome(model, x, "naive"))


@pytest.mark.parametrize("windows", [[1, 2, 2, 2], [1, 1, 1, 1], [1, 2, 3, 2]], ids=str)
def test_windows(name, windows):
    model, x = Depth(windows=windows), an_input()
    assert_same(outcome(model, x, name), outcome(model, x, "naive"))


def test_half_precision_is_rounded_once(name):
    """As close to float64 as the naive way, which sums in float32."""
    slots = [tuple(torch.randn(2, 2, HEADS, 700, 4).bfloat16()) for _ in range(9)]
    weight = torch.randn(HEADS, 9 * HEADS).bfloat16()
    exact = naive.route([(k.double(), v.double()) for k, v in slots], weight.double())
    with using(name):
        got = chosen_route(slots, weight)
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b.bfloat16())


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_activation_checkpointing(name, reentrant):
    model, x = Depth(), an_input()
    expected = outcome(model, x, "naive", plainly)
    with using(name):
        y = model(x, checkpointed(reentrant))
        y.square().sum().backward()
    got = [y.detach(), x.grad, *(p.grad for p in model.parameters())]
    assert_same(got, expected)


def test_autocast(name):
    """No further from float32 than the naive way under the same autocast."""
    model, x = Depth().float(), an_input(dtype=torch.float32)
    exact = outcome(model, x, "naive")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = outcome(model, x, name), outcome(model, x, "naive")
    for ours, theirs, true in zip(got, expected, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - true).norm() <= 1.5 * (theirs - true).norm() + 1e-3 * true.norm()


@pytest.mark.parametrize("frozen", ["weights", "keys", "values", "x", "first"])
def test_partial_inputs_needing_gradients(name, frozen):
    model, x = Depth(), an_input()
    if frozen == "x":
        x = x.detach()
    elif frozen == "first":
        model.keys[0].requires_grad_(False)
        model.values[0].requires_grad_(False)
        x = x.detach()
    else:
        getattr(model, frozen).requires_grad_(False)
    assert_same(outcome(model, x, name), outcome(model, x, "naive"))


def test_repeated_backward(name):
    model, x = Depth(), an_input()
    with using(name):
        loss = model(x).square().sum()
        first = torch.autograd.grad(loss, [x, *model.parameters()], retain_graph=True)
        second = torch.autograd.grad(loss, [x, *model.parameters()])
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


def test_a_pass_that_ends_early_leaves_nothing_for_the_next(name):
    """A first backward that never reaches the first slots must not be counted in the second."""
    model, x = Depth(), an_input()
    expected = outcome(model, x, "naive")[1:]
    with using(name):
        loss = model(x).square().sum()
        torch.autograd.grad(loss, [model.weights[3], model.weights[2]], retain_graph=True)
        torch.autograd.grad(loss, [model.keys[3].weight], retain_graph=True)
        got = torch.autograd.grad(loss, [x, *model.parameters()])
    assert_same(got, expected)


def test_two_losses_of_one_forward(name):
    """Two backward passes over parts of one graph add up to the backward of the sum."""
    model, x = Depth(), an_input()
    expected = outcome(model, x, "naive")[1:]
    with using(name):
        y = model(x).square()
        parts = [y[:, :3].sum(), y[:, 3:].sum()]
        got = [torch.autograd.grad(p, [x, *model.parameters()], retain_graph=True) for p in parts]
    assert_same([a + b for a, b in zip(*got, strict=True)], expected)


def test_second_derivatives_are_refused(name):
    """Gradients with a graph would lack what routes leave with the nodes of slots."""
    model, x = Depth(), an_input()
    with using(name):
        loss = model(x).square().sum()
        for wanted in (x, model.weights[1]):
            with pytest.raises(RuntimeError, match=r"using\(.naive.\)"):
                torch.autograd.grad(loss, wanted, create_graph=True)


def test_a_slot_used_beside_its_routes(name):
    """A slot's key read by somebody else too, and one slot read by two routes of no relation."""

    def losses(weights, x):
        key = x.unflatten(-1, (HEADS, 5)).transpose(1, 2)
        slot = store(key, key * 2)
        one, two = (sum(chosen_route([slot], w)) for w in weights)
        return one.square().sum() + two.tanh().sum() + slot[0].exp().sum()

    weights, x = torch.randn(2, HEADS, HEADS, dtype=torch.float64).unbind(), an_input()
    grads = []
    for which in (name, "naive"):
        with using(which):
            grads.append(torch.autograd.grad(losses(weights, x), x)[0])
    torch.testing.assert_close(*grads)


def test_a_stored_slot_cannot_be_changed_in_place():
    """Its readers have it already; torch refuses."""
    key, value = torch.randn(2, 2, HEADS, 7, 5, requires_grad=True)
    slot = store(key * 2, value * 2)
    with pytest.raises(RuntimeError, match="modified inplace"):
        slot[0].mul_(3)


def test_without_gradients(name):
    model, x = Depth(), an_input()
    with torch.no_grad():
        with using(name):
            got = model(x)
        with using("naive"):
            torch.testing.assert_close(got, model(x))


@pytest.mark.slow
def test_compiled(name):
    torch.compiler.reset()
    model, x = Depth(), an_input()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = outcome(model, x, "naive")
    with using(name):
        y = compiled(x)
        got = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
    assert_same([y.detach(), *got], expected)


def test_uninitialised_memory_is_never_read(name, monkeypatch):
    """Whatever a fresh allocation holds, nothing of it comes through."""
    poisoned = [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]
    for owner, make in poisoned:
        real = getattr(owner, make)
        monkeypatch.setattr(owner, make, lambda *a, real=real, **k: real(*a, **k).fill_(torch.nan))
    model, x = Depth(), an_input(2, few_if_interpreted(MANY, name))
    assert all(tensor.isfinite().all() for tensor in outcome(model, x, name))


def test_the_choice_of_implementation():
    assert implementations() == ["naive", "deferred", "grouped", "triton"]
    with pytest.raises(ValueError, match="'fast'; choose one of naive"), using("fast"):
        pass
    with using("naive"):
        assert store(1, 2) == (1, 2)


def test_memory_is_the_slots_and_no_more():
    """What autograd keeps of all routes is the slots and the weights, once."""
    x, kept = an_input(2, 300), {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    slots = []
    with using("deferred"), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        for _ in range(6):
            key = x.unflatten(-1, (HEADS, 5)).transpose(1, 2)
            slots.append(store(key * 1.5, key * 2.5))
            kept.clear()
            weight = torch.randn(HEADS, HEADS * len(slots), dtype=x.dtype, requires_grad=True)
            chosen_route(slots, weight)
    assert sum(kept.values()) == 6 * 2 * x.nbytes + weight.nbytes


@pytest.mark.parametrize("order", [(1, 0), (1, 1), (0, 0)], ids=["swapped", "values", "keys"])
def test_the_tensors_of_a_slot_may_be_read_in_other_places(order):
    """A gradient belongs to the tensor that was read, whichever place of the slot it was put in."""

    def gradients(implementation):
        generator = torch.Generator().manual_seed(0)
        raw = [torch.randn(2, 3, 5, 4, generator=generator).requires_grad_() for _ in range(4)]
        weight = torch.randn(3, 6, generator=generator, requires_grad=True)
        with using(implementation):
            stored = [store(*raw[:2]), store(*raw[2:])]
            key, value = chosen_route([tuple(s[i] for i in order) for s in stored], weight)
            (key.square().sum() + value.sin().sum() + stored[0][0].sum()).backward()
        return [torch.zeros(()) if t.grad is None else t.grad for t in (*raw, weight)]

    for got, expected in zip(gradients("deferred"), gradients("naive"), strict=True):
        torch.testing.assert_close(got + torch.zeros(()), expected + torch.zeros(()))


@pytest.mark.parametrize("watch", ["retain_grad", "register_hook"])
def test_the_gradient_of_a_slot_may_be_watched(watch):
    def watched(implementation):
        generator = torch.Generator().manual_seed(0)
        raw = [torch.randn(2, 3, 5, 4, generator=generator).requires_grad_() for _ in range(4)]
        weights = [torch.randn(3, 3 * n, generator=generator) for n in (1, 2)]
        seen = []
        with using(implementation):
            slots = [store(*raw[:2]), store(*raw[2:])]
            total = sum(chosen_route(slots[: w.shape[1] // 3], w)[0].sin() for w in weights)
            # After the routes, as a hook on a layer's output comes.
            key = slots[0][0]
            if watch == "retain_grad":
                key.retain_grad()
            else:
                key.register_hook(lambda gradient: seen.append(gradient) or 2 * gradient)
            (total.sum() + key.sum()).backward()
        return key.grad if watch == "retain_grad" else seen[0], raw[0].grad

    for got, expected in zip(watched("deferred"), watched("naive"), strict=True):
        torch.testing.assert_close(got, expected)
