"""A GPT that is not ours takes memories and streams of ours: examples/in_your_own_model.py."""

import pytest
import torch
from scripts import load_script

import layermem

own = load_script("examples/in_your_own_model.py")
WIRINGS = ["lime", "mudd", "lime+mudd", "lime+hyper_connections"]
IDS = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))


def gradients(model, recompute=False):
    model.zero_grad()
    model(IDS, recompute).square().mean().backward()
    return [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("wiring", WIRINGS)
def test_it_learns_and_runs_layers_again(wiring):
    model = own.build(wiring, width=16).double()
    torch.testing.assert_close(gradients(model, recompute=True), gradients(model))
    losses = own.train(own.build(wiring, width=16), 10)
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("wiring", WIRINGS)
def test_compiled_it_learns_the_same(wiring):
    losses = [own.train(own.build(wiring, width=16, layers=2), 3, c) for c in (False, True)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-4)


def test_fields_of_the_identity_make_it_plain():
    plain = own.build(width=16)(IDS)
    for wiring, fields in (("lime", {"router_init": "identity"}), ("mudd", {})):
        torch.testing.assert_close(own.build(wiring, width=16, **fields)(IDS), plain)


def test_routers_have_settings_of_their_own():
    groups = own.build("lime").groups()
    assert [group["weight_decay"] for group in groups if group.get("lr") == 1e-2] == [0.0] * 3


@pytest.mark.parametrize("name", ["yoco", "depth_attention", "lime_hidden"])
def test_what_is_more_than_two_seams_is_refused(name):
    with pytest.raises(ValueError, match=name):
        layermem.Seams(name)
