"""A chain of layers that route, as a model has it, for tests of the buffer that layers share."""

import torch
from torch import nn

from layermem.ops import shared_buffer as room
from layermem.ops.route import route

HEADS = 3


class Depth(nn.Module):
    """Every layer has a slot, and all, or all but the first, route the slots that they read.

    ``rows`` of each weight: those of heads, or one. ``run`` calls a layer, as a checkpoint does.
    """

    # Whether a loss may leave out the last layers.
    may_end_early = False

    def __init__(
        self, depth=7, width=5, heads=HEADS, without=(0,), apart=(), rows=None, sources=None
    ):
        super().__init__()
        rows = rows or heads
        torch.manual_seed(0)
        self.width, self.heads = width, heads
        self.sources = sources or [range(i + 1) for i in range(depth)]
        inner, depth = heads * width, len(self.sources)
        self.keys = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))
        self.values = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))

        def draw(i):
            return torch.randn(rows, rows * len(self.sources[i])) / (i + 1)

        self.weights = nn.ParameterDict({str(i): draw(i) for i in range(depth) if i not in without})
        # Layers whose values have a router of their own.
        self.value_weights = nn.ParameterDict({str(i): draw(i) for i in apart})
        # Float64 unless a test says otherwise: two orders of one sum differ, a mistake more.
        self.double()

    def routers(self):
        both = dict.fromkeys(range(len(self.keys)), (self.weights, self.value_weights))
        routers = {i: [part[str(i)] for part in of if str(i) in part] for i, of in both.items()}
        return {i: tuple(router) or None for i, router in routers.items()}

    def begin(self, x):
        own = dict(enumerate(self.sources))
        return room.begin(self.routers(), own, x, may_end_early=self.may_end_early)

    def layer(self, i, x, shared, *given):
        """Return (x, *what the layer hands on): its slot, or what it hands on of the buffer."""
        router = self.routers()[i]
        key, value = (
            p(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
            for p in (self.keys[i], self.values[i])
        )
        if shared is not None:
            slots = shared.slots(i, given)
            slots.append(key, value)
        else:
            slots = [*zip(given[::2], given[1::2], strict=True), (key, value)]
        own = key, value
        if router is not None:
            key, value = route(slots, *router)
        # Autograd saves both of them, as attention does.
        x = x + torch.tanh(key * (2 + value)).transpose(1, 2).flatten(2)
        return x, *(own if shared is None else slots.handed)

    def forward(self, x, shares=True, all_layers=False, run=None):
        shared = self.begin(x) if shares else None
        handed, slots, outputs = shared.handed if shared else (), [], []
        for i, own in enumerate(self.sources):
            given = handed if shared else [t for j in own if j < i for t in slots[j]]
            arguments = i, x, shared, *given
            x, *handed = run(self.layer, *arguments) if run else self.layer(*arguments)
            slots.append(handed)
            outputs.append(x)
        return outputs if all_layers else x


def an_input(batch=2, tokens=7, width=5, heads=HEADS, dtype=torch.float64):
    x = torch.randn(batch, tokens, heads * width, generator=torch.Generator().manual_seed(3))
    return x.to(dtype).requires_grad_()


def tensors_of(model, x):
    return [t for t in (x, *model.parameters()) if t.requires_grad]


def outcome(model, x, shares=True, of=None, **options):
    """Return output and all gradients; ``of`` is the model whose parameters are meant."""
    y = model(x, shares, **options)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), tensors_of(of or model, x))]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(a, b)
