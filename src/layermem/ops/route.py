"""Routing over depth: a layer attends to a weighted sum of the slots of all layers so far.

    out_l = W_l [slot_0; ...; slot_l]                                               (equation (2))

``naive`` is this line. Where all routers are at hand when a forward begins (``begin``), its layers
share a buffer, keys beside values, C = 2 B T E (each product is two of C / 2 columns where values
have routers of their own):

    X [L R, C]      the slots of all layers
    W [L R, L R]    their routers, zero for what a layer does not read
    D [L R, C]      the gradients of their routes

    forward,  layer l:   X[l] = slot_l;      out_l    = W[l, :l+1] @ X[:l+1]     one product
    backward, layer l:   D[l] = d out_l;     d slot_l = W[l:, l]^T @ D[l:]       one product
    backward, begin:                         d W      = D @ X^T                  one product in all

A layer takes X from the layer before it, writes its slot and hands X on, so that X has one reader.
By convention the gradient of X is D: autograd's own chain hands D down, and each layer writes its
rows before it reads those of the layers above. X comes down as the gradient of a token, a tensor of
its shape without memory. So a layer has as many edges in a deep model as in a shallow one.

On a CPU, where no sum is rounded to half precision, the two products are cut in groups of layers,
so that a layer reads no slot of another group; the layers a to b - 1 are one group:

    forward,  layer a:       P = W[a:b, :a] @ X[:a];        out_l    = P_l + W[l, a:l+1] @ X[a:l+1]
    backward, layer b - 1:   Q = W[b:, a:b]^T @ D[b:];      d slot_l = Q_l + W[l:b, l]^T @ D[l:b]

P goes up from layer to layer beside X, and Q comes down as its gradient.

A pass that begins below the last layer (a loss on hidden states) is handed nothing: each layer then
adds its slot to a new X, of which it has kept a view. Compiled layers keep none, and do not share a
buffer where somebody looks at what they return.

Letters: L layers, S slots of a route, R rows of a router (heads, or one), B batch, T tokens, E head
width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from layermem.ops.gradients import autocast_disabled
from layermem.ops.rows import lower_product, new_rows

if TYPE_CHECKING:
    from layermem.ops.shared_buffer import Slots

Slot = tuple[Tensor, Tensor]
"""The key and the value of one layer before rope, [B, heads, T, E] each."""
Router = tuple[Tensor, ...]
"""The weight of keys and values, or one of keys and one of values."""


def route(
    slots: "Sequence[Slot] | Slots", weight: Tensor, value_weight: Tensor | None = None
) -> Slot:
    """Compute the weighted sum of slots, ``out[h] = sum_{s, g} weight[h, s * R + g] * slot_s[g]``.

    ``slots`` are S pairs (key, value) of shape [B, R, T, E]; ``weight`` is [R, S * R], slot major,
    head minor, or [1, S], a scalar a slot for all of its heads. It is applied to keys, and to
    values unless they have a ``value_weight`` of that shape. Returns (key, value), each
    [B, R, T, E]. Slots of a shared buffer (``shared_buffer.Slots``) route themselves.
    """
    if not isinstance(slots, (tuple, list)):
        return cast("Slots", slots).route()
    value_weight = weight if value_weight is None else value_weight
    _check_shapes(slots, weight, value_weight)
    keys, values = zip(*slots, strict=True)
    return naive(keys, weight), naive(values, value_weight)


def naive(parts: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Return W [slot_0; ...; slot_(S-1)] of the keys or of the values of slots."""
    rows, (batch, _, tokens, width) = weight.shape[1] // len(parts), parts[0].shape
    stacked = torch.cat([part.transpose(0, 1).reshape(rows, -1) for part in parts])
    with autocast_disabled(stacked):
        out = weight.to(stacked.dtype) @ stacked
    return out.view(-1, batch, tokens, width).transpose(0, 1)


