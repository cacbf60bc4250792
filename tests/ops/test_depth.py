"""Sums over depth equal their equations, forward and every gradient, however backward is run."""

import gc

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from tiny import live_tensors
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from layermem.ops import depth
from layermem.ops.depth import naive, products

SUMS = 3


class Unstored:
    """The equations alone, differentiated by autograd."""

    mix = staticmethod(naive.mix)
    score, inverse_rms = staticmethod(naive.score), staticmethod(naive.inverse_rms)
    store = staticmethod(lambda x, *_, apart=False: x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_many_sums_as_one_tensor_equal_their_equation(dtype):
    noise = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 7, 6, generator=noise).to(dtype).requires_grad_() for _ in range(4)]
    weights = torch.randn(5, 4, generator=noise).requires_grad_()
    states[1].requires_grad_(False)

    def outcome(ops, weights, states, **grad):
        out = ops.mix(states, weights)
        wanted = [weights, *(x for x in states if x.requires_grad)]
        factor = torch.linspace(-1, 1, out.numel()).to(dtype).view_as(out)
        return [out, *torch.autograd.grad((out * factor).sum(), wanted, **grad)]

    # The equation in float64, rounded once.
    leaves = [x.detach().double().requires_grad_(x.requires_grad) for x in states]
    exact = outcome(naive, weights.detach().double().requires_grad_(), leaves)
    dtypes = [dtype, torch.float32, *[dtype] * 3]
    expected = [x.to(to) for x, to in zip(exact, dtypes, strict=True)]
    assert_all_close(outcome(depth, weights, states), expected)
    assert_all_close(outcome(depth, weights, states, create_graph=True)[:1], expected[:1])
    with torch.no_grad():
        assert_all_close([depth.mix(states, weights)], expected[:1])


def assert_all_close(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)


def test_second_derivatives_of_many_sums():
    states = [torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    weights = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda w, *xs: depth.mix(xs, w), (weights, *states))
    torch.autograd.gradgradcheck(lambda w, *xs: depth.mix(xs, w), (weights, *states))


class Chain(nn.Module):
    """Layers that read mixtures of all states so far, by weights of the three kinds."""

    # Room in the buffer of the states: for none, for all, for the first four; and its order.
    room, apart = 1, False

    def __init__(self, layers=5, width=6, sums=SUMS):
        super().__init__()
        noise = torch.Generator().manual_seed(0)

        def draw(*shape):
            return nn.Parameter(torch.randn(shape, generator=noise).double())

        steps = range(1, layers + 1)
        self.linears = nn.ParameterList(draw(width, width) / width**0.5 for _ in steps)
        self.constant = nn.ParameterList(draw(1, n) for n in steps)
        self.several = nn.ParameterList(draw(sums, n) for n in steps)
        self.channels = nn.ParameterList(draw(2, n, width) for n in steps)
        self.vectors = nn.ParameterList(draw(2, width) for _ in steps)
        self.to_weights = nn.ParameterList(draw(sums * n, width) / 4 for n in steps)

    def forward(self, x, ops=depth, all_layers=False):
        states, outs = [ops.store(x, (), self.room, apart=self.apart)], []
        for i, linear in enumerate(self.linears):
            n = len(states)
            scores = ops.score(states, self.vectors[i])
            scores = (
                scores * torch.stack([ops.inverse_rms(x, 1e-3) for x in states], dim=-1)[:, :, None]
            )
            (one,) = ops.mix(states, scores.softmax(-1).sum(2, keepdim=True))
            per_token = (states[-1] @ self.to_weights[i].T).unflatten(-1, (-1, n)).tanh()
            (constant,) = ops.mix(states, self.constant[i])
            parts = [
                one,
                constant,
                *ops.mix(states, per_token),
                *ops.mix(states, self.several[i]),
                *ops.mix(states, self.channels[i]),
            ]
            x = sum(part * (k + 1) for k, part in enumerate(parts)).tanh() @ linear + states[-1]
            states.append(ops.store(x, states, self.room, apart=self.apart))
            outs.append(x)
        return outs if all_layers else x


