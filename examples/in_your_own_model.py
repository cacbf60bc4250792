"""A GPT of your own that takes a memory and a stream of layermem: the two seams in a plain loop.

    python examples/in_your_own_model.py
    python examples/in_your_own_model.py --memory lime --stream mudd --compile --checkpoint

Trains on its own source text, by bytes, once as it is and once with each wiring: seconds on a CPU,
half a minute or more a wiring with ``--compile``. Nothing of the model is ours but what
``layermem.Seams`` returns. A layer hands its slot on as a tuple, so that memories route by the
naive sum: autograd's own gradients, whichever layers the loss reads.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import layermem


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, memory, slots):
        # A connection may return three inputs, for queries, keys and values.
        inputs = x if isinstance(x, tuple) else (x, x, x)
        parts = zip((self.q, self.k, self.v), inputs, strict=True)
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p, x in parts)
        own = k, v
        k, v = memory(q, (*slots, own))  # before rope
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2)), own


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, inner = Attention(width, heads), 4 * width
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, state, slots, memory, connections):
        x, carry = connections[0].read(state, self.norms[0])
        y, own = self.attention(x, memory, slots)
        state = connections[0].write(carry, y)
        x, carry = connections[1].read(state, self.norms[1])
        return connections[1].write(carry, self.mlp(x)), own


class GPT(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, seams: layermem.Seams) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(256, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 256, bias=False)
        self.seams = seams

    def forward(self, ids: Tensor, recompute: bool = False) -> Tensor:
        seams, slots = self.seams, []
        state = seams.stream.begin(self.embed(ids))
        for i, layer in enumerate(self.layers):
            read = tuple(slots[j] for j in seams.sources[i])
            inputs = state, read, seams.memories[i], seams.connections[i]
            if recompute:
                state, own = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                state, own = layer(*inputs)
            slots.append(own)
        return self.head(self.norm(seams.stream.end(state)))

    def groups(self, weight_decay: float = 0.1) -> list[dict]:
        """Return parameter groups: those of the variant have its settings."""
        groups = []
        for module in self.modules():
            for name, weight in module.named_parameters(recurse=False):
                decay = weight_decay if weight.ndim > 1 else 0.0
                group = {"params": [weight], "weight_decay": decay}
                for override in self.seams.overrides:
                    if override.applies_to(module, name):
                        settings = {"lr": override.lr, "weight_decay": override.weight_decay}
                        group |= {key: x for key, x in settings.items() if x is not None}
                groups.append(group)
        return groups


def build(wiring: str = "plain", width=64, heads=4, layers=4, **fields) -> GPT:
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    torch.manual_seed(0)
    return GPT(width, heads, layers, layermem.Seams(wiring, **sizes, **fields))


def train(model: GPT, steps: int, compiled: bool = False, recompute: bool = False) -> list[float]:
    text = torch.tensor(list(Path(__file__).read_bytes()))
    optimizer = torch.optim.AdamW(model.groups(), lr=2e-3)
    forward, losses = torch.compile(model) if compiled else model, []
    draws = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(len(text) - 64, (8, 1), generator=draws)
        ids = text[starts + torch.arange(65)]
        loss = F.cross_entropy(forward(ids[:, :-1], recompute).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="lime", help="variant of the memory, or plain")
    parser.add_argument("--stream", default="mudd", help="variant of the stream, or plain")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    options = parser.parse_args()
    parts = [name for name in (options.memory, options.stream) if name != "plain"]
    for wiring in dict.fromkeys(("plain", *parts, "+".join(parts) or "plain")):
        losses = train(build(wiring), options.steps, options.compile, options.checkpoint)
        print(f"{wiring:12} loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
