"""Sums over depth equal their equations, forward and every gradient, however backward is run."""

import gc

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from tiny import SLOW, TINY, live_tensors
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from layermem.models.registry import build
from layermem.ops import depth
from layermem.ops.depth import naive

LAYERS = 5


class Equations:
    """The equations alone, of states that are kept side by side."""

    @staticmethod
    def append(history, x, *_, **__):
        return *history, x

    @staticmethod
    def mix(history, weights, dtype):
        return naive.mix(torch.stack(history), weights, dtype), history

    @staticmethod
    def score(history, vectors):
        return naive.score(torch.stack(history), vectors), history


class Chain(nn.Module):
    """Layers that read sums of all states so far, by weights of the three kinds."""

    def __init__(self, layers=LAYERS, width=6, sums=3, apart=False, room=LAYERS):
        super().__init__()
        noise = torch.Generator().manual_seed(0)
        self.apart, self.room, self.checkpointed = apart, room, None

        def draw(*shape):
            return nn.Parameter(torch.randn(shape, generator=noise).double() / shape[-1] ** 0.5)

        steps = range(1, layers + 1)
        self.linears = nn.ParameterList(draw(width, width) for _ in steps)
        self.one = nn.ParameterList(draw(1, n) for n in steps)
        self.several = nn.ParameterList(draw(sums, n) for n in steps)
        self.channels = nn.ParameterList(draw(2, n, width) for n in steps)
        self.vectors = nn.ParameterList(draw(sums, width) for _ in steps)

    def layer(self, i, ops, x, *history):
        history = ops.append(history, x, self.room, apart=self.apart)
        scores, history = ops.score(history, self.vectors[i])
        weights = (scores.softmax(-1), self.one[i], self.channels[i], self.several[i])
        outs = [x]
        for of_kind in weights:
            sums, history = ops.mix(history, of_kind, x.dtype)
            outs += sums.unbind()
        y = sum((out * (k + 1)).sin() for k, out in enumerate(outs)) / len(outs)
        return y @ self.linears[i], *history

    def forward(self, x, ops=depth):
        state, outs = (x,), []
        for i in range(len(self.linears)):
            if self.checkpointed is None:
                state = self.layer(i, ops, *state)
            else:
                reentrant = self.checkpointed == "reentrant"
                state = checkpoint(self.layer, i, ops, *state, use_reentrant=reentrant)
            outs.append(state[0])
        return outs


def an_input(batch=2, tokens=7, width=6):
    noise = torch.Generator().manual_seed(1)
    return torch.randn(batch, tokens, width, generator=noise).double().requires_grad_()


def tensors_of(model, x):
    return [t for t in (x, *model.parameters()) if t.requires_grad]


def loss_of(outs, layer=-1):
    return outs[layer].square().sum()


def outcome(model, x, ops=depth, layer=-1, call=None):
    loss = loss_of((model if call is None else call)(x, ops), layer)
    return [loss.detach(), *torch.autograd.grad(loss, tensors_of(model, x), materialize_grads=True)]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# Room for all states, and for fewer than there are.
@pytest.fixture(params=[(5, False), (5, True), (2, False)], ids=["together", "apart", "no room"])
def model(request):
    room, apart = request.param
    return Chain(room=room, apart=apart)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("sums", [1, 3], ids=lambda n: f"{n} sums")
@pytest.mark.parametrize("sizes", [(1, 1, 3), (2, 7, 5), (3, 131, 2)], ids=str)
def test_a_chain_equals_its_equations(sizes, sums, apart):
    model, x = Chain(width=sizes[2], sums=sums, apart=apart), an_input(*sizes)
    assert_same(outcome(model, x), outcome(model, x, Equations))
    with torch.no_grad():
        assert_same(model(x), model(x, Equations))


# Of the compiler, which looks at the inputs of a single layer.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("how", "layer"),
    [
        *(("eager", 2), ("eager", 4), ("compiled", 2), ("first layers", 4), ("last layers", 2)),
        *(pytest.param(*case, marks=SLOW) for case in (("compiled", 4), ("first layers", 2))),
    ],
)
def test_a_loss_of_a_layer(how, layer):
    """Also where a compiler has some layers alone, one at a time."""
    torch.compiler.reset()
    model, x, call = Chain(), an_input(), None
    expected = outcome(model, x, Equations, layer)
    if how == "compiled":
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
    elif how != "eager":
        chosen = {"first layers": range(3), "last layers": range(3, 5)}[how]
        compiled = torch.compile(model.layer, fullgraph=True, backend="aot_eager")
        eager = model.layer
        model.layer = lambda i, *a: (compiled if i in chosen else eager)(i, *a)
    assert_same(outcome(model, x, layer=layer, call=call), expected)