class Place(NamedTuple):
    """Where a layer is among those that share a buffer."""

    layer: int
    layers: int
    rows: int
    group: int  # how many layers a group has
    first_read: int  # the first layer that it reads
    routes: bool
    is_last: bool

    @property
    def n_handed(self) -> int:
        """How many tensors a layer is handed: X and its token, and P if there are groups."""
        return 3 if self.group < self.layers else 2

    def all_rows(self) -> tuple[slice, slice, slice]:
        """Return the rows of the layer, those of its group, and of the layer among these."""
        own = slice(self.layer * self.rows, (self.layer + 1) * self.rows)
        first = (self.layer - self.layer % self.group) * self.rows
        near = slice(first, first + self.group * self.rows)
        return own, near, slice(own.start - first, own.stop - first)


class Begin(torch.autograd.Function):
    """Make X, its token, and P if there are groups; in the backward, the routers' gradients."""

    # No *weights: dynamo takes a forward with as many tensors as it has names for one without ctx.
    @staticmethod
    def forward(ctx: Any, sizes: Any, w: Tensor, value_w: Tensor | None) -> tuple[Tensor, ...]:
        columns, group, dtype = sizes
        ctx.dtype, ctx.n_weights, ctx.group = w.dtype, 1 if value_w is None else 2, group
        x = new_rows(w, len(w), columns, dtype)
        token = x.new_zeros(())
        return x, token.expand_as(x), *([token.expand(group, columns)] if group < len(w) else [])

    @staticmethod
    def backward(ctx: Any, d: Tensor, x: Tensor, *_: Any) -> Any:
        parts = zip(parts_of(d, ctx.n_weights), parts_of(x, ctx.n_weights), strict=True)
        with autocast_disabled(x):
            grads = [lower_product(*part, ctx.group).to(ctx.dtype) for part in parts]
        return None, *(*grads, None)[:2]


class Layer(torch.autograd.Function):
    """Write the slot of a layer into X, and route; the last layer hands nothing on."""

    @staticmethod
    def forward(ctx: Any, at: Place, x: Tensor, token: Tensor, *others: Tensor) -> Any:
        p, w = others[: at.n_handed - 2], others[at.n_handed - 2 : -2]
        shape, (own, near, place) = others[-1].shape, at.all_rows()
        x, slot = _put(x, own, others[-2:], shape)
        compiling = torch.compiler.is_compiling()
        if not compiling:
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(*w, *((x,) if at.is_last else () if compiling else slot))
        ctx.at, ctx.n_weights, ctx.shape = at, len(w), shape
        read = slice(max(at.first_read * at.rows, near.start), own.stop)
        routed: tuple[Tensor, ...] = ()
        with autocast_disabled(x):
            if near.start and own.start == near.start:
                p = (far_rows([part[near, : near.start] for part in w], x[: near.start]),)
            if at.routes:
                # Two tensors: attention keeps the value, and of the key but what rope makes of it.
                rows, far = [part[own, read] for part in w], p[0][place] if near.start else None
                routed = _near((rows[0], rows[-1]), x[read], far, shape)
        return routed if at.is_last else (x, token, *p, *routed)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        if torch.is_grad_enabled() and not compiling:
            raise RuntimeError(
                "routing on a shared buffer has no second derivatives (create_graph=True); run the "
                "forward and the backward inside layermem.ops.shared_buffer.using_naive()"
            )
        # Asked for once: a checkpoint computes them again then.
        at, saved, (own, near, place) = ctx.at, ctx.saved_tensors, ctx.at.all_rows()
        w, kept = saved[: ctx.n_weights], saved[ctx.n_weights :]
        came = (None, *kept) if at.is_last else grads[: at.n_handed]
        d, x, q = (*came, None)[:3]
        if d is None:
            # The pass begins here. Below the last layer, the rows of those above are zero.
            sizes = at.layers * at.rows, 2 * ctx.shape.numel() // at.rows
            d = new_rows(kept[0], *sizes)
            # Anomaly detection looks at all rows, which layers write one after the other.
            if not at.is_last or (not compiling and torch.is_anomaly_enabled()):
                d.zero_()
            x = x if at.is_last else new_rows(d, *sizes).zero_()
        if kept and not at.is_last:
            pointers = {part.untyped_storage().data_ptr() for part in (x, kept[0])}
            # This X is new, as a pass began below the last layer, or the slot is a copy.
            x = x if len(pointers) == 1 else _put(x, own, kept, ctx.shape)[0]
        d, _ = _put(d, own, grads[-2:] if at.routes else (None, None), ctx.shape)
        readers = slice(own.start if at.routes else own.stop, near.stop)
        d_slot: tuple[Tensor | None, ...] = (None, None)
        with autocast_disabled(d):
            if own.stop == near.stop < len(w[0]):
                q = far_rows([part[near.stop :, near].t() for part in w], d[near.stop :])
            if any(ctx.needs_input_grad[-2:]):
                rows = [part[readers, own].t() for part in w]
                far = None if q is None else q[place]
                d_slot = _near(rows, d[readers], far, ctx.shape, in_place=not compiling)
        # The layer below the first one of a group has a Q of its own.
        handed = (d, x, q if own.start > near.start else None)[: at.n_handed]
        return None, *handed, *(None,) * ctx.n_weights, *d_slot


