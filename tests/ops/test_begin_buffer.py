"""Which buffer a forward begins, and the buffer of compiled code."""

import pytest
import torch
from chain import HEADS, Depth, an_input, assert_same, outcome
from torch import nn

from layermem.ops import route as room
from layermem.ops.route import SlotBuffer, begin_buffer, route, using
from layermem.ops.route.buffer import SmallBuffer, TracedBuffer
from layermem.ops.route.groups import GroupBuffer


def weights_of(depth=3, **options):
    return [None, *(torch.randn(HEADS, HEADS * (i + 1), **options) for i in range(1, depth))]


def test_where_a_buffer_is_begun():
    like = torch.randn(2)
    weights = weights_of()
    assert isinstance(begin_buffer(weights, like), SlotBuffer)
    assert isinstance(begin_buffer(weights, like.double()), SlotBuffer)
    with using("grouped"):
        assert isinstance(begin_buffer(weights, like), SlotBuffer)
    for name in ("naive", "deferred"):
        with using(name):
            assert begin_buffer(weights, like) is None
    assert begin_buffer([None, None], like) is None, "there is nothing to route"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_has_one_group(dtype, monkeypatch):
    """Between two groups partial sums would be rounded."""
    monkeypatch.setattr(room, "_GROUP_SIZE", 2)
    weights = weights_of(5)
    buffer = begin_buffer(weights, torch.randn(2, dtype=dtype))
    assert type(buffer) is GroupBuffer
    for weight in weights:
        slot = buffer.append(*torch.randn(2, 2, HEADS, 5, 4, dtype=dtype).unbind())
        if weight is not None:
            assert [part.dtype for part in (*slot, *buffer.route(weight))] == [dtype] * 4
    assert (buffer._group.first, buffer._group.last) == (0, 5)
    with torch.no_grad():
        assert type(begin_buffer(weights, torch.randn(2, dtype=dtype))) is SmallBuffer
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert type(begin_buffer(weights, torch.randn(2))) is GroupBuffer
        with torch.no_grad():
            assert begin_buffer(weights, torch.randn(2)) is None


def test_on_other_devices_a_buffer_is_begun_on_request():
    """Nothing that the buffer computes with may lie on another device than the slots."""
    _, *weights = weights_of(10, device="meta", requires_grad=True)
    like = torch.randn(2, device="meta")
    assert begin_buffer([None, *weights], like) is None
    with using("grouped"):
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


def last(window, depth=9):
    return [range(max(0, layer + 1 - window), layer + 1) for layer in range(depth)]


SOURCES = {
    "chosen": [(0,), (1,), (0, 2), (0, 1, 3), (2, 3, 4), (0, 1, 2, 3, 4, 5)],
    "with gaps": [(0,), (1,), (2,), (0, 3), (1, 4), (0, 2, 5), (6,), (0, 1, 4, 7), (8,), (3, 8, 9)],
    "own only": [(layer,) for layer in range(5)],
    "last 2": last(2),
    "last 4": last(4),
    "first 2": [sorted({*range(min(i, 2)), max(0, i - 1), i}) for i in range(9)],
}


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("group_size", [1, 2, 3, 8])
@pytest.mark.parametrize(("requires_grad", "few"), [(True, 0), (False, 0), (False, 10**6)])
def test_routers_that_read_some_slots_equal_naive(
    sources, group_size, requires_grad, few, monkeypatch
):
    monkeypatch.setattr(room, "_FEW", few)
    monkeypatch.setattr(room, "_GROUP_SIZE", group_size)
    # A buffer for few sources too, whose slots it keeps without gradients.
    monkeypatch.setattr(room, "_most_alive", len)
    results = []
    for with_buffer in (True, False):
        noise = torch.Generator().manual_seed(0)

        def draw(*shape, noise=noise):
            return torch.randn(shape, generator=noise, dtype=torch.float64)

        x = draw(2, HEADS, 7, 5).requires_grad_(requires_grad)
        weights = [draw(HEADS, HEADS * len(own)).requires_grad_() for own in sources]
        with torch.set_grad_enabled(requires_grad):
            buffer, slots, out = begin_buffer(weights, x, sources), [], x
            assert type(buffer) is (SmallBuffer if few else GroupBuffer)
            for own, weight in zip(sources, weights, strict=True):
                slots.append((out.sin(), out * 2))
                buffer.append(*slots[-1])
                read = buffer if with_buffer else [slots[j] for j in own]
                out = out + sum(route(read, weight)).tanh()
            # A weight that was not announced.
            other = draw(HEADS, HEADS * len(sources[-1]))
            read = buffer if with_buffer else [slots[j] for j in sources[-1]]
            results.append([out.detach(), *route(read, other)])
        if requires_grad:
            results[-1] = [t.detach() for t in results[-1]]
            results[-1] += torch.autograd.grad(out.square().sum(), [x, *weights])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("name", "alive"),
    [("own only", 1), ("last 2", 2), ("last 4", 4), ("first 2", 4), ("chosen", 6)],
)
def test_without_gradients_a_buffer_keeps_no_slots_that_would_be_freed(name, alive):
    sources = SOURCES[name]
    x = torch.randn(2, 600, HEADS * 7)
    weights = [torch.randn(HEADS, HEADS * len(own)) for own in sources]
    assert x.numel() > room._FEW and room._most_alive(sources) == alive
    assert begin_buffer(weights, x, sources) is not None
    with torch.no_grad():
        assert (begin_buffer(weights, x, sources) is None) == (2 * alive <= len(sources))
        assert type(begin_buffer(weights, x[:1, :1], sources)) is SmallBuffer