def test_a_graph_without_gradients_equals_the_equations():
    torch.compiler.reset()
    model, x = Chain(), an_input()
    with torch.no_grad():
        assert_same(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))


@pytest.mark.parametrize("layer", [1, 4])
@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant"])
def test_checkpoints_of_each_layer(mode, layer, model):
    x = an_input()
    expected = outcome(model, x, Equations, layer)
    model.checkpointed = mode
    loss = loss_of(model(x), layer)
    loss.backward()
    grads = (torch.zeros_like(t) if t.grad is None else t.grad for t in tensors_of(model, x))
    assert_same([loss.detach(), *grads], expected)


@pytest.mark.parametrize("frozen", ["one", "several", "channels", "vectors", "linears", "x"])
def test_partial_inputs_needing_gradients(frozen, model):
    x = an_input()
    if frozen == "x":
        x = x.detach()
    else:
        getattr(model, frozen).requires_grad_(False)
    assert_same(outcome(model, x), outcome(model, x, Equations))


def test_repeated_partial_and_nested_passes(model):
    x = an_input()
    tensors, inner = tensors_of(model, x), []
    expected = outcome(model, x, Equations)[1:]
    outs = model(x)
    loss = loss_of(outs)
    for i in (2, 7, 14):
        (got,) = torch.autograd.grad(loss, [tensors[i]], retain_graph=True)
        assert_same([got], [expected[i]])

    def nested(_):
        if not inner:
            inner.append(None)
            inner[:] = torch.autograd.grad(loss, tensors, retain_graph=True)

    outs[2].register_hook(nested)
    for _ in range(2):
        assert_same(torch.autograd.grad(loss, tensors, retain_graph=True), expected)
    assert_same(inner, expected)


def test_derivatives_once_and_twice(model):
    model, x = Chain(3, 2, 2, model.apart, model.room), an_input(1, 2, 2)
    torch.autograd.gradgradcheck(lambda x: model(x)[-1], (x,))
    got = torch.autograd.grad(loss_of(model(x)), tensors_of(model, x), create_graph=True)
    assert_same([grad.detach() for grad in got], outcome(model, x, Equations)[1:])
    got = torch.func.grad(lambda x: loss_of(model(x)))(x.detach())
    assert_same([got], outcome(model, x, Equations)[1:2])