def parts_of(x: Tensor, n_weights: int) -> tuple[Tensor, ...]:
    """Return what each weight is applied to: all columns, or those of keys and those of values."""
    return (x,) if n_weights == 1 else x.chunk(2, dim=1)


def far_rows(w: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return P or Q, what comes from other groups."""
    out = new_rows(x, len(w[0]), x.shape[1])
    for weight, rows, part in zip(w, parts_of(x, len(w)), parts_of(out, len(w)), strict=True):
        part.addmm_(weight, rows, beta=0)
    return out


def _near(
    w: Sequence[Tensor], x: Tensor, far: Tensor | None, shape: torch.Size, in_place: bool = False
) -> Slot:
    """Return W @ X and what comes from other groups, as a key and a value."""
    parts = parts_of(x, len(w))
    if far is None:
        out = [weight @ part for weight, part in zip(w, parts, strict=True)]
    else:
        add = Tensor.addmm_ if in_place else torch.addmm
        out = [add(*each) for each in zip(parts_of(far.data, len(w)), w, parts, strict=True)]
    key, value = (slot for rows in out for slot in _as_slots(rows, shape))
    return key, value


def _put(
    x: Tensor, own: slice, parts: Sequence[Tensor | None], shape: torch.Size
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """Write key and value, or their gradients, [B, R, T, E], into a layer's own rows; return X and
    what is there. No gradient is zero. A compiler writes in place too."""
    if torch.compiler.is_compiling():
        # Inductor writes `index_put` in place, and for `slice_scatter` rewrites the whole buffer.
        halves = x.reshape(2 * len(x), -1)
        for half, part in enumerate(parts):
            at = torch.arange(2 * own.start + half, 2 * own.stop, 2, device=x.device)
            rows = x.new_zeros(()) if part is None else part.transpose(0, 1).reshape(len(at), -1)
            halves = torch.index_put(halves, (at,), rows)
        return halves.view_as(x), parts
    # `data` has a version of its own: writing a later slot is no change of those that are saved.
    slot = _as_slots(x.data[own], shape)
    for there, part in zip(slot, parts, strict=True):
        there.zero_() if part is None else there.copy_(part)
    return x.data, slot


def _as_slots(rows: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """Return a layer's rows, of key and value or of one of them, as views [B, R, T, E]."""
    batch, heads, tokens, width = shape
    if len(rows) == 1:  # of all heads
        return rows.view(-1, heads, batch, tokens, width).transpose(1, 2).unbind()
    return rows.view(heads, -1, batch, tokens, width).permute(1, 2, 0, 3, 4).unbind()


def _check_shapes(slots: Sequence[Slot], *weights: Tensor) -> None:
    """Raise ``ValueError`` if slots differ in shape, or if a weight does not fit them."""
    shapes, count = [tuple(part.shape) for slot in slots for part in slot], len(slots)
    if not shapes or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"route needs slots, pairs of key and value, of one shape, got {shapes}")
    columns = count * shapes[0][1]
    for shape in (tuple(weight.shape) for weight in weights):
        if shape != (1, count) and (len(shape) != 2 or shape[1] != columns):
            raise ValueError(
                f"a weight must have {columns} columns, or be [1, {count}]: {[*shape]}"
            )
