"""Layers that share a buffer: equal to layers that do not, and which forwards share one."""

import pytest
import torch
from tiny import SLOW, TINY, make
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrize

from layermem.models import memories
from layermem.models.registry import lookup
from layermem.ops import shared_buffer as room
from layermem.ops.route import route
from layermem.ops.shared_buffer import using_naive

SIZES = {**TINY, "num_hidden_layers": 7}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Several groups in a shallow model, also without gradients."""
    monkeypatch.setattr(room, "_GROUP", 3)
    monkeypatch.setattr(room, "_FEW", 0)


@pytest.fixture
def begun(monkeypatch):
    """The numbers of layers of the buffers that forwards have begun."""
    depths = []

    def noted(*arguments, **options):
        shared = room.begin(*arguments, **options)
        if shared is not None:
            depths.append(len(shared.routers))
        return shared

    monkeypatch.setattr(memories, "begin", noted)
    return depths


@pytest.fixture
def ids():
    return torch.randint(TINY["vocab_size"], (3, 11), generator=torch.Generator().manual_seed(2))


def a_model(variant="lime", **fields):
    entry = lookup(variant)
    return make(entry.causal_lm, entry.config(**{**SIZES, **fields})).double().train()


def gradients(model, ids, **kwargs):
    model.zero_grad()
    loss = model(ids, labels=ids, **kwargs).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters()}}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("fields", [{}, {"router": "average"}, {"num_hidden_layers": 1}], ids=str)
def test_a_training_step_equals_naive(heads, attention, fields, ids, begun):
    model = a_model(num_key_value_heads=heads, attn_implementation=attention, **fields)
    with using_naive():
        expected = gradients(model, ids, use_cache=False)
    assert not begun
    assert_same(gradients(model, ids, use_cache=False), expected)
    # A model of one layer has nothing to route.
    assert begun == [model.config.num_hidden_layers] * (model.config.num_hidden_layers > 1)


def test_generation_with_padding_equals_naive(ids, begun):
    model = a_model().eval()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    with using_naive():
        expected = model.generate(ids, **options)
    assert not begun
    assert torch.equal(model.generate(ids, **options), expected)
    assert len(begun) == 6


def test_the_layers_that_run_are_those_that_share(ids, begun):
    """Assisted generation lowers the number of layers."""
    model = a_model()
    for depth in (7, 5):
        model.config.num_hidden_layers = depth
        model(ids)
    assert begun == [7, 5]


def checkpointed(model):
    model.gradient_checkpointing_enable({"use_reentrant": False})


def checkpointed_reentrantly(model):
    model.gradient_checkpointing_enable({"use_reentrant": True})


def one_layer_wrapped(model):
    model.model.layers[2] = checkpoint_wrapper(model.model.layers[2])


def one_weight_parametrized(model):
    class Doubled(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    parametrize.register_parametrization(
        model.model.layers[4].self_attn.memory, "weight", Doubled()
    )


def a_hook_before_a_memory(model):
    def double(memory, arguments):
        query, slots = arguments
        return query, tuple((2 * k, 3 * v) for k, v in slots)

    model.model.layers[4].self_attn.memory.register_forward_pre_hook(double)


def a_hook_after_a_memory(model):
    def double(memory, arguments, output):
        # A hook on the gradient of a slot sees all of it.
        arguments[1][-1][0].register_hook(lambda grad: 2 * grad)
        return 2 * output[0], output[1]

    model.model.layers[4].self_attn.memory.register_forward_hook(double)


@pytest.mark.parametrize(
    "change",
    [
        one_layer_wrapped,
        one_weight_parametrized,
        a_hook_before_a_memory,
        a_hook_after_a_memory,
    ],
)
def test_what_cannot_share_does_not_and_is_right(change, ids, begun):
    model = a_model()
    change(model)
    got = gradients(model, ids, use_cache=False)
    assert not begun
    with using_naive():
        assert_same(got, gradients(model, ids, use_cache=False))


@pytest.mark.parametrize("change", [checkpointed, checkpointed_reentrantly])
@pytest.mark.parametrize(
    "fields", [{}, {"router_shares_kv": False}, {"variant": "lime_half"}], ids=str
)
@pytest.mark.parametrize("loss", ["last", "hidden"])
def test_layers_that_run_twice_share(change, fields, loss, ids, begun):
    """The buffer goes through a checkpointed layer as tensors, whatever layer a pass begins at."""

    def grads(model):
        model.zero_grad()
        out = model(ids, labels=ids, output_hidden_states=True)
        (out.loss if loss == "last" else out.hidden_states[4].square().sum()).backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    model = a_model(**fields)
    with using_naive():
        expected = grads(model)
    assert not begun
    change(model)
    got = grads(model)
    assert begun
    # Re-entrant layers and the buffer have zeros for what a loss does not reach.
    assert_same({n: g for n, g in got.items() if n in expected or g.any()}, expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"router": "last", "router_window": 4},
        {"router": "first", "router_window": 2},
        {"router": "last", "router_window": 2},
        {"router_sources": [[], [0], [1], [0, 2], [0, 1, 3], [0, 1, 2, 3, 4], [0]]},
        {"router_sources": [[], [0], [], [], [], [], [0]]},
    ],
    ids=["last", "first", "short", "chosen", "few"],
)
def test_routers_that_read_some_layers_share(fields, ids, begun):
    model = a_model(**fields)
    got = gradients(model, ids)
    assert begun == [7]
    with using_naive():
        assert_same(got, gradients(model, ids))


def test_a_reading_hook_sees_and_changes_nothing_without_gradients(ids, begun):
    """As analysis captures values and routed values."""
    model, seen = a_model().eval(), {}
    with torch.no_grad():
        expected = model(ids).logits

        def note(memory, arguments, output):
            seen.setdefault("slots", []).append(arguments[1][-1])
            seen["out"] = output

        for layer in model.model.layers[:5]:
            layer.self_attn.memory.register_forward_hook(note)
        assert torch.equal(model(ids).logits, expected)
        routed = route(seen["slots"], model.model.layers[4].self_attn.memory.weight)
        for got, one in zip(seen["out"], routed, strict=True):
            torch.testing.assert_close(got, one)
    assert begun == [7, 7]


@pytest.mark.parametrize(
    "fields",
    [{}, pytest.param({"router_grain": "layer", "router_shares_kv": False}, marks=SLOW)],
    ids=str,
)
def test_a_compiled_step_equals_naive(fields, ids):
    """Also of a loss on hidden states, which a compiler cannot tell from one on the last layer."""
    model = a_model(**fields, num_hidden_layers=5)

    def grads(forward, hidden):
        model.zero_grad()
        out = forward(ids, labels=ids, output_hidden_states=hidden)
        (out.hidden_states[3].square().sum() if hidden else out.loss).backward()
        zeros = torch.zeros_like
        return {n: zeros(p) if p.grad is None else p.grad for n, p in model.named_parameters()}

    for hidden in (False, True):
        with using_naive():
            # transformers places its hooks at the first call, not while a compiler traces.
            expected = grads(model, hidden)
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_same(grads(compiled, hidden), expected)
