"""mHC: the initial coefficients, and that streams separate."""

import torch
from tiny import TINY

import layermem


def test_the_start_reads_half_of_one_stream_and_writes_one():
    model, found = layermem.build("mhc", **TINY).double(), []
    for layer in model.model.layers:
        for connection in (layer.attn_connection, layer.mlp_connection):
            connection.weights.register_forward_hook(lambda *a: found.append(a[2][0]))
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    for k, weights in enumerate(found):
        reads = torch.full((4,), 1 / 6, dtype=torch.float64)
        reads[k % 4] = 1 / 2
        torch.testing.assert_close(weights[0], reads, rtol=0, atol=1e-6)
        torch.testing.assert_close(weights[-1], torch.ones_like(reads))
        torch.testing.assert_close(weights[1:-1], torch.eye(4).double(), rtol=0, atol=1.1e-3)


def test_streams_separate_and_every_coefficient_is_learned():
    """In float64 a gradient that is zero but for rounding is far below the others."""
    torch.manual_seed(0)
    model = layermem.build("mhc", **TINY).double().train()
    ids = torch.randint(61, (3, 11), generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimiser.step()
    n = 4
    for i, layer in enumerate(model.model.layers):
        for k, connection in ((2 * i, layer.attn_connection), (2 * i + 1, layer.mlp_connection)):
            parts = [n, n, n * n] if 0 < k < 7 else [n, n]
            grads = [connection.projection.weight.grad, connection.weights.bias.grad]
            for grad in (*grads, connection.weights.scale.grad):
                pieces = grad.split(parts) if len(grad) > 3 else grad.split(1)
                assert all(piece.abs().max() > 1e-16 for piece in pieces), (k, grad.shape)
