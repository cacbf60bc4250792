"""What pruning keeps, against sizes one can add up by hand."""

import pytest
import torch

from layermem.ops.pruning import check_options, prune

# Two heads, three slots; the absolute weights of the slots are 1, 6 and 3.
WEIGHT = torch.tensor([[0.5, 0.0, -4.0, 1.0, 1.0, 0.0], [0.0, 0.5, 0.25, 0.75, 0.0, 2.0]])


@pytest.mark.parametrize(
    ("keep", "read"),
    [
        (1.0, [True, True, True]),
        (0.9, [False, True, True]),
        (0.91, [True, True, True]),
        (0.3, [False, False, True]),
        (0.31, [False, True, True]),
        (1e-9, [False, False, True]),
        (1, [False, False, True]),
        (2, [False, True, True]),
        (7, [True, True, True]),
    ],
)
def test_whole_slots_by_share_or_number_and_always_the_own_one(keep, read):
    weight, found = prune(WEIGHT, keep, "layer")
    assert found.tolist() == read
    columns = found.repeat_interleave(2)
    assert torch.equal(weight[:, columns], WEIGHT[:, columns])
    assert weight[:, ~columns].abs().sum() == 0


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (0.4, [-4.0]),
        (0.41, [-4.0, 2.0]),
        (0.6, [-4.0, 2.0]),
        (3, [-4.0, 2.0, 1.0]),
        (1.0, [-4.0, 2.0, 1.0, 1.0, 0.75, 0.5, 0.5, 0.25]),
        (99, [-4.0, 2.0, 1.0, 1.0, 0.75, 0.5, 0.5, 0.25]),
    ],
)
def test_single_entries_by_share_or_number(keep, left):
    weight, read = prune(WEIGHT, keep, "entry")
    found = sorted(weight[weight != 0].tolist(), key=abs, reverse=True)
    assert found == left
    # What is left stays where it was; a slot with nothing left is read no more, but for the own.
    assert torch.equal(weight[weight != 0], WEIGHT[weight != 0])
    assert read.tolist() == [*(weight.view(2, 3, 2) != 0).any(0).any(-1).tolist()[:2], True]


def test_a_weight_of_zeros_reads_its_own_slot():
    for by in ("layer", "entry"):
        weight, read = prune(torch.zeros(2, 6), 0.5, by)
        assert read.tolist() == [False, False, True]
        assert not weight.any()


def test_pruning_leaves_the_given_weight_alone():
    before = WEIGHT.clone()
    prune(WEIGHT, 1, "layer")
    prune(WEIGHT, 1, "entry")
    assert torch.equal(WEIGHT, before)


@pytest.mark.parametrize("keep", [0, 0.0, -1, 1.5, True, float("nan"), "all"])
def test_a_share_or_a_number_is_asked_for(keep):
    with pytest.raises(ValueError, match="keep must be a share"):
        check_options(keep, "layer")


def test_layers_or_entries():
    with pytest.raises(ValueError, match='"layer" or "entry", got \'head\''):
        check_options(0.5, "head")