@pytest.mark.parametrize("how", ["copied", "poisoned"])
def test_memory_that_is_not_ours(how, model, monkeypatch):
    """Saved tensors that come back as copies; uninitialised memory is never read."""
    x = an_input(3, 131)
    expected = outcome(model, x, Equations)
    if how == "copied":
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            return assert_same(outcome(model, x), expected)
    for owner, make in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        real = getattr(owner, make)
        monkeypatch.setattr(owner, make, lambda *a, real=real, **k: real(*a, **k).fill_(torch.nan))
    assert_same(outcome(model, x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_computed_in_float32_and_rounded_once(dtype):
    model, x = Chain(), an_input(2, 130).detach()
    states, history = [(x * k).to(dtype) for k in range(1, 6)], ()
    for state in states:
        history = depth.append(history, state, 5)
    exact = torch.stack(states).double()
    for weights in (model.one[4], model.channels[4], torch.rand(2, 130, 3, 5)):
        for given in (weights.detach().float(), weights.detach().to(dtype)):
            got, history = depth.mix(history, given, dtype)
            wanted = naive.mix(exact, given.double(), torch.float64)
            assert got.dtype == dtype
            allowed = 1.01 * torch.finfo(dtype).eps / 2 if dtype == torch.bfloat16 else 1e-5
            assert ((got.double() - wanted).abs() <= allowed * wanted.abs() + 1e-4).all()


def test_states_of_two_dtypes_under_autocast():
    """The embedding is float32, outputs of layers are bfloat16."""
    wide, vectors = an_input().detach().float().requires_grad_(), torch.ones(1, 6)
    narrow = wide.detach().bfloat16().requires_grad_()
    history = depth.append(depth.append((), wide, 2), narrow, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores, history = depth.score(history, vectors)
        (out,), _ = depth.mix(history, scores, torch.float32)
    assert torch.equal(scores, depth.score(history, vectors)[0])
    out.sum().backward()
    assert (wide.grad.dtype, narrow.grad.dtype) == (torch.float32, torch.bfloat16)


def test_memory_is_the_states_and_no_more():
    """What autograd keeps of all mixtures is the states and the weights, once."""
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x, history, outs = an_input(2, 300), (), []
    weights = [torch.randn(4, n).double().requires_grad_() for n in range(1, 7)]
    vectors = [torch.randn(1, 6).double().requires_grad_() for _ in weights]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        for weight, vector in zip(weights, vectors, strict=True):
            history = depth.append(history, x.detach().clone().requires_grad_(), 6)
            mixed, history = depth.mix(history, weight, x.dtype)
            scores, history = depth.score(history, vector)
            outs += [mixed, scores]
    assert sum(kept.values()) == 6 * x.nbytes + sum(t.nbytes for t in (*weights, *vectors))


def test_a_backward_leaves_nothing(model):
    x = an_input(2, 300)

    def count():
        gc.collect()
        storages = (tensor.untyped_storage() for tensor in live_tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    loss = loss_of(model(x))
    torch.autograd.grad(loss, model.linears[0], retain_graph=True)
    forward = count()
    torch.autograd.grad(loss, tensors_of(model, x), retain_graph=True)
    assert count() <= forward


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_next_state_is_written_where_there_is_room(batch, apart):
    x = an_input(batch)
    (first,) = depth.append((), x, 2, apart=apart)
    (_, read) = depth.score((first,), torch.ones(1, 6).double())
    (second,) = depth.append(read, x * 2, 2, apart=apart)
    (third,) = depth.append((second,), x * 3, 2, apart=apart)
    (moved,) = depth.append((first.clone(),), x * 4, 2, apart=apart)
    assert first.data_ptr() == second.data_ptr()
    assert len({t.untyped_storage().data_ptr() for t in (first, third, moved)}) == 3
    assert torch.equal(third, torch.stack([x, x * 2, x * 3]))
    assert torch.equal(moved, torch.stack([x, x * 4]))


def test_tensors_of_other_classes_are_mixed():
    """As distributed tensors: their memory has no address."""
    noise = torch.Generator().manual_seed(3)
    states = [torch.randn(2, 3, 4, generator=noise) for _ in range(3)]
    weights = torch.randn(2, 3, generator=noise)
    both, history = [TwoTensor(x, x.clone()).requires_grad_() for x in states], ()
    for x in both:
        history = depth.append(history, x, 3)
    mixed, _ = depth.mix(history, TwoTensor(weights, weights.clone()), torch.float32)
    torch.testing.assert_close(mixed.a, naive.mix(torch.stack(states), weights, torch.float32))
    for j, grad in enumerate(torch.autograd.grad(mixed.sum(), both)):
        torch.testing.assert_close(grad.a, weights[:, j].sum().expand_as(grad.a))


def count_calls(model, *inputs, **kwargs):
    """Return the calls of a compiled forward and backward, and the numbers that are saved."""
    counts = []

    def compiler(graph, _):
        nodes = list(graph.graph.nodes)
        # Views are no calls of a kernel.
        calls = (node for node in nodes if node.op == "call_function")
        counts.append(sum(node.target is not torch.ops.aten.view.default for node in calls))
        if len(counts) == 1:
            saved = nodes[-1].args[0]
            counts.append(sum(getattr(node.meta["val"], "numel", int)() for node in saved))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=min_cut_rematerialization_partition,
    )
    out = torch.compile(model, fullgraph=True, backend=backend)(*inputs, **kwargs)
    (out[-1] if isinstance(out, list) else out.logits).sum().backward()
    forward, saved, backward = counts
    return forward, backward, saved


def test_compiled_calls_of_a_layer_do_not_grow():
    """The graph is linear in depth."""
    counts = {n: count_calls(Chain(n, sums=2), an_input(2, 50)) for n in (4, 6, 8)}
    for at in (0, 1):
        assert counts[8][at] - counts[6][at] == counts[6][at] - counts[4][at]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("mudd", {}),
        ("denseformer", {}),
        ("lime_hidden", {"form": "dynamic"}),
        ("dca", {}),
        ("attention_residuals", {}),
        ("attention_residuals", {"residual_form": "delta"}),
    ],
    ids=str,
)
def test_a_compiled_model_is_linear_in_depth(name, fields, ids):
    counts = []
    for layers in (3, 4, 5):
        model = build(name, **{**TINY, "num_hidden_layers": layers}, **fields).train()
        counts.append(count_calls(model, ids, use_cache=False)[:2])
    for few, some, many in zip(*counts, strict=True):
        assert many - some == some - few


@pytest.mark.parametrize(
    "name", ["mudd", "denseformer", "lime_hidden", "dca", "attention_residuals"]
)
def test_a_history_has_one_reader(name, ids):
    """With two, autograd would add gradients as large as all states."""
    readers, seen = {}, set()
    loss = build(name, **TINY)(ids, labels=ids, use_cache=False).loss
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        for below, index in node.next_functions:
            # X is the one output of `_Append`, and the second of `_Read`.
            if type(below).__name__ in ("_AppendBackward", "_ReadBackward"):
                readers.setdefault((below, index), []).append(node)
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    of_states = [
        nodes
        for (below, index), nodes in readers.items()
        if type(below).__name__ == "_AppendBackward" or index == 1
    ]
    assert len(of_states) > TINY["num_hidden_layers"]
    assert all(len(nodes) == 1 for nodes in of_states)
