"""Equation (2) against a loop over its indices, and the shared buffer against equation (2)."""

import gc
from collections import Counter
from functools import partial
from itertools import chain

import pytest
import torch
from chain import HEADS, Depth, an_input, assert_same, outcome, tensors_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import live_tensors
from torch.utils.checkpoint import checkpoint

from layermem.ops import shared_buffer as room
from layermem.ops.rope import rotate
from layermem.ops.route import route
from layermem.ops.rows import APART
from layermem.ops.shared_buffer import Inference, Routes, begin, using_naive

WITH_GAPS = [(0,), (1,), (0, 2), (0, 1, 3), (1, 4), (0, 2, 4, 5), (0, 3, 6)]
CHAINS = {
    "all": {},
    "two layers": {"depth": 2},
    "one head": {"heads": 1},
    "the first with a router": {"without": ()},
    "values apart": {"apart": range(1, 7)},
    "a scalar a slot": {"rows": 1},
    "scalars apart": {"rows": 1, "apart": range(1, 7)},
    "the last 3": {"sources": [range(max(0, i - 2), i + 1) for i in range(7)]},
    "with gaps": {"sources": WITH_GAPS, "without": ()},
    "gaps apart": {"sources": WITH_GAPS, "without": (), "apart": range(7)},
}


def random_slots(n_slots, batch=2, heads=3, tokens=5, width=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (n_slots, 2, batch, heads, tokens, width)
    tensors = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(heads, n_slots * heads, generator=generator, dtype=torch.float64).to(dtype)
    return [(key, value) for key, value in tensors], weight


def by_the_indices(slots, weight):
    """Equation (2), letter by letter, with the paper's R[l', h', h] = weight[h, l' * R + h']."""
    heads = slots[0][0].shape[1]
    outs = [torch.zeros_like(slots[0][0]), torch.zeros_like(slots[0][1])]
    for which in (0, 1):
        for h in range(heads):
            for layer in range(len(slots)):
                for other in range(heads):
                    r = weight[h, layer * heads + other]
                    outs[which][:, h] += r * slots[layer][which][:, other]
    return tuple(outs)


@settings(max_examples=25, deadline=None)
@given(
    n_slots=st.integers(1, 5),
    batch=st.integers(1, 3),
    heads=st.integers(1, 5),
    tokens=st.integers(1, 7),
    width=st.integers(1, 6),
)
def test_equals_a_loop_over_the_indices(n_slots, batch, heads, tokens, width):
    slots, weight = random_slots(n_slots, batch, heads, tokens, width)
    for got, expected in zip(route(slots, weight), by_the_indices(slots, weight), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_sum_is_rounded_once(dtype):
    slots, weight = random_slots(9, dtype=dtype)
    exact = by_the_indices([(k.double(), v.double()) for k, v in slots], weight.double())
    for got, expected in zip(route(slots, weight), exact, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected.to(dtype))


def test_gradients():
    slots, weight = random_slots(3, batch=1, heads=2, tokens=3, width=2)
    tensors = [tensor.clone().requires_grad_() for slot in slots for tensor in slot]
    weight.requires_grad_()

    def flat(weight, *tensors):
        return route(list(zip(tensors[::2], tensors[1::2], strict=True)), weight)

    torch.autograd.gradcheck(flat, (weight, *tensors))
    torch.autograd.gradgradcheck(flat, (weight, *tensors))


def test_values_may_have_a_weight_of_their_own():
    slots, weight = random_slots(3)
    value_weight = random_slots(3, seed=1)[1]
    keys, values = route(slots, weight, value_weight)
    torch.testing.assert_close(keys, by_the_indices(slots, weight)[0])
    torch.testing.assert_close(values, by_the_indices(slots, value_weight)[1])


@pytest.mark.parametrize("apart", [False, True])
def test_a_scalar_for_each_slot_is_that_of_all_its_heads(apart):
    slots, _ = random_slots(3)
    scalars = torch.randn(2, 3, dtype=torch.float64)[:, None].requires_grad_()
    weights = scalars.unbind()[: 1 + apart]
    got = route(slots, *weights)
    eye = torch.eye(3, dtype=torch.float64)
    by_head = [torch.kron(weight, eye) for weight in weights]
    expected = by_the_indices(slots, by_head[0])[0], by_the_indices(slots, by_head[-1])[1]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    outcomes = [
        torch.autograd.grad(sum(x.sin().sum() for x in out), scalars) for out in (got, expected)
    ]
    torch.testing.assert_close(*outcomes)


def test_routing_before_rope_equals_routing_after():
    slots, weight = random_slots(4)
    angles = torch.randn(2, 5, 2, dtype=torch.float64).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    before = rotate(route(slots, weight)[0], cos, sin)
    after = route([(rotate(key, cos, sin), value) for key, value in slots], weight)[0]
    torch.testing.assert_close(before, after)


def test_parts_of_the_heads_sum_to_the_whole():
    """Head-parallel routing: each rank holds some heads of every slot and those columns."""
    slots, weight = random_slots(3, heads=4)
    halves = []
    for heads in (slice(0, 2), slice(2, 4)):
        columns = weight.unflatten(1, (3, 4))[:, :, heads].flatten(1)
        halves.append(route([(k[:, heads], v[:, heads]) for k, v in slots], columns))
    for whole, one, other in zip(route(slots, weight), *halves, strict=True):
        torch.testing.assert_close(one + other, whole)


def test_bad_input_is_refused():
    slots, weight = random_slots(3)
    # With as many numbers, these would be added up in another order.
    swapped = (slots[1][0].transpose(0, 2), slots[1][1].transpose(0, 2))
    shorter = (slots[1][0][:, :, :-1], slots[1][1])
    for wrong in ([], [slots[0], swapped, slots[2]], [slots[0], shorter, slots[2]]):
        with pytest.raises(ValueError):
            route(wrong, weight)
    for columns in (8, 3):
        with pytest.raises(ValueError, match=rf"\[3, {columns}\]"):
            route(slots, weight[:, :columns])


@pytest.fixture(params=CHAINS)
def model(request):
    return Depth(**CHAINS[request.param])


# Where what differs between the chains is how W is made, some of them stand for all.
SOME = pytest.mark.parametrize("model", ["all", "scalars apart", "with gaps"], indirect=True)


@pytest.mark.parametrize(("batch", "tokens", "group"), [(1, 1, 8), (2, 7, 4), (3, 600, 3)])
def test_a_shared_buffer_equals_the_equation(model, batch, tokens, group, monkeypatch):
    monkeypatch.setattr(room, "_GROUP", group)
    x = an_input(batch, tokens, heads=model.heads)
    assert_same(outcome(model, x), outcome(model, x, False))
    single, y = model.float(), x.detach().float().requires_grad_()
    got, expected = (
        torch.cat([part.flatten() for part in outcome(single, y, shares)])
        for shares in (True, False)
    )
    assert got.dtype == torch.float32 and (got - expected).norm() <= 2e-6 * expected.norm()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("few", [0, 10**6])
def test_without_gradients(model, context, few, monkeypatch):
    """In groups, and of few tokens all as one."""
    monkeypatch.setattr(room, "_FEW", few)
    monkeypatch.setattr(room, "_GROUP", 3)
    with context():
        x = an_input(heads=model.heads).detach()
        assert type(model.begin(x)) is Inference
        torch.testing.assert_close(model(x), model(x, False))
        # Under autocast keys and values may have two dtypes, which do not lie side by side.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert type(model.begin(x)) is Routes


@pytest.mark.parametrize(
    "model",
    ["scalars apart", "with gaps", pytest.param("all", marks=pytest.mark.slow)],
    indirect=True,
)
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_it_is_the_same(model, monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(room, "_GROUP", 3)
    x = an_input(heads=model.heads)
    compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
    whole, layer = compiled(model), compiled(model.layer)
    # With the first layer eager.
    parts = partial(model, run=lambda eager, i, *given: (layer if i else eager)(i, *given))
    for forward in (whole, parts):
        assert_same(outcome(forward, x, of=model), outcome(model, x, False))


def test_a_compiled_loss_that_leaves_out_the_last_layers():
    torch.compiler.reset()
    model, x = Depth(), an_input()
    model.may_end_early = True

    def early(x, shares):
        return model(x, shares, all_layers=True)[3].square().sum()

    tensors = [x, *(model.weights[str(i)] for i in (1, 2, 3))]
    compiled = torch.compile(early, fullgraph=True, backend="aot_eager")
    passes = (torch.autograd.grad(run(x, on), tensors) for run, on in ((compiled, 1), (early, 0)))
    assert_same(*passes)


@SOME
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_checkpoints(model, reentrant):
    x = an_input(heads=model.heads)
    expected = outcome(model, x, False)
    again = partial(checkpoint, use_reentrant=reentrant)
    for forward in (partial(model, run=again), partial(again, model)):
        model.zero_grad()
        x.grad = None
        y = forward(x)
        y.square().sum().backward()
        assert_same([y.detach(), *(t.grad for t in tensors_of(model, x))], expected)


@SOME
@pytest.mark.parametrize("layer", [0, 1, 4])
@pytest.mark.parametrize("run", [None, partial(checkpoint, use_reentrant=False)])
def test_a_loss_that_does_not_reach_the_last_layers(model, layer, run):
    """Also after a pass of all layers, and where its layers run again."""
    x, grads = an_input(heads=model.heads), []
    tensors = tensors_of(model, x)
    for shares in (True, False):
        outputs = model(x, shares, all_layers=True, run=run)
        torch.autograd.grad(outputs[-1].sum(), tensors, retain_graph=True)
        loss = outputs[layer].square().sum()
        grads.append(torch.autograd.grad(loss, tensors, allow_unused=True))
    for got, expected in zip(*grads, strict=True):
        # A layer that hands the buffer on has zeros for what the loss does not reach.
        if expected is None:
            assert got is None or not got.any()
        else:
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("frozen", ["weights", "keys", "values", "x", "first", "everything but 3"])
def test_partial_inputs_needing_gradients(frozen):
    model, x = Depth(), an_input()
    if frozen in ("x", "first", "everything but 3"):
        x = x.detach()
    if frozen == "first":
        for i in range(3):
            model.keys[i].requires_grad_(False)
            model.values[i].requires_grad_(False)
    elif frozen == "everything but 3":
        model.requires_grad_(False)
        model.weights["3"].requires_grad_(True)
    elif frozen != "x":
        getattr(model, frozen).requires_grad_(False)
    assert_same(outcome(model, x), outcome(model, x, False))


def test_repeated_partial_and_split_passes():
    model, x = Depth(), an_input()
    expected, tensors = outcome(model, x, False)[1:], tensors_of(model, x)
    y = model(x).square()
    for some in (model.weights["6"], model.keys[4].weight, model.weights["2"]):
        (got,) = torch.autograd.grad(y.sum(), [some], retain_graph=True)
        torch.testing.assert_close(got, expected[[t is some for t in tensors].index(True)])
    parts = [
        torch.autograd.grad(part.sum(), tensors, retain_graph=True) for part in (y[:, :3], y[:, 3:])
    ]
    assert_same([a + b for a, b in zip(*parts, strict=True)], expected)
    assert_same(torch.autograd.grad(y.sum(), tensors), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y.sum(), tensors)


def test_two_forwards_before_their_backwards():
    model, x = Depth(), an_input()
    expected, tensors = outcome(model, x, False)[1:], tensors_of(model, x)
    losses = [model(x).square().sum() for _ in range(2)]
    for loss in losses:
        assert_same(torch.autograd.grad(loss, tensors), expected)


def test_a_backward_inside_a_backward():
    """A pass that a hook starts over the same graph does not mix with the one it interrupts."""
    model, x = Depth(), an_input()
    tensors, started, inner = tensors_of(model, x), [], []

    def losses(shares):
        outputs = model(x, shares, all_layers=True)
        return outputs, outputs[-1].square().sum(), outputs[-1].sin().sum()

    def nested(_):
        if not started:
            started.append(True)
            inner.extend(torch.autograd.grad(inner_loss, tensors, retain_graph=True))

    expected = [torch.autograd.grad(loss, tensors, retain_graph=True) for loss in losses(False)[1:]]
    outputs, loss, inner_loss = losses(True)
    outputs[4].register_hook(nested)
    assert_same(torch.autograd.grad(loss, tensors, retain_graph=True), expected[0])
    assert_same(inner, expected[1])


def test_weights_changed_after_the_forward_do_not_spoil_the_backward():
    model, x = Depth(), an_input()
    expected = outcome(model, x, False)[1:]
    loss = model(x).square().sum()
    kept = model.weights["4"].detach().clone()
    with torch.no_grad():
        model.weights["4"].add_(1)
    got = torch.autograd.grad(loss, tensors_of(model, x))
    with torch.no_grad():
        model.weights["4"].copy_(kept)
    assert_same(got, expected)


@SOME
def test_saved_tensors_that_come_back_as_copies(model):
    x = an_input()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        got = outcome(model, x)
    assert_same(got, outcome(model, x, False))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("anomaly", [False, True])
def test_uninitialised_memory_is_never_read(gradients, anomaly, monkeypatch):
    """Whatever a fresh allocation holds, nothing of it comes through, also in a partial pass."""
    model, x = Depth(), an_input()
    for owner, make in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        real = getattr(owner, make)
        monkeypatch.setattr(owner, make, lambda *a, real=real, **k: real(*a, **k).fill_(torch.nan))
    with torch.set_grad_enabled(gradients), torch.autograd.set_detect_anomaly(anomaly):
        outputs = model(x, all_layers=True)
        assert all(y.isfinite().all() for y in outputs)
        for y in outputs if gradients else ():
            inputs = tensors_of(model, x)
            grads = torch.autograd.grad(y.sum(), inputs, retain_graph=True, allow_unused=True)
            assert all(grad is None or grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("sources", [None, WITH_GAPS], ids=["all", "with gaps"])
@pytest.mark.parametrize("count", [1, 2], ids=["one router", "apart"])
@pytest.mark.parametrize("dtypes", ["bfloat16 bfloat16", "float16 float16", "float32 bfloat16"])
def test_in_half_precision_every_sum_is_rounded_once(sources, count, dtypes):
    """Keys may be float32 beside values in half precision, as under autocast with norms."""
    of_parts = [getattr(torch, name) for name in dtypes.split()]
    own = sources or [range(i + 1) for i in range(7)]
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))

    def rows(part):
        return part.double().transpose(0, 1).reshape(HEADS, -1)

    shape = (2, HEADS, 7, 5)
    routers = [
        tuple(draw(HEADS, HEADS * len(of)).requires_grad_() for _ in range(count)) for of in own
    ]
    slots = [tuple(draw(*shape).to(d).requires_grad_() for d in of_parts) for _ in own]
    d_routes = [tuple(draw(*shape).to(d) for d in of_parts) for _ in own]
    routes = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        shared = begin(dict(enumerate(routers)), dict(enumerate(own)), slots[0][0])
        handed = shared.handed
        for i, (slot, router) in enumerate(zip(slots, routers, strict=True)):
            buffered = shared.slots(i, handed)
            buffered.append(*slot)
            routes.append(route(buffered, *router))
            handed = buffered.handed
        leaves = [*chain(*slots), *chain(*routers)]
        grads = torch.autograd.grad([*chain(*routes)], leaves, [*chain(*d_routes)])
    d_slots, d_routers = grads[: 2 * len(slots)], grads[2 * len(slots) :]

    def assert_rounded_once(got, exact):
        expected = exact.to(got.dtype).double()
        torch.testing.assert_close(
            rows(got), expected, rtol=1.01 * torch.finfo(got.dtype).eps, atol=1e-5
        )

    # Everything again in float64, of the rounded inputs.
    wide = torch.promote_types(*of_parts)
    for part, dtype in enumerate(of_parts):
        weights = [router[min(part, count - 1)].to(wide).double() for router in routers]
        x, d = ([rows(pair[part]) for pair in pairs] for pairs in (slots, d_routes))
        for layer, of in enumerate(own):
            assert routes[layer][part].dtype == dtype
            exact = weights[layer] @ torch.cat([x[j] for j in of])
            assert_rounded_once(routes[layer][part], exact)
        for j in range(len(own)):
            exact = sum(
                weights[i].split(HEADS, 1)[list(of).index(j)].t() @ d[i]
                for i, of in enumerate(own)
                if j in of
            )
            assert_rounded_once(d_slots[2 * j + part], exact)
    for layer, of in enumerate(own):
        products = [
            rows(d_routes[layer][part]) @ torch.cat([rows(slots[j][part]) for j in of]).t()
            for part in (0, 1)
        ]
        got = d_routers[layer * count : (layer + 1) * count]
        for a, exact in zip(got, products if count == 2 else [sum(products)], strict=True):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a.double(), exact, rtol=torch.finfo(wide).eps, atol=1e-5)


def test_second_derivatives_are_refused():
    model, x = Depth(), an_input()
    loss = model(x).square().sum()
    for wanted in (x, model.weights["2"], model.keys[4].weight):
        with pytest.raises(RuntimeError, match="using_naive"):
            torch.autograd.grad(loss, wanted, create_graph=True)
    with using_naive():
        assert model.begin(x) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight[:, 1:],
        lambda weight: weight[:0],
        lambda weight: weight.to("meta"),
        lambda weight: weight.as_subclass(type("Sharded", (torch.Tensor,), {})),
        lambda weight: weight.flatten(),
    ],
    ids=["columns", "rows", "device", "type", "flat"],
)
def test_weights_that_are_not_at_hand_share_nothing(change):
    model, x = Depth(), an_input()
    routers, sources = model.routers(), dict(enumerate(model.sources))
    assert begin(routers, sources, x) is not None
    assert begin(dict.fromkeys(routers), sources, x) is None, "there is nothing to route"
    routers[2] = (change(routers[2][0]),)
    assert begin(routers, sources, x) is None


