"""LIMe in forty lines of PyTorch: attention reads the keys and values of all earlier layers.

The mechanism of arXiv 2502.09245 alone, trained for seconds on the bytes of this file. It has no
positions, no cache and no grouped queries.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


class Router(nn.Module):
    """Gives each head a key and a value: a learned sum over the heads of all layers so far."""

    def __init__(self, heads, layers):
        super().__init__()
        bound = (3 / (heads * layers)) ** 0.5
        earlier = torch.empty(heads, heads * (layers - 1)).uniform_(-bound, bound)
        # The own layer is the last source, and begins as the identity.
        self.weight = nn.Parameter(torch.cat([earlier, torch.eye(heads)], dim=1))

    def forward(self, slots):
        """Sum slots, one for each layer, [batch, heads, tokens, key and value]."""
        return torch.einsum("rs,bste->brte", self.weight, torch.cat(slots, dim=1))


class Layer(nn.Module):
    """Attention on routed keys and values, and an mlp."""

    def __init__(self, width, heads, index):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(up, nn.GELU(), down)
        # The first layer has nothing else to read.
        self.router = Router(heads, index + 1) if index else None

    def forward(self, x, slots):
        qkv = self.qkv(F.rms_norm(x, x.shape[-1:])).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, slot = qkv.tensor_split([qkv.shape[-1] // 3], dim=-1)
        slots.append(slot)
        key, value = (self.router(slots) if self.router else slot).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))


class Decoder(nn.Module):
    """Embedding, layers and head; the slots of a forward are a list that every layer extends."""

    def __init__(self, vocabulary=256, width=32, heads=4, layers=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, i) for i in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x, slots = self.embedding(ids), []
        for layer in self.layers:
            x = layer(x, slots)
        return self.head(x)


def main(steps=100, block=64):
    torch.manual_seed(0)
    model, text = Decoder(), torch.tensor(list(Path(__file__).read_bytes()))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(steps):
        starts = torch.randint(len(text) - block, (8, 1))
        ids = text[starts + torch.arange(block + 1)]
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows, columns = model.layers[-1].router.weight.shape
    print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}; last router: {rows} x {columns} weights")


if __name__ == "__main__":
    main()
