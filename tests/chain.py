"""A chain of layers that route, as a model has it, for tests of buffers."""

import torch
from torch import nn

from layermem.ops.route import naive
from layermem.ops.route.groups import GroupBuffer

HEADS = 3
# Without gradients, tokens enough for groups to be used.
MANY = 600


class Depth(nn.Module):
    """A chain as a model has it: every layer keeps a slot, and all but some route the slots so far.

    ``group_size`` None: by ``naive.route``. ``rows`` of each weight: those of heads, or one.
    """

    buffer = GroupBuffer

    def __init__(self, depth=7, width=5, heads=HEADS, without=(0,), apart=(), rows=None):
        super().__init__()
        rows = rows or heads
        torch.manual_seed(0)
        self.width, self.heads = width, heads
        inner = heads * width
        self.keys = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))
        self.values = nn.ModuleList(nn.Linear(inner, inner) for _ in range(depth))
        self.weights = nn.ParameterDict(
            {
                str(i): torch.randn(rows, rows * (i + 1)) / (i + 1)
                for i in range(depth)
                if i not in without
            }
        )
        # Layers whose values have a router of their own.
        self.value_weights = nn.ParameterDict(
            {str(i): torch.randn(rows, rows * (i + 1)) / (i + 1) for i in apart}
        )
        # Float64 unless a test says otherwise: two orders of one sum differ, a mistake more.
        self.double()

    def forward(self, x, group_size=None, all_layers=False):
        names = map(str, range(len(self.keys)))
        routers = [(self.weights.get(i), self.value_weights.get(i)) for i in names]
        routers = [tuple(w for w in router if w is not None) or None for router in routers]
        slots = [] if group_size is None else self.buffer(routers, group_size)
        outputs = []
        for i, router in enumerate(routers):
            key, value = (
                p(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
                for p in (self.keys[i], self.values[i])
            )
            slots.append(key, value) if group_size else slots.append((key, value))
            key, value = slots[-1]
            if router is not None:
                key, value = slots.route(*router) if group_size else naive.route(slots, *router)
            # Autograd saves both of them, as attention does.
            x = x + torch.tanh(key * (2 + value)).transpose(1, 2).flatten(2)
            outputs.append(x)
        return outputs if all_layers else x


def an_input(batch=2, tokens=7, width=5, heads=HEADS, dtype=torch.float64):
    x = torch.randn(batch, tokens, heads * width, generator=torch.Generator().manual_seed(3))
    return x.to(dtype).requires_grad_()


def tensors_of(model, x):
    return [t for t in (x, *model.parameters()) if t.requires_grad]


def outcome(model, x, group_size):
    """Return output and all gradients."""
    y = model(x, group_size)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), tensors_of(model, x))]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b)