@pytest.fixture(
    params=[(1, False), (6, False), (4, False), (6, True), (4, True)],
    ids=["no buffer", "all together", "four together", "all apart", "four apart"],
)
def buffer(request, monkeypatch):
    room, apart = request.param
    monkeypatch.setattr(Chain, "room", room)
    monkeypatch.setattr(Chain, "apart", apart)


def an_input(batch=2, tokens=7, width=6):
    noise = torch.Generator().manual_seed(1)
    return torch.randn(batch, tokens, width, generator=noise).double().requires_grad_()


def tensors_of(model, x):
    return [t for t in (x, *model.parameters()) if t.requires_grad]


def outcome(model, x, ops=depth):
    y = model(x, ops)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), tensors_of(model, x))]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("few", [True, False], ids=["few tokens", "many tokens"])
@pytest.mark.parametrize("sums", [1, 3], ids=lambda n: f"{n} sums")
@pytest.mark.parametrize(
    ("batch", "tokens", "width"), [(1, 1, 3), (2, 7, 5), (3, 131, 2)], ids=lambda n: str(n)
)
def test_a_chain_equals_its_equations(batch, tokens, width, sums, few, monkeypatch):
    monkeypatch.setattr(products, "_FEW", 10**6 if few else 0)
    model, x = Chain(width=width, sums=sums), an_input(batch, tokens, width)
    assert_same(outcome(model, x), outcome(model, x, Unstored))
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(x, Unstored))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_computed_in_float32_and_rounded_once(dtype):
    model, x = Chain(), an_input(2, 130).detach()
    states = [(x * k).to(dtype) for k in range(1, 6)]
    for weights in (model.constant[4], model.several[4], model.channels[4]):
        for weights_dtype in (torch.float32, dtype):
            given = weights.detach().to(weights_dtype)
            exact = naive.mix([s.double() for s in states], given.double())
            for got, wanted in zip(depth.mix(states, given), exact, strict=True):
                assert got.dtype == dtype
                allowed = 1.01 * torch.finfo(dtype).eps / 2 if dtype == torch.bfloat16 else 1e-5
                assert ((got.double() - wanted).abs() <= allowed * wanted.abs() + 1e-4).all()