def test_weights_that_were_freed_share_nothing():
    """As FSDP leaves them between two uses."""
    model, x = Depth(), an_input()
    storage = model.weights["3"].untyped_storage()
    size = storage.size()
    storage.resize_(0)
    shared = model.begin(x)
    # Printing a tensor without memory, as a failure would, crashes.
    storage.resize_(size)
    assert shared is None


def test_transforms_of_functions_share_nothing():
    model, begun = Depth(), []

    def run(x):
        begun.append(model.begin(x))
        return x.sum()

    torch.func.grad(run)(torch.randn(3))
    torch.func.vmap(run)(torch.randn(3, 2))
    assert begun == [None, None]


def kept_bytes(run):
    """Return the bytes that autograd keeps of a forward, and its result."""
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = run()
    return sum(kept.values()), result


def test_memory_is_the_slots_and_no_more():
    """What autograd keeps of all routes is the slots and the weights, once."""
    slots = [
        [torch.randn(2, 300, HEADS, 5).transpose(1, 2).requires_grad_() for _ in range(2)]
        for _ in range(6)
    ]
    weights = {i: (torch.randn(HEADS, HEADS * (i + 1)).requires_grad_(),) for i in range(6)}
    sources = {i: range(i + 1) for i in range(6)}

    def run():
        shared = begin(weights, sources, slots[0][0])
        handed, routes = shared.handed, []
        for i, slot in enumerate(slots):
            buffered = shared.slots(i, handed)
            buffered.append(*slot)
            routes.append(buffered.route())
            handed = buffered.handed
        return routes

    (kept, routes), rows = kept_bytes(run), 6 * HEADS
    # Attention keeps a value, but of a key what rope makes of it.
    assert all(len({part.untyped_storage().data_ptr() for part in of}) == 2 for of in routes)
    assert kept == 4 * (rows * (2 * slots[0][0].numel() // HEADS + APART) + rows**2)


def test_a_backward_leaves_nothing():
    """Neither while the graph is kept for another one, nor while only the loss is there."""
    model, x = Depth(), an_input(2, 600)

    def count():
        gc.collect()
        storages = (tensor.untyped_storage() for tensor in live_tensors())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    nothing = count()
    loss = model(x).square().sum()
    forward = count()
    torch.autograd.grad(loss, tensors_of(model, x), retain_graph=True)
    assert count() <= forward
    torch.autograd.grad(loss, tensors_of(model, x))
    assert count() < nothing + x.nbytes


def compiled_calls(depth):
    """Count the calls of the compiled forward and backward of a chain, and what is saved."""
    counts = Counter()

    def counting(graph, _, kind):
        for node in graph.graph.nodes:
            if node.op == "call_function":
                counts[kind, str(node.target).removeprefix("aten.").split(".")[0]] += 1
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        if kind == "forward":
            saved = output.args[0][1:]
            counts["saved"] = sum(node.meta["val"].numel() for node in saved)
        return graph.forward

    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(
        fw_compiler=lambda g, i: make_boxed_func(counting(g, i, "forward")),
        bw_compiler=lambda g, i: make_boxed_func(counting(g, i, "backward")),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.compiler.reset()
    model, x = Depth(depth), an_input()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    outcome(compiled, x, of=model)
    return counts


def test_compiled_calls_of_a_layer_do_not_grow():
    """Nothing is concatenated but the small weights, and what is saved grows by the slots."""
    few, more, most = (compiled_calls(depth) for depth in (4, 8, 32))
    for part in ("forward", "backward"):
        for name in ("mm", "index_put"):
            grown = more[part, name] - few[part, name]
            assert most[part, name] - more[part, name] == 6 * grown
        assert few[part, "cat"] == more[part, "cat"] == most[part, "cat"] <= 1
    assert most["forward", "index_put"] - more["forward", "index_put"] == 24 * 2
    # W, and the slots of a layer beside what its own projections and its tanh save.
    of_layer = (most["saved"] - more["saved"] - (32**2 - 8**2) * HEADS**2) / 24
    assert of_layer <= 5 * 2 * an_input().numel()
