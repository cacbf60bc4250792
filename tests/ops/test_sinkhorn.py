"""Sinkhorn: the fused iteration equals the formula, and rows and columns sum to one."""

import pytest
import torch

from layermem.ops.sinkhorn import naive, sinkhorn


def draw(count, n, spread=2.0):
    generator = torch.Generator().manual_seed(count + n)
    logits = torch.randn(count, n, n, generator=generator, dtype=torch.float64) * spread
    return logits.requires_grad_()


@pytest.mark.parametrize("rounds", [1, 2, 20])
@pytest.mark.parametrize(("count", "n"), [(5, 4), (1, 1), (33, 3), (2, 7)])
def test_fused_equals_the_formula(count, n, rounds):
    logits = draw(count, n)
    weight = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    got, expected = sinkhorn(logits, rounds), naive(logits, rounds)
    torch.testing.assert_close(got, expected)
    (ours,), (theirs,) = (torch.autograd.grad((x * weight).sum(), logits) for x in (got, expected))
    torch.testing.assert_close(ours, theirs)


def test_second_derivatives_are_those_of_the_formula():
    results = []
    for function in (sinkhorn, naive):
        logits = draw(5, 4)
        (first,) = torch.autograd.grad(
            function(logits, 3).square().sum(), logits, create_graph=True
        )
        results.append([first.detach(), *torch.autograd.grad(first.square().sum(), logits)])
    torch.testing.assert_close(*results)


def test_two_by_two_by_hand():
    logits = torch.tensor([[[4.0, 1.0], [1.0, 4.0]]]).log()
    torch.testing.assert_close(sinkhorn(logits, 1), torch.tensor([[[0.8, 0.2], [0.2, 0.8]]]))


def test_rows_and_columns_sum_to_one():
    matrix = sinkhorn(draw(9, 4), 50)
    ones = torch.ones(9, 4, dtype=torch.float64)
    torch.testing.assert_close(matrix.sum(-1), ones)
    torch.testing.assert_close(matrix.sum(-2), ones, rtol=0, atol=1e-3)


def test_large_logits_do_not_overflow():
    matrix = sinkhorn(torch.full((1, 3, 3), 500.0), 3)
    torch.testing.assert_close(matrix, torch.full((1, 3, 3), 1 / 3))
