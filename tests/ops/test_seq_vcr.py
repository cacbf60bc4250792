"""Seq-VCR's terms against the equations written out, one pair of features at a time."""

import math

import pytest
import torch

from layermem.ops.seq_vcr import variance_and_covariance


def literal(x, weight, real):
    """Return both terms, by loops."""
    n_features, positions = len(weight), 0
    variance = covariance = 0.0
    for t in range(x.shape[1]):
        rows = [b for b in range(len(x)) if real[b, t]]
        if len(rows) < 2:
            continue
        positions += 1
        z = [weight @ x[b, t] for b in rows]
        mean = sum(z) / len(z)
        c = torch.zeros(n_features, n_features, dtype=x.dtype)
        for row in z:
            for k in range(n_features):
                for other in range(n_features):
                    c[k, other] += (row - mean)[k] * (row - mean)[other] / (len(z) - 1)
        for k in range(n_features):
            variance += max(0.0, 1 - math.sqrt(c[k, k] + 1e-3))
            covariance += sum(float(c[k, other]) ** 2 for other in range(n_features) if other != k)
    return variance / (positions * n_features), covariance / (positions * n_features)


def inputs(sequences, positions=5, width=6, features=7, lengths=None):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(sequences, positions, width, generator=draw, dtype=torch.float64)
    weight = torch.randn(features, width, generator=draw, dtype=torch.float64) * 0.5
    lengths = torch.tensor(lengths or [positions] * sequences)
    return x, weight, torch.arange(positions) < lengths[:, None]


CASES = {
    "fewer sequences than features": {"sequences": 3},
    "more sequences than features": {"sequences": 11, "features": 2},
    "two sequences": {"sequences": 2, "positions": 1},
    "padded": {"sequences": 4, "lengths": [5, 2, 3, 1]},
}


@pytest.mark.parametrize("chunk", [None, 1, 2], ids=["whole", "one by one", "two by two"])
@pytest.mark.parametrize("name", CASES)
def test_the_terms_are_those_of_the_equations(name, chunk):
    x, weight, real = inputs(**CASES[name])
    # Padding must not be read.
    x = x.masked_fill(~real[..., None], 1e6)
    got = variance_and_covariance(x, weight, real, chunk=chunk)
    assert [float(term) for term in got] == pytest.approx(literal(x, weight, real), abs=1e-12)


@pytest.mark.parametrize("chunk", [None, 2], ids=["whole", "two by two"])
def test_gradients_are_those_of_finite_differences(chunk):
    x, weight, real = inputs(**CASES["padded"])

    def total(x, weight):
        variance, covariance = variance_and_covariance(x, weight, real, chunk=chunk)
        return variance + 0.3 * covariance

    assert torch.autograd.gradcheck(total, (x.requires_grad_(), weight.requires_grad_()))
    x.grad = None
    total(x, weight).backward()
    assert (x.grad[~real] == 0).all()


def test_positions_that_fewer_than_two_sequences_reach_count_nothing():
    x, weight, real = inputs(4, lengths=[0, 0, 0, 1])
    terms = variance_and_covariance(x.requires_grad_(), weight, real)
    assert [term.item() for term in terms] == [0.0, 0.0]
    sum(terms).backward()
    assert (x.grad == 0).all()


def test_half_precision_is_computed_in_float32():
    x, weight, real = inputs(**CASES["padded"])
    # Exact in bfloat16, their squares are not.
    x, weight = x.bfloat16(), weight.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got = variance_and_covariance(x, weight, real)
    assert {term.dtype for term in got} == {torch.float32}
    expected = variance_and_covariance(x.double(), weight.double(), real)
    torch.testing.assert_close(torch.stack(got).double(), torch.stack(expected))


def test_one_sequence_is_refused():
    with pytest.raises(ValueError, match="needs at least 2 of them, got 1"):
        variance_and_covariance(*inputs(1))


def largest_tensor(chunk):
    """Return the numbers of the largest tensor that a forward and a backward keep at once."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.numbers = max(self.numbers, tensor.numel())
            return out

    x, weight, real = inputs(3, positions=32, width=2, features=16)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    with Largest() as seen:
        sum(variance_and_covariance(x, weight, real, chunk=chunk)).backward()
    return seen.numbers


def test_no_more_than_a_chunk_of_features_is_made_at_once():
    # Never [K, K] for a position, which would be 256 numbers each.
    assert largest_tensor(None) == 3 * 32 * 16
    # The gradient of x is larger than the features of 4 positions.
    assert largest_tensor(4) == 3 * 4 * 16 == 3 * 32 * 2
