"""Routing in groups, on a buffer that layers share, against the naive one: every circumstance."""

import gc

import pytest
import torch
from tiny import live_tensors
from torch import nn
from torch.utils.checkpoint import checkpoint

from layermem.ops import route as room
from layermem.ops.route import SlotBuffer, begin_buffer, naive, using
from layermem.ops.route.grouped_matrices import MatrixBuffer
from layermem.ops.route.small import SmallBuffer
from layermem.ops.route.traced import TracedBuffer

HEADS = 3
# Without gradients, tokens enough for groups to be used.
MANY = 600


class Depth(nn.Module):
    """A chain as a model has it: every layer keeps a slot, and all but some route the slots so far.

    ``group_size`` None: by ``naive.route``.
    """

    buffer = MatrixBuffer

    def __init__(self, depth=7, width=5, heads=HEADS, without=(0,)):
        super().__init__()
        torch.manual_seed(0)
        self.width, self.heads = width, heads
        inner = heads * width
        self.keys = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))
        self.values = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))
        self.weights = nn.ParameterDict(
            {
                str(i): torch.randn(heads, heads * (i + 1)) / (i + 1)
                for i in range(depth)
                if i not in without
            }
        )
        # Float64 unless a test says otherwise: two orders of one sum differ, a mistake more.
        self.double()

    def forward(self, x, group_size=None, all_layers=False):
        weights = [self.weights.get(str(i)) for i in range(len(self.keys))]
        slots = [] if group_size is None else self.buffer(weights, group_size)
        outputs = []
        for i, weight in enumerate(weights):
            key, value = (
                p(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
                for p in (self.keys[i], self.values[i])
            )
            slots.append(key, value) if group_size else slots.append((key, value))
            key, value = slots[-1]
            if weight is not None:
                key, value = slots.route(weight) if group_size else naive.route(slots, weight)
            # Autograd saves both of them, as attention does.
            x = x + torch.tanh(key * (2 + value)).transpose(1, 2).flatten(2)
            outputs.append(x)
        return outputs if all_layers else x


def an_input(batch=2, tokens=7, width=5, heads=HEADS, dtype=torch.float64):
    x = torch.randn(batch, tokens, heads * width, generator=torch.Generator().manual_seed(3))
    return x.to(dtype).requires_grad_()


def tensors_of(model, x):
    return [t for t in (x, *model.parameters()) if t.requires_grad]


def outcome(model, x, group_size):
    """Return output and all gradients."""
    y = model(x, group_size)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), tensors_of(model, x))]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("group_size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("depth", "heads", "batch", "tokens", "width"),
    [(1, 2, 1, 3, 2), (7, 3, 2, 7, 5), (8, 1, 3, 13, 2), (13, 4, 2, MANY, 6)],
    ids=lambda n: str(n),
)
def test_a_chain_equals_naive(depth, heads, batch, tokens, width, group_size, dtype):
    model = Depth(depth, width, heads).to(dtype)
    x = an_input(batch, tokens, width, heads, dtype)
    got, expected = outcome(model, x, group_size), outcome(model, x, None)
    if dtype == torch.float64:
        assert_same(got, expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == dtype
        assert (a - b).norm() <= 2e-6 * b.norm()


def test_more_columns_than_a_tile():
    model, x = Depth(5), an_input(3, 700)
    assert_same(outcome(model, x, 2), outcome(model, x, None))


@pytest.mark.parametrize("without", [(), (0, 3), (0, 1, 2), (0, 4, 5), tuple(range(7))], ids=str)
def test_layers_without_a_router(without):
    model, x = Depth(without=without), an_input()
    assert_same(outcome(model, x, 3), outcome(model, x, None))


@pytest.mark.parametrize("frozen", ["weights", "keys", "values", "x", "first", "everything but 3"])
def test_partial_inputs_needing_gradients(frozen):
    model, x = Depth(), an_input()
    if frozen == "x":
        x = x.detach()
    elif frozen == "first":
        for i in range(3):
            model.keys[i].requires_grad_(False)
            model.values[i].requires_grad_(False)
        x = x.detach()
    elif frozen == "everything but 3":
        x = x.detach()
        model.requires_grad_(False)
        model.weights["3"].requires_grad_(True)
    else:
        getattr(model, frozen).requires_grad_(False)
    assert_same(outcome(model, x, 3), outcome(model, x, None))


def test_repeated_backward():
    model, x = Depth(), an_input()
    loss = model(x, 3).square().sum()
    first = torch.autograd.grad(loss, tensors_of(model, x), retain_graph=True)
    assert_same(torch.autograd.grad(loss, tensors_of(model, x)), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, tensors_of(model, x))


def test_a_pass_that_ends_early_leaves_nothing_for_the_next():
    model, x = Depth(), an_input()
    expected = outcome(model, x, None)[1:]
    loss = model(x, 3).square().sum()
    for some in (model.weights["6"], model.keys[4].weight, model.weights["2"]):
        (got,) = torch.autograd.grad(loss, [some], retain_graph=True)
        index = [t is some for t in tensors_of(model, x)].index(True)
        torch.testing.assert_close(got, expected[index])
    assert_same(torch.autograd.grad(loss, tensors_of(model, x)), expected)


@pytest.mark.parametrize("layer", range(7))
def test_a_loss_that_does_not_reach_the_last_layers(layer):
    """Rows of a group that the backward has not come by count as zero, also after a full pass."""
    model, x = Depth(), an_input()
    tensors = tensors_of(model, x)
    grads = []
    for group_size in (3, None):
        outputs = model(x, group_size, all_layers=True)
        torch.autograd.grad(outputs[-1].sum(), tensors, retain_graph=True)
        loss = outputs[layer].square().sum()
        grads.append(torch.autograd.grad(loss, tensors, allow_unused=True))
    for got, expected in zip(*grads, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected)


def test_two_losses_of_one_forward():
    model, x = Depth(), an_input()
    tensors = tensors_of(model, x)
    y = model(x, 3).square()
    parts = [y[:, :3].sum(), y[:, 3:].sum()]
    got = [torch.autograd.grad(part, tensors, retain_graph=True) for part in parts]
    assert_same([a + b for a, b in zip(*got, strict=True)], outcome(model, x, None)[1:])


def test_a_backward_inside_a_backward():
    """A pass that a hook starts over the same graph does not mix with the one it interrupts."""
    model, x = Depth(), an_input()
    tensors, started, inner = tensors_of(model, x), [], []

    def losses(group_size):
        outputs = model(x, group_size, all_layers=True)
        return outputs, outputs[-1].square().sum(), outputs[-1].sin().sum()

    def nested(_):
        if not started:
            started.append(True)
            inner.extend(torch.autograd.grad(inner_loss, tensors, retain_graph=True))

    expected = [torch.autograd.grad(loss, tensors, retain_graph=True) for loss in losses(None)[1:]]
    outputs, loss, inner_loss = losses(3)
    outputs[4].register_hook(nested)
    assert_same(torch.autograd.grad(loss, tensors, retain_graph=True), expected[0])
    assert_same(inner, expected[1])


def test_gradients_that_no_slot_of_their_group_waits_for():
    """A pass reaches the first layer of a group whose slots need no gradient, and not the last."""
    grads = []
    for with_buffer in (True, False):
        x = an_input(2, MANY)
        weights = [torch.ones(HEADS, HEADS * (i + 1), dtype=x.dtype) / (i + 1) for i in range(6)]
        weights = [weight.requires_grad_() for weight in weights]
        buffer, slots, outs = MatrixBuffer(weights, 3), [], []
        for i, weight in enumerate(weights):
            key = (i * x if i < 3 else x.detach()).unflatten(-1, (HEADS, 5)).transpose(1, 2)
            slots.append(buffer.append(key, key) if with_buffer else (key, key))
            outs.append(room.route(buffer if with_buffer else slots, weight)[0].sin())
        # What the rows of later layers will lie in.
        dirt = [torch.full((3 * HEADS, x.numel() // HEADS), torch.nan).double() for _ in range(8)]
        del dirt
        grads.append(torch.autograd.grad(outs[3].sum(), [x, weights[3]]))
    assert_same(*grads)


def test_derivatives_once_and_twice():
    model, x = Depth(5, 2), an_input(1, 2, 2)
    weight = model.weights["4"]

    def run(x, weight):
        return torch.func.functional_call(model, {"weights.4": weight}, (x, 2))

    torch.autograd.gradcheck(run, (x, weight))
    torch.autograd.gradgradcheck(run, (x, weight))


def test_gradients_with_a_graph_equal_those_without():
    model, x = Depth(), an_input()
    wanted = tensors_of(model, x)
    got = torch.autograd.grad(model(x, 3).square().sum(), wanted, create_graph=True)
    assert_same([gradient.detach() for gradient in got], outcome(model, x, None)[1:])


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_a_checkpoint_around_all_layers(reentrant):
    model, x = Depth(), an_input()
    y = checkpoint(model, x, 3, use_reentrant=reentrant)
    y.square().sum().backward()
    got = [y.detach(), *(t.grad for t in tensors_of(model, x))]
    assert_same(got, outcome(model, x, None))


def test_saved_tensors_that_come_back_as_copies():
    model, x = Depth(), an_input()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        got = outcome(model, x, 3)
    assert_same(got, outcome(model, x, None))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 2), (2, MANY), (1, MANY)])
def test_without_gradients(batch, tokens, context, monkeypatch):
    model, x = Depth(), an_input(batch, tokens).detach()
    with context():
        torch.testing.assert_close(model(x, 3), model(x))
        monkeypatch.setattr(model, "buffer", lambda weights, group_size: SmallBuffer(weights))
        torch.testing.assert_close(model(x, 3), model(x))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("tokens", [7, MANY])
def test_uninitialised_memory_is_never_read(tokens, gradients, monkeypatch):
    """Whatever a fresh allocation holds, nothing of it comes through, also in a partial pass."""
    model, x = Depth(), an_input(2, tokens)
    for owner, make in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        real = getattr(owner, make)
        monkeypatch.setattr(owner, make, lambda *a, real=real, **k: real(*a, **k).fill_(torch.nan))
    with torch.set_grad_enabled(gradients):
        outputs = model(x, 3, all_layers=True)
    assert all(y.isfinite().all() for y in outputs)
    if gradients:
        for y in outputs:
            inputs = tensors_of(model, x)
            grads = torch.autograd.grad(y.sum(), inputs, retain_graph=True, allow_unused=True)
            assert all(grad is None or grad.isfinite().all() for grad in grads)


def test_memory_is_the_slots_and_no_more():
    """What autograd keeps of all routes is the slots and the weights, once."""
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = an_input(2, 300)
    weights = [torch.randn(HEADS, HEADS * (i + 1), dtype=x.dtype) for i in range(6)]
    weights = [weight.requires_grad_() for weight in weights]
    buffer = MatrixBuffer(weights, 2)
    key = x.unflatten(-1, (HEADS, 5)).transpose(1, 2)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        for weight in weights:
            buffer.append(key, key)
            buffer.route(weight)
    assert sum(kept.values()) == 6 * 2 * x.nbytes + sum(weight.nbytes for weight in weights)


def test_a_backward_leaves_nothing():
    """Neither while the graph is kept for another one, nor while only the loss is there."""
    model, x = Depth(), an_input(2, MANY)

    def count():
        gc.collect()
        storages = (tensor.untyped_storage() for tensor in live_tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    nothing = count()
    loss = model(x, 3).square().sum()
    forward = count()
    torch.autograd.grad(loss, tensors_of(model, x), retain_graph=True)
    assert count() <= forward
    torch.autograd.grad(loss, tensors_of(model, x))
    assert count() < nothing + x.nbytes


def test_a_kept_slot_cannot_be_changed_in_place():
    key = an_input().unflatten(-1, (HEADS, 5)).transpose(1, 2)
    slot = MatrixBuffer([None, None], 2).append(key, key)
    with pytest.raises(RuntimeError, match="modified inplace"):
        slot[0].mul_(3)


def test_a_buffer_is_the_sequence_of_its_slots():
    keys = torch.randn(3, 2, HEADS, 7, 5)
    buffer = MatrixBuffer([None] * 3, 2)
    for i, key in enumerate(keys):
        assert len(buffer) == i
        buffer.append(key, 2 * key)
    for slots in (list(buffer), buffer[0:3]):
        for (key, value), expected in zip(slots, keys, strict=True):
            assert torch.equal(key, expected) and torch.equal(value, 2 * expected)
    assert torch.equal(buffer[-1][0], keys[-1])


def test_another_weight_than_announced_is_used():
    """As a hook may replace it; all that is lost is the products computed ahead."""
    grads = []
    for with_buffer in (True, False):
        x = an_input()
        weights = [torch.eye(HEADS, dtype=x.dtype).repeat(1, i + 1) for i in range(4)]
        other = (2 * weights[3]).requires_grad_()
        buffer = MatrixBuffer(weights, 2)
        slots, key = [], x.unflatten(-1, (HEADS, 5)).transpose(1, 2)
        for i, weight in enumerate([*weights[:3], other]):
            slots.append(buffer.append(key, key.sin()) if with_buffer else (key, key.sin()))
            out = room.route(buffer if with_buffer else slots, weight)
            key = key + out[0] + out[1].tanh() if i < 3 else out[0] * out[1]
        grads.append(torch.autograd.grad(key.sum(), [x, other]))
    assert_same(*grads)


@pytest.mark.parametrize("which", ["key", "value"])
def test_slots_of_another_shape_are_refused(which):
    key = torch.randn(2, HEADS, 7, 5)
    buffer = MatrixBuffer([None, None], 2)
    buffer.append(key, key)
    slot = {"key": key, "value": key, which: key[:, :2]}
    with pytest.raises(ValueError, match=r"shape \[2, 3, 7, 5\] .* \[2, 2, 7, 5\].* at layer 1"):
        buffer.append(**slot)


def weights_of(depth=3, **options):
    return [None, *(torch.randn(HEADS, HEADS * (i + 1), **options) for i in range(1, depth))]


def test_where_a_buffer_is_begun():
    like = torch.randn(2)
    weights = weights_of()
    assert isinstance(begin_buffer(weights, like), SlotBuffer)
    assert isinstance(begin_buffer(weights, like.double()), SlotBuffer)
    with using("grouped"):
        assert isinstance(begin_buffer(weights, like), SlotBuffer)
    for name in ("naive", "functional", "deferred"):
        with using(name):
            assert begin_buffer(weights, like) is None
    assert begin_buffer([None, None], like) is None, "there is nothing to route"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_has_no_buffer(dtype):
    """Its partial sums would be rounded between two products."""
    assert begin_buffer(weights_of(), torch.randn(2, dtype=dtype)) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert begin_buffer(weights_of(), torch.randn(2)) is None


def test_beside_the_cpu_a_buffer_is_begun_on_request():
    """Nothing that the buffer computes with may lie on another device than the slots."""
    _, *weights = weights_of(10, device="meta", requires_grad=True)
    like = torch.randn(2, device="meta")
    assert begin_buffer([None, *weights], like) is None
    with using("grouped"):
        assert begin_buffer([None, *weights], like.bfloat16()) is None
        buffer = begin_buffer([None, *weights], like)
    total = torch.zeros((), device="meta")
    for weight in [None, *weights]:
        slot = torch.randn(2, 2, HEADS, 5, 4, device="meta", requires_grad=True).unbind()
        buffer.append(*slot)
        if weight is not None:
            total = total + sum(part.sum() for part in buffer.route(weight))
    total.backward()
    assert all(weight.grad.is_meta for weight in weights)


class Sharded(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight[:, 1:],
        lambda weight: weight[:0],
        lambda weight: weight.to("meta"),
        lambda weight: weight.as_subclass(Sharded),
        lambda weight: nn.Parameter(weight).flatten(),
    ],
    ids=["columns", "rows", "device", "type", "flat"],
)
def test_weights_that_are_not_at_hand_have_no_buffer(change):
    like, (_, first, second) = torch.randn(2), weights_of()
    assert begin_buffer([None, first, change(second)], like) is None
    assert begin_buffer([None, first, second], like) is not None


def test_freed_weights_have_no_buffer():
    """As FSDP leaves them between two uses."""
    _, first, second = weights_of()
    storage = second.untyped_storage()
    size = storage.size()
    storage.resize_(0)
    begun = begin_buffer([None, first, second], torch.randn(2))
    # Printing a tensor without memory, as a failure would, crashes.
    storage.resize_(size)
    assert begun is None


def test_tensors_of_another_type_have_no_buffer():
    assert begin_buffer(weights_of(), torch.randn(2).as_subclass(Sharded)) is None


@pytest.mark.parametrize("group_size", [1, 3, 8])
@pytest.mark.parametrize("without", [(0,), (), (0, 3, 4, 5)])
def test_the_buffer_of_compiled_code_equals_naive(group_size, without, monkeypatch):
    model, x = Depth(without=without), an_input()
    monkeypatch.setattr(model, "buffer", TracedBuffer)
    assert_same(outcome(model, x, group_size), outcome(model, x, None))


def test_a_buffer_in_compiled_code(monkeypatch):
    torch.compiler.reset()
    model, x = Depth(), an_input()
    monkeypatch.setattr(model, "buffer", TracedBuffer)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(outcome(compiled, x, 3), outcome(model, x, None))


def test_compiled_code_has_a_buffer_of_its_own():
    weights = weights_of()

    @torch.compile(fullgraph=True, backend="eager")
    def run(x):
        return x + isinstance(begin_buffer(weights, x), TracedBuffer)

    assert torch.equal(run(torch.zeros(2)), torch.ones(2))
    assert torch.equal(run(torch.zeros(2, dtype=torch.bfloat16)), torch.zeros(2))


def test_nodes_of_a_compiled_forward_grow_linearly():
    """Of a layer, as many in a deep model as in a shallow one."""

    def count(depth):
        nodes = []

        def backend(graph, _):
            nodes.append(sum(node.op != "placeholder" for node in graph.graph.nodes))
            return graph.forward

        torch.compiler.reset()
        model = Depth(depth=depth)
        model.buffer = TracedBuffer
        torch.compile(model, fullgraph=True, backend=backend)(an_input(), 2)
        return sum(nodes)

    few, more, most = count(4), count(8), count(16)
    # Reading an older group is a product and a slice of the weights for each pair of groups.
    pairs = 2 * (8 * 7 // 2 - 2 * (4 * 3 // 2) + 2 * 1 // 2)
    assert most - more <= 2 * (more - few) + pairs


def test_transforms_of_functions_have_no_buffer():
    begun, weights = [], weights_of()

    def run(x):
        begun.append(begin_buffer(weights, x))
        return x.sum()

    torch.func.grad(run)(torch.randn(3))
    torch.func.vmap(run)(torch.randn(3, 2))
    assert begun == [None, None]
