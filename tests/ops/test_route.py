"""Equation (2) against a loop over its indices, and what routing promises its callers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layermem.ops.rope import rotate
from layermem.ops.route import naive, route, using


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
def test_sums_in_float32_and_comes_down_once(dtype):
    slots, weight = random_slots(9, dtype=dtype)
    exact = by_the_indices([(k.double(), v.double()) for k, v in slots], weight.double())
    for got, expected in zip(route(slots, weight), exact, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected.to(dtype))


def test_autocast_changes_neither_dtype_nor_numbers():
    slots, weight = random_slots(4, dtype=torch.float32)
    expected = route(slots, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = route(slots, weight)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_gradients():
    slots, weight = random_slots(3, batch=1, heads=2, tokens=3, width=2)
    tensors = [tensor.clone().requires_grad_() for slot in slots for tensor in slot]
    weight.requires_grad_()

    def flat(weight, *tensors):
        return route(list(zip(tensors[::2], tensors[1::2], strict=True)), weight)

    torch.autograd.gradcheck(flat, (weight, *tensors))
    # Second derivatives are the naive way's.
    with using("naive"):
        torch.autograd.gradgradcheck(flat, (weight, *tensors))


@pytest.mark.parametrize("name", ["naive", "deferred"])
def test_values_may_have_a_weight_of_their_own(name):
    slots, weight = random_slots(3)
    value_weight = random_slots(3, seed=1)[1]
    with using(name):
        keys, values = route(slots, weight, value_weight)
    torch.testing.assert_close(keys, by_the_indices(slots, weight)[0])
    torch.testing.assert_close(values, by_the_indices(slots, value_weight)[1])
    with pytest.raises(ValueError, match=r"one shape, got \[3, 9\] and \[2, 9\]"):
        route(slots, weight, value_weight[:2])


@pytest.mark.parametrize("name", ["naive", "deferred", "grouped"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_scalar_for_each_slot_is_that_of_all_its_heads(name, apart):
    slots, _ = random_slots(3)
    scalars = torch.randn(2, 3, dtype=torch.float64)[:, None].requires_grad_()
    weights = scalars.unbind()[: 1 + apart]
    with using(name):
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


def test_inputs_are_left_alone():
    slots, weight = random_slots(3)
    copies = [(key.clone(), value.clone()) for key, value in slots]
    route(slots, weight)
    for slot, copy in zip(slots, copies, strict=True):
        assert torch.equal(slot[0], copy[0]) and torch.equal(slot[1], copy[1])


def test_parts_of_the_heads_sum_to_the_whole():
    """Head-parallel routing: each rank holds some heads of every slot and those columns."""
    slots, weight = random_slots(3, heads=4)
    halves = []
    for heads in (slice(0, 2), slice(2, 4)):
        columns = weight.unflatten(1, (3, 4))[:, :, heads].flatten(1)
        halves.append(route([(k[:, heads], v[:, heads]) for k, v in slots], columns))
    for whole, one, other in zip(route(slots, weight), *halves, strict=True):
        torch.testing.assert_close(one + other, whole)


def test_bad_input_is_named():
    slots, weight = random_slots(3)
    with pytest.raises(ValueError, match="at least one slot"):
        route([], weight)
    with pytest.raises(
        ValueError, match=r"3 slots of 3 heads must have 9 columns, .* the shape \[3, 8\]"
    ):
        route(slots, weight[:, :8])
    with pytest.raises(
        ValueError, match=r"or be \[1, 3\], a scalar a slot; got the shape \[3, 3\]"
    ):
        route(slots, weight[:, :3])
    # With as many numbers, these would be added up in another order.
    swapped = (slots[1][0].transpose(0, 2), slots[1][1].transpose(0, 2))
    for other in ((slots[1][0][:, :, :-1], slots[1][1]), swapped):
        with pytest.raises(ValueError, match=r"the shape .* of the first key, got .* in slot 1"):
            route([slots[0], other, slots[2]], weight)


def test_the_equation_is_short():
    source = naive.__file__
    with open(source, encoding="utf-8") as file:
        lines = file.read().split('"""')
    code = "".join(lines[::2]).splitlines()
    assert sum(1 for line in code if line.strip() and not line.strip().startswith("#")) <= 40
