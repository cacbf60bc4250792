"""Routing in groups, on a buffer that layers share, against the naive one: every circumstance."""

import gc
from itertools import chain

import pytest
import torch
from chain import HEADS, MANY, Depth, an_input, assert_same, outcome, tensors_of
from tiny import live_tensors
from torch.utils.checkpoint import checkpoint

from layermem.ops import route as room
from layermem.ops.route import groups
from layermem.ops.route.buffer import SmallBuffer
from layermem.ops.route.groups import GroupBuffer
from layermem.ops.route.products import as_rows


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


SOURCES_WITH_GAPS = [(0,), (1,), (0, 2), (0, 1, 3), (1, 4), (0, 2, 4, 5), (0, 3, 6)]


@pytest.mark.parametrize("sources", [None, SOURCES_WITH_GAPS], ids=["all", "with gaps"])
@pytest.mark.parametrize("count", [1, 2], ids=["one router", "apart"])
@pytest.mark.parametrize("dtypes", ["bfloat16 bfloat16", "float16 float16", "float32 bfloat16"])
def test_in_half_precision_every_sum_is_rounded_once(sources, count, dtypes, monkeypatch):
    """Keys may be float32 beside values in half precision, as under autocast with norms."""
    monkeypatch.setattr(groups, "_LAYERS_OF_A_PRODUCT", 3)
    of_parts = [getattr(torch, name) for name in dtypes.split()]
    own = sources or [range(i + 1) for i in range(7)]
    noise = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=noise)

    shape = (2, HEADS, 7, 5)
    routers = [
        tuple(draw(HEADS, HEADS * len(of)).requires_grad_() for _ in range(count)) for of in own
    ]
    slots = [tuple(draw(*shape).to(d).requires_grad_() for d in of_parts) for _ in own]
    d_routes = [tuple(draw(*shape).to(d) for d in of_parts) for _ in own]
    buffer, routes = GroupBuffer(routers, 2, sources), []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for slot, router in zip(slots, routers, strict=True):
            buffer.append(*slot)
            routes.append(buffer.route(*router))
        leaves = [*chain(*slots), *chain(*routers)]
        grads = torch.autograd.grad([*chain(*routes)], leaves, [*chain(*d_routes)])
    d_slots, d_routers = grads[: 2 * len(slots)], grads[2 * len(slots) :]

    def assert_rounded_once(got, exact):
        expected = exact.to(got.dtype).double()
        torch.testing.assert_close(
            got.double(), expected, rtol=1.01 * torch.finfo(got.dtype).eps, atol=1e-5
        )

    # Everything again in float64, of the rounded inputs.
    for part, dtype in enumerate(of_parts):
        weights = [router[min(part, count - 1)].to(dtype).double() for router in routers]
        x = [as_rows(slot[part].double(), HEADS) for slot in slots]
        d = [as_rows(pair[part].double(), HEADS) for pair in d_routes]
        for layer, of in enumerate(own):
            exact = weights[layer] @ torch.cat([x[j] for j in of])
            assert_rounded_once(as_rows(routes[layer][part], HEADS), exact)
            assert routes[layer][part].dtype == dtype
        for j in range(len(own)):
            exact = sum(
                weights[i].split(HEADS, 1)[list(of).index(j)].t() @ d[i]
                for i, of in enumerate(own)
                if j in of
            )
            assert_rounded_once(as_rows(d_slots[2 * j + part], HEADS), exact)
    for layer, of in enumerate(own):
        products = [
            as_rows(d_routes[layer][part], HEADS).double()
            @ torch.cat([as_rows(slots[j][part].double(), HEADS) for j in of]).t()
            for part in (0, 1)
        ]
        got = d_routers[layer * count : (layer + 1) * count]
        rounded = [p.to(d).double() for p, d in zip(products, of_parts, strict=True)]
        for a, b in zip(got, rounded if count == 2 else [sum(rounded)], strict=True):
            assert a.dtype == torch.float32
            # The two products of one router are not added in half precision.
            assert count == 2 or (a != a.to(of_parts[1]).float()).any()
            torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-2)


def test_more_columns_than_a_tile():
    model, x = Depth(5), an_input(3, 700)
    assert_same(outcome(model, x, 2), outcome(model, x, None))


@pytest.mark.parametrize("without", [(), (0, 3), (0, 1, 2), (0, 4, 5), tuple(range(7))], ids=str)
def test_layers_without_a_router(without):
    model, x = Depth(without=without), an_input()
    assert_same(outcome(model, x, 3), outcome(model, x, None))


@pytest.mark.parametrize("apart", [range(1, 7), (3,), (2, 6)], ids=str)
@pytest.mark.parametrize("group_size", [1, 2, 3, 8])
@pytest.mark.parametrize("frozen", ["nothing", "weights", "value_weights"])
def test_keys_and_values_with_weights_of_their_own(apart, group_size, frozen):
    model, x = Depth(apart=apart), an_input()
    if frozen != "nothing":
        getattr(model, frozen).requires_grad_(False)
    assert_same(outcome(model, x, group_size), outcome(model, x, None))
    with torch.no_grad():
        many = an_input(tokens=MANY)
        torch.testing.assert_close(model(many, group_size), model(many))


