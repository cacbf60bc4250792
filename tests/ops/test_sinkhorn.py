"""Sinkhorn: equal to dividing a matrix round by round; rows and columns sum to one."""

import pytest
import torch

from layermem.ops.sinkhorn import sinkhorn


def draw(count, n, spread=2.0):
    generator = torch.Generator().manual_seed(count + n)
    logits = torch.randn(count, n, n, generator=generator, dtype=torch.float64) * spread
    return logits.requires_grad_()


def divide_in_turn(logits, rounds):
    matrix = logits.exp()
    for _ in range(rounds):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


@pytest.mark.parametrize("rounds", [1, 20])
@pytest.mark.parametrize(("count", "n"), [(5, 4), (1, 1), (33, 3)])
def test_it_is_dividing_in_turn(count, n, rounds):
    logits = draw(count, n)
    weight = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    got, expected = sinkhorn(logits, rounds), divide_in_turn(logits, rounds)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.no_grad()(sinkhorn)(logits, rounds), expected)
    (ours,), (theirs,) = (torch.autograd.grad((x * weight).sum(), logits) for x in (got, expected))
    torch.testing.assert_close(ours, theirs)


def test_rows_and_columns_sum_to_one():
    matrix, ones = sinkhorn(draw(9, 4), 50), torch.ones(9, 4, dtype=torch.float64)
    torch.testing.assert_close(matrix.sum(-1), ones)
    torch.testing.assert_close(matrix.sum(-2), ones, rtol=0, atol=1e-3)


def test_large_logits_do_not_overflow():
    matrix = sinkhorn(torch.full((1, 3, 3), 500.0), 3)
    torch.testing.assert_close(matrix, torch.full((1, 3, 3), 1 / 3))