def test_states_of_two_dtypes_have_gradients_of_their_own():
    """As under autocast: the embedding is float32, outputs of layers are bfloat16."""
    x = an_input().detach().float()
    wide, narrow = x.requires_grad_(), x.detach().bfloat16().requires_grad_()
    states = [depth.store(wide), depth.store(narrow)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (out,) = depth.mix(states, depth.score(states, torch.ones(1, 6)))
    assert out.dtype == torch.float32
    out.sum().backward()
    assert (wide.grad.dtype, narrow.grad.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize(
    "frozen", ["constant", "several", "channels", "vectors", "to_weights", "linears", "x"]
)
def test_partial_inputs_needing_gradients(frozen):
    model, x = Chain(), an_input()
    if frozen == "x":
        x = x.detach()
    else:
        getattr(model, frozen).requires_grad_(False)
    assert_same(outcome(model, x), outcome(model, x, Unstored))


@pytest.mark.usefixtures("buffer")
def test_repeated_and_partial_passes():
    model, x = Chain(), an_input()
    expected = outcome(model, x, Unstored)[1:]
    loss = model(x).square().sum()
    for some in (model.vectors[3], model.linears[2], model.constant[4]):
        (got,) = torch.autograd.grad(loss, [some], retain_graph=True)
        index = [t is some for t in tensors_of(model, x)].index(True)
        torch.testing.assert_close(got, expected[index])
    for _ in range(2):
        got = torch.autograd.grad(loss, tensors_of(model, x), retain_graph=True)
        assert_same(got, expected)


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("layer", range(5))
def test_a_loss_that_does_not_reach_the_last_layers(layer):
    model, x = Chain(), an_input()
    grads = []
    for ops in (depth, Unstored):
        outs = model(x, ops, all_layers=True)
        torch.autograd.grad(outs[-1].sum(), tensors_of(model, x), retain_graph=True)
        loss = outs[layer].square().sum()
        grads.append(torch.autograd.grad(loss, tensors_of(model, x), allow_unused=True))
    for got, expected in zip(*grads, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("buffer")
def test_a_backward_inside_a_backward():
    """A pass that a hook starts over the same graph does not mix with the one it interrupts."""
    model, x = Chain(), an_input()
    tensors, inner = tensors_of(model, x), []

    def losses(ops):
        outs = model(x, ops, all_layers=True)
        return outs, outs[-1].square().sum(), outs[-1].sin().sum()

    def nested(_):
        if not inner:
            inner.append(None)
            inner[:] = torch.autograd.grad(inner_loss, tensors, retain_graph=True)

    expected = [
        torch.autograd.grad(loss, tensors, retain_graph=True) for loss in losses(Unstored)[1:]
    ]
    outs, loss, inner_loss = losses(depth)
    outs[2].register_hook(nested)
    assert_same(torch.autograd.grad(loss, tensors, retain_graph=True), expected[0])
    assert_same(inner, expected[1])


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_a_watched_state_sees_its_whole_gradient(apart):
    grads = []
    for ops in (depth, Unstored):
        x, seen = an_input(), []
        state = ops.store(x * 2, (), 2, apart=apart)
        state.retain_grad()
        state.register_hook(seen.append)
        states = [state, ops.store(x * 3, [state], 2, apart=apart)]
        out = ops.mix(states, torch.ones(3, 2).double()).sum(0)
        out = out + ops.mix(states, torch.ones(1, 2).double())[0]
        (out * ops.score([state], torch.ones(1, 6).double())[:, :, 0]).sum().backward()
        grads.append([state.grad, *seen, x.grad])
    assert_same(*grads)


@pytest.mark.usefixtures("buffer")
def test_derivatives_once_and_twice():
    model, x = Chain(3, 2, 2), an_input(1, 2, 2)
    torch.autograd.gradcheck(model, (x,))
    torch.autograd.gradgradcheck(model, (x,))
    got = torch.autograd.grad(model(x).square().sum(), tensors_of(model, x), create_graph=True)
    assert_same([gradient.detach() for gradient in got], outcome(model, x, Unstored)[1:])


@pytest.mark.usefixtures("buffer")
def test_transforms_of_functions():
    model, x = Chain(), an_input()
    got = torch.func.grad(lambda x: model(x).square().sum())(x.detach())
    torch.testing.assert_close(got, outcome(model, x, Unstored)[1])


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_a_checkpoint_around_all_layers(reentrant):
    model, x = Chain(), an_input()
    y = checkpoint(model, x, use_reentrant=reentrant)
    y.square().sum().backward()
    got = [y.detach(), *(t.grad for t in tensors_of(model, x))]
    assert_same(got, outcome(model, x, Unstored))


@pytest.mark.usefixtures("buffer")
def test_saved_tensors_that_come_back_as_copies():
    model, x = Chain(), an_input()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        got = outcome(model, x)
    assert_same(got, outcome(model, x, Unstored))


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("tokens", [7, 131])
def test_uninitialised_memory_is_never_read(tokens, monkeypatch):
    model, x = Chain(), an_input(3, tokens)
    monkeypatch.setattr(products, "_FEW", 200)
    for owner, make in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        real = getattr(owner, make)
        monkeypatch.setattr(owner, make, lambda *a, real=real, **k: real(*a, **k).fill_(torch.nan))
    assert all(t.isfinite().all() for t in outcome(model, x))


def test_memory_is_the_states_and_no_more():
    """What autograd keeps of all mixtures is the states and the weights, once."""
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = an_input(2, 300)
    weights = [torch.randn(4, n).double().requires_grad_() for n in range(1, 7)]
    vectors = [torch.randn(1, 6).double().requires_grad_() for _ in weights]
    states, outs = [depth.store(x)], []
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        for weight, vector in zip(weights, vectors, strict=True):
            outs += [depth.mix(states, weight), depth.score(states, vector)]
            states.append(depth.store(x.detach().clone().requires_grad_()))
    constant = sum(t.nbytes for t in (*weights, *vectors))
    assert sum(kept.values()) == 6 * x.nbytes + constant


@pytest.mark.usefixtures("buffer")
def test_a_backward_leaves_nothing():
    model, x = Chain(), an_input(2, 300)

    def count():
        gc.collect()
        storages = (tensor.untyped_storage() for tensor in live_tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    loss = model(x).square().sum()
    torch.autograd.grad(loss, model.linears[0], retain_graph=True)
    forward = count()
    torch.autograd.grad(loss, model.linears[3], retain_graph=True)
    torch.autograd.grad(loss, tensors_of(model, x), retain_graph=True)
    assert count() <= forward


def test_states_that_follow_each_other_share_memory():
    x = an_input()
    states = [depth.store(x, (), 3)]
    for k in (2, 3):
        states.append(depth.store(x * k, states, 3))
    matrix = products._shared_memory(states, x.dtype)
    assert matrix.data_ptr() == states[0].data_ptr()
    assert torch.equal(matrix, torch.stack([s.flatten(0, 1) for s in states], dim=1))
    for others in (states[::-1], states[::2], [states[0], states[1].clone()]):
        assert products._shared_memory(others, x.dtype) is None
    assert products._shared_memory(states, torch.float32) is None


def test_states_apart_lie_one_after_the_other():
    x = an_input()
    states = [depth.store(x, (), 4, apart=True)]
    for k in (2, 3, 4):
        states.append(depth.store(x * k, states, 4, apart=True))
    assert all(state.is_contiguous() for state in states)
    for some in (states, states[1:3]):
        pieces = products._pieces(some, x.dtype)
        assert pieces.data_ptr() == some[0].data_ptr()
        assert torch.equal(pieces, torch.stack(some).flatten(1))
    for others in (states[::-1], states[::2], [states[0], states[1].clone()]):
        pieces = products._pieces(others, x.dtype)
        assert pieces.data_ptr() != others[0].data_ptr()
        assert torch.equal(pieces, torch.stack(others).flatten(1))
    assert products._pieces(states, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_gradients_of_states_that_share_memory_are_added_to_it(apart, monkeypatch):
    x, weights = an_input(), torch.ones(3, 2).double().requires_grad_()
    states = [depth.store(x.sin(), (), 2, apart=apart)]
    states.append(depth.store(states[0].sin(), states, 2, apart=apart))
    mixed = depth.mix(states, weights)
    calls, real = [], depth._Buffer.gradients
    monkeypatch.setattr(depth._Buffer, "gradients", lambda *a: calls.append(a) or real(*a))
    monkeypatch.delattr(products, "mix_gradients")
    mixed.sum().backward()
    assert len(calls) == 1


def test_states_in_half_precision_share_no_memory():
    """Products are in float32: none could read them there."""
    x = an_input().detach().bfloat16().requires_grad_()
    for apart in (False, True):
        first = depth.store(x, (), 2, apart=apart)
        second = depth.store(x * 2, [first], 2, apart=apart)
        assert first.untyped_storage().nbytes() == x.nbytes
        weights = torch.ones(3, 2, requires_grad=True)
        mixed = depth.mix([first, second], weights)
        (got,) = torch.autograd.grad(mixed.sum(), x)
        assert mixed.dtype == got.dtype == torch.bfloat16 and torch.equal(
            got, torch.full_like(x, 9)
        )


@pytest.mark.parametrize("needs_grad", [False, True])
def test_tensors_of_other_classes_are_mixed(needs_grad):
    """As distributed tensors: their memory has no address."""
    noise = torch.Generator().manual_seed(3)
    states = [torch.randn(2, 3, 4, generator=noise) for _ in range(3)]
    weights = torch.randn(2, 3, generator=noise)
    both = [TwoTensor(x, x.clone()).requires_grad_(needs_grad) for x in states]
    stored = [depth.store(x, both[:j], 3, apart=True) for j, x in enumerate(both)]
    mixed = depth.mix(stored, TwoTensor(weights, weights.clone()))
    torch.testing.assert_close(mixed.a, naive.mix(states, weights))
    if needs_grad:
        grads = torch.autograd.grad(mixed.sum(), both)
        for j, grad in enumerate(grads):
            torch.testing.assert_close(grad.a, weights[:, j].sum().expand_as(grad.a))


@pytest.mark.parametrize("kind", ["constant", "per token", "apart"])
def test_sums_of_some_of_the_states_of_a_buffer(kind):
    """Rows that do not begin with the first, some of them twice, and those of no buffer."""
    x, per_token, apart = an_input(), kind == "per token", kind == "apart"
    shape = (*x.shape[:2], 2, 2) if per_token else (2, 2)
    noise = torch.Generator().manual_seed(2)
    weights = torch.randn(4, *shape, generator=noise).double().requires_grad_()

    def outs(ops):
        states = [ops.store(x, (), 4, apart=apart)]
        for _ in range(3):
            states.append(ops.store(states[-1].sin() + x, states, 4, apart=apart))
        pairs = [states[:2], states[2:], [states[2], states[0]], [states[3], x]]
        return [y for w, pair in zip(weights, pairs, strict=True) for y in ops.mix(pair, w)]

    got, expected = (
        torch.autograd.grad(sum((i + 1) * y.square().sum() for i, y in enumerate(outs(ops))), both)
        for ops, both in ((depth, (x, weights)), (Unstored, (x, weights)))
    )
    assert_same(got, expected)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_many_gradients_at_once(apart):
    """As in ``jacobian(vectorize=True)``."""
    x = an_input()
    states = [depth.store(x, (), 2, apart=apart)]
    states.append(depth.store(states[0].sin(), states, 2, apart=apart))
    y = sum((i + 1) * out for i, out in enumerate(depth.mix(states, x.new_ones(3, 2))))
    many = torch.eye(6, dtype=y.dtype)[:, None, None].expand(6, *y.shape)
    (together,) = torch.autograd.grad(y, x, many, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in many]
    torch.testing.assert_close(together, torch.stack(one_by_one))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_sequence_at_all(device):
    x = torch.empty(0, 3, 4, device=device, requires_grad=True)
    states = [depth.store(x, (), 2)]
    states.append(depth.store(states[0].sin(), states, 2))
    weights = torch.ones(2, 2, device=device, requires_grad=True)
    total = depth.mix(states, weights).sum()
    for grad, of in zip(
        torch.autograd.grad(total, (x, weights)),
        (x, weights),
        strict=True,
    ):
        assert grad.shape == of.shape


def test_a_place_in_the_buffer_is_taken_once():
    """Two ways to go on after the same states, as a layer that runs twice has, do not mix."""
    x = an_input()
    first = depth.store(x, (), 3)
    one, other = depth.store(x * 2, [first], 3), depth.store(x * 3, [first], 3)
    fourth = depth.store(x * 4, [first, one, other], 3)
    beyond = depth.store(x * 5, [first, one, other, fourth], 3)
    for k, state in enumerate((first, one, other, fourth, beyond), start=1):
        assert torch.equal(state, x * k)
    assert products._shared_memory([first, one], x.dtype) is not None
    assert products._shared_memory([first, other], x.dtype) is None


@pytest.mark.parametrize("change", [lambda x: x[:, 1:], lambda x: x.float(), lambda x: x[..., :4]])
def test_a_state_of_another_kind_is_stored_by_itself(change):
    x = an_input()
    first = depth.store(x, (), 2)
    assert torch.equal(depth.store(change(x), [first], 2), change(x))


def test_a_stored_state_cannot_be_changed_in_place():
    x = an_input()
    first = depth.store(x, (), 2)
    second = depth.store(x * 2, [first], 2)
    (out,) = depth.mix([first, second], torch.ones(1, 2).double())
    with torch.no_grad():
        second.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Newest(nn.Module):
    """Layers that read what ``mix_newest`` returns; the first reads one state."""

    def __init__(self, layers):
        super().__init__()
        noise = torch.Generator().manual_seed(0)
        self.layers = range(layers)
        self.to_weights = nn.ParameterList(
            torch.randn(2 * n, 6, generator=noise).double() / 4 for n in range(2, layers + 1)
        )

    def layer(self, i, x, *before, ops=depth):
        weights = (x @ self.to_weights[i - 1].T).unflatten(-1, (2, i + 1)).tanh() if i else None
        if ops is depth:
            sums, new = depth.mix_newest(x, before, weights, len(self.layers))
        else:
            sums, new = x[None] if weights is None else naive.mix([*before, x], weights), (x,)
        return sums[-1] + sums[0].tanh(), *before, *new

    def forward(self, x, ops=depth):
        state, outs = (x,), []
        for i in self.layers:
            state = self.layer(i, *state, ops=ops)
            outs.append(state[0])
        return outs


# Of the compiler, which looks at the inputs of a single layer.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("loss_of", [2, 4], ids=["a middle layer", "the last layer"])
@pytest.mark.parametrize("how", ["eager", "compiled", "layers", "some layers"])
def test_the_newest_state_is_mixed_with_all_before_it(how, loss_of):
    """Also where a compiler has one layer at a time, or the first layers alone."""
    torch.compiler.reset()
    model, x = Newest(5), an_input()
    expected = outcome_of(model(x, naive)[loss_of], model, x)
    if how == "compiled":
        outs = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    else:
        if how != "eager":
            compiled = torch.compile(model.layer, fullgraph=True, backend="aot_eager")
            eager, last = model.layer, 5 if how == "layers" else 2
            model.layer = lambda i, *a, **k: (compiled if i <= last else eager)(i, *a, **k)
        outs = model(x)
    assert_same(outcome_of(outs[loss_of], model, x), expected)


def test_a_graph_without_gradients_equals_the_equations():
    torch.compiler.reset()
    model, x = Chain(), an_input()
    with torch.no_grad():
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(got, model(x, Unstored))


def outcome_of(y, model, x):
    tensors, loss = tensors_of(model, x), y.square().sum()
    return [y.detach(), *torch.autograd.grad(loss, tensors, materialize_grads=True)]


def test_compiled_calls_of_a_layer_do_not_grow():
    """The graph is linear in depth, and what is saved of a layer is its state and weights."""
    counts = {}

    def compiler(depth, kind):
        def count(graph, _):
            nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
            saved = next(node for node in graph.graph.nodes if node.op == "output").args[0]
            counts[depth, kind] = len(nodes)
            if kind == "forward":
                counts[depth, "saved"] = sum(node.meta["val"].numel() for node in saved)
            return make_boxed_func(graph.forward)

        return count

    for layers in (4, 8, 16):
        torch.compiler.reset()
        backend = aot_autograd(
            fw_compiler=compiler(layers, "forward"),
            bw_compiler=compiler(layers, "backward"),
            partition_fn=min_cut_rematerialization_partition,
        )
        model, x = Newest(layers), an_input()
        torch.compile(model, fullgraph=True, backend=backend)(x)[-1].sum().backward()
    for kind in ("forward", "backward"):
        grown = [counts[layers, kind] for layers in (4, 8, 16)]
        assert grown[2] - grown[1] == 2 * (grown[1] - grown[0])
    # Beside weights over depth and their vectors.
    weights = [sum(2 * n * (2 * 14 + 6) for n in range(2, layers + 1)) for layers in (8, 16)]
    assert counts[16, "saved"] - counts[8, "saved"] - 2 * (weights[1] - weights[0]) <= 8 * 6 * 84


def test_scores_are_wide_under_autocast():
    states, vectors = [torch.randn(2, 3, 8) for _ in range(2)], torch.randn(2, 8)
    expected = naive.score(states, vectors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = naive.score(states, vectors)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)