@pytest.mark.parametrize("apart", [(), range(1, 7), (2, 6)], ids=str)
@pytest.mark.parametrize("group_size", [1, 3, 8])
def test_a_scalar_for_each_slot(apart, group_size):
    model, x = Depth(apart=apart, rows=1), an_input()
    assert_same(outcome(model, x, group_size), outcome(model, x, None))
    with torch.no_grad():
        many = an_input(tokens=MANY)
        torch.testing.assert_close(model(many, group_size), model(many))


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
        begun, slots, outs = GroupBuffer(weights, 3), [], []
        for i, weight in enumerate(weights):
            key = (i * x if i < 3 else x.detach()).unflatten(-1, (HEADS, 5)).transpose(1, 2)
            slots.append(begun.append(key, key) if with_buffer else (key, key))
            outs.append(room.route(begun if with_buffer else slots, weight)[0].sin())
        # What the rows of later layers will lie in.
        dirt = [torch.full((3 * HEADS, x.numel() // HEADS), torch.nan).double() for _ in range(8)]
        del dirt
        grads.append(torch.autograd.grad(outs[3].sum(), [x, weights[3]]))
    assert_same(*grads)


def test_second_derivatives_are_refused():
    """Gradients with a graph would lack what the nodes of routes hand on to each other."""
    model, x = Depth(), an_input()
    loss = model(x, 3).square().sum()
    for wanted in (x, model.weights["2"], model.keys[4].weight):
        with pytest.raises(RuntimeError, match=r"using\(.naive.\)"):
            torch.autograd.grad(loss, wanted, create_graph=True)


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

    def draw():
        return torch.randn(2, 300, HEADS, 5).transpose(1, 2).requires_grad_()

    slots = [(draw(), draw()) for _ in range(6)]
    weights = [torch.randn(HEADS, HEADS * (i + 1)).requires_grad_() for i in range(6)]
    begun = GroupBuffer(weights, 2)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        for slot, weight in zip(slots, weights, strict=True):
            begun.append(*slot)
            begun.route(weight)
    numbers = 6 * 2 * slots[0][0].numel() + sum(weight.numel() for weight in weights)
    assert sum(kept.values()) == 4 * numbers


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


@pytest.mark.parametrize("without", [0, 2, 4, 5])
@pytest.mark.parametrize("frozen", [False, True], ids=["routers learn", "frozen routers"])
def test_a_layer_that_runs_without_gradients_among_others(frozen, without):
    """The gradients of layers before it go by its token."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    routers = [draw(HEADS, HEADS * (i + 1)).requires_grad_(not frozen) for i in range(6)]
    slots = [draw(2, 1, HEADS, 3, 4).requires_grad_() for _ in range(6)]
    leaves = [*slots, *([] if frozen else routers)]

    def gradients(buffer):
        total, kept = 0, []
        for i, (slot, router) in enumerate(zip(slots, routers, strict=True)):
            with torch.set_grad_enabled(i != without):
                kept.append(buffer.append(*slot) if buffer is not None else tuple(slot * 1))
                key, value = (
                    room.naive.route(kept, router) if buffer is None else buffer.route(router)
                )
            total = total + (i + 1) * (key.sin().sum() + value.cos().sum())
        return torch.autograd.grad(total, leaves, allow_unused=True)

    for got, expected in zip(gradients(GroupBuffer(routers, 2)), gradients(None), strict=True):
        if expected is None:
            assert got is None or not got.any()
        else:
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("depth", [2, 12])
def test_a_layer_has_as_many_edges_in_a_deep_model(depth):
    """Each of them, and each tensor that a route is given, takes time in every layer."""
    routers = [torch.randn(HEADS, HEADS * (i + 1), requires_grad=True) for i in range(depth)]
    buffer = GroupBuffer([router.bfloat16() for router in routers], 8)
    for router in buffer._routers:
        slot = buffer.append(*torch.randn(2, 1, HEADS, 3, 4, dtype=torch.bfloat16).requires_grad_())
        key, _ = buffer.route(*router)
    (of_route,) = [node for node, _ in key.grad_fn.next_functions if node]
    # Its own slot, and the token of the one before it.
    assert len(of_route.next_functions) == 3
    assert slot[0].grad_fn in [node for node, _ in of_route.next_functions]


def test_a_kept_slot_cannot_be_changed_in_place():
    key = an_input().unflatten(-1, (HEADS, 5)).transpose(1, 2)
    slot = GroupBuffer([None, None], 2).append(key, key)
    with pytest.raises(RuntimeError, match="modified inplace"):
        slot[0].mul_(3)


def test_a_buffer_is_the_sequence_of_its_slots():
    keys = torch.randn(3, 2, HEADS, 7, 5)
    buffer = GroupBuffer([None] * 3, 2)
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
        begun = GroupBuffer(weights, 2)
        slots, key = [], x.unflatten(-1, (HEADS, 5)).transpose(1, 2)
        for i, weight in enumerate([*weights[:3], other]):
            slots.append(begun.append(key, key.sin()) if with_buffer else (key, key.sin()))
            out = room.route(begun if with_buffer else slots, weight)
            key = key + out[0] + out[1].tanh() if i < 3 else out[0] * out[1]
        grads.append(torch.autograd.grad(key.sum(), [x, other]))
    assert_same(*grads)


@pytest.mark.parametrize("which", ["key", "value"])
def test_slots_of_another_shape_are_refused(which):
    key = torch.randn(2, HEADS, 7, 5)
    begun = GroupBuffer([None, None], 2)
    begun.append(key, key)
    slot = {"key": key, "value": key, which: key[:, :2]}
    with pytest.raises(ValueError, match=r"shape \[2, 3, 7, 5\] .* \[2, 2, 7, 5\].* at layer 1"):
        begun.append(**slot)