@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("rows", [HEADS, 1])
def test_a_few_tokens_with_weights_of_their_own_for_values(rows, sources):
    noise = torch.Generator().manual_seed(0)
    routers = [
        tuple(torch.randn(rows, rows * len(own), generator=noise) for _ in range(2))
        for own in sources
    ]
    x, slots = torch.randn(2, HEADS, 7, 5, generator=noise), []
    with torch.no_grad():
        buffer = begin_buffer(routers, x, sources)
        assert type(buffer) is SmallBuffer
        for own, router in zip(sources, routers, strict=True):
            slots.append((x.sin(), x * 2))
            buffer.append(*slots[-1])
            got, expected = route(buffer, *router), route([slots[j] for j in own], *router)
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b)
            x = x + sum(got).tanh()


def test_keys_and_values_of_two_dtypes_do_not_lie_side_by_side():
    weights = weights_of()
    with torch.no_grad():
        buffer = begin_buffer(weights, torch.randn(2))
        with pytest.raises(ValueError, match="keys are torch.float32 and values torch.bfloat16"):
            buffer.append(torch.randn(2, HEADS, 7, 5), torch.randn(2, HEADS, 7, 5).bfloat16())


@pytest.mark.parametrize(("requires_grad", "few"), [(True, 0), (False, 0), (False, 10**6)])
def test_a_route_that_is_asked_for_twice_is_the_same(requires_grad, few, monkeypatch):
    """As a hook does that calls a router again."""
    monkeypatch.setattr(room, "_FEW", few)
    monkeypatch.setattr(room, "_GROUP_SIZE", 2)
    results = []
    for times in (1, 2):
        noise = torch.Generator().manual_seed(0)
        x = torch.randn(2, HEADS, 7, 5, generator=noise).requires_grad_(requires_grad)
        weights = [torch.randn(HEADS, HEADS * (i + 1), generator=noise) for i in range(5)]
        with torch.set_grad_enabled(requires_grad):
            buffer, out = begin_buffer(weights, x), x
            for weight in weights:
                buffer.append(out.sin(), out * 2)
                routes = [route(buffer, weight) for _ in range(times)]
                out = out + sum(routes[-1]).tanh()
        results.append([out, *torch.autograd.grad(out.sum(), [x])] if requires_grad else [out])
    for once, twice in zip(*results, strict=True):
        assert torch.equal(once, twice)


def test_a_loss_that_reaches_some_layers_with_gaps():
    """Slots that no route of a pass has read, and routes that no pass has come by."""
    sources = SOURCES["with gaps"]
    for loss_at in range(len(sources)):
        grads = []
        for with_buffer in (True, False):
            noise = torch.Generator().manual_seed(0)
            x = torch.randn(2, HEADS, 7, 5, generator=noise, dtype=torch.float64).requires_grad_()
            weights = [
                torch.randn(HEADS, HEADS * len(own), generator=noise).double().requires_grad_()
                for own in sources
            ]
            buffer, slots, outs = GroupBuffer(weights, 3, sources), [], []
            for i, (own, weight) in enumerate(zip(sources, weights, strict=True)):
                # Slots of no relation to each other.
                slots.append(((i * x).sin(), x * i))
                buffer.append(*slots[-1])
                read = buffer if with_buffer else [slots[j] for j in own]
                outs.append(sum(route(read, weight)).tanh())
            wanted = [x, *weights]
            grads.append(torch.autograd.grad(outs[loss_at].sum(), wanted, allow_unused=True))
        for got, expected in zip(*grads, strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                torch.testing.assert_close(got, expected)


def test_pruned_routers_are_trained_after_an_evaluation():
    """What inference mode has computed and kept is not saved for a backward."""
    sources = SOURCES["with gaps"]
    weights = [torch.randn(HEADS, HEADS * len(own), requires_grad=True) for own in sources]
    for context in (torch.inference_mode, torch.enable_grad):
        with context():
            buffer = begin_buffer(weights, torch.randn(2), sources)
            for weight in weights:
                buffer.append(torch.randn(2, HEADS, 7, 5), torch.randn(2, HEADS, 7, 5))
                key, _ = buffer.route(weight)
    assert torch.autograd.grad(key.sum(), weights[-1])[0].isfinite().all()


def test_compiled_routers_that_read_some_slots_have_no_buffer():
    sources = SOURCES["last 2"]
    weights = [torch.randn(HEADS, HEADS * len(own)) for own in sources]

    @torch.compile(fullgraph=True, backend="eager")
    def run(x):
        return x + (begin_buffer(weights, x, sources) is None)

    assert torch.equal(run(torch.zeros(2)), torch.ones(2))


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
@pytest.mark.parametrize("apart", [(), (1, 2, 6)])
@pytest.mark.parametrize("rows", [HEADS, 1])
def test_the_buffer_of_compiled_code_equals_naive(group_size, without, apart, rows, monkeypatch):
    model, x = Depth(without=without, apart=apart, rows=rows), an_input()
    monkeypatch.setattr(model, "buffer", TracedBuffer)
    assert_same(outcome(model, x, group_size), outcome(model, x, None))


@pytest.mark.slow
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


@pytest.mark.slow
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
