"""Routing over depth: a layer attends to a weighted sum of the slots of all layers so far.

    out_l = W_l [slot_0; ...; slot_l]                                               (equation (2))

``naive`` is this line. Where all routers are at hand when a forward begins (``begin``), its layers
share a buffer. Of keys, and of values, with C = B T E:

    X [L R, C]      the slots of all layers
    W [L R, L R]    their routers, zero for what a layer does not read
    D [L R, C]      the gradients of their routes

    forward,  layer l:   X[l] = slot_l;      out_l    = W[l, :l+1] @ X[:l+1]     one product
    backward, layer l:   D[l] = d out_l;     d slot_l = W[l:, l]^T @ D[l:]       one product
    backward, begin:                         d W      = D @ X^T                  one product in all

A layer takes X from the layer before it, writes its slot and hands X on, so that X has one reader.
By convention the gradient of X is D: autograd's own chain hands D down, and each layer writes its
rows before it reads those of the layers above. X itself comes down as the gradient of a token, a
tensor of its shape that takes no memory. So a layer has as many edges in a deep model as in a
shallow one, and the begin gets what the gradients of all routers need.

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
from layermem.ops.rows import lower_product, new_rows, product

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
    rows = weight.shape[1] // len(parts)
    stacked = torch.cat([part.transpose(0, 1).reshape(rows, -1) for part in parts])
    with autocast_disabled(stacked):
        return _as_slot(weight.to(stacked.dtype) @ stacked, parts[0].shape)


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
        """How many tensors a layer is handed: X and its tokens, and P if there are groups."""
        return 6 if self.group < self.layers else 4

    def all_rows(self) -> tuple[slice, slice, slice]:
        """Return the rows of the layer, those of its group, and of the layer among these."""
        own = slice(self.layer * self.rows, (self.layer + 1) * self.rows)
        first = (self.layer - self.layer % self.group) * self.rows
        near = slice(first, first + self.group * self.rows)
        return own, near, slice(own.start - first, own.stop - first)


class Begin(torch.autograd.Function):
    """Make X, its tokens, and P if there are groups; in the backward, the routers' gradients."""

    # No *weights: dynamo takes a forward with as many tensors as it has names for one without ctx.
    @staticmethod
    def forward(
        ctx: Any,
        columns: int,
        group: int,
        dtypes: tuple[torch.dtype, ...],
        weight: Tensor,
        value_weight: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.dtype, ctx.is_one, ctx.group = weight.dtype, value_weight is None, group
        x = [new_rows(weight, len(weight), columns, dtype) for dtype in dtypes]
        p = [part.new_zeros(()).expand(group, columns) for part in x] if group < len(weight) else []
        return *x, *(part.new_zeros(()).expand_as(part) for part in x), *p

    @staticmethod
    def backward(ctx: Any, d_k: Tensor, d_v: Tensor, x_k: Tensor, x_v: Tensor, *_: Any) -> Any:
        with autocast_disabled(x_k):
            grads = [lower_product(d, x, ctx.group) for d, x in ((d_k, x_k), (d_v, x_v))]
        if not ctx.is_one:
            return None, None, None, *(grad.to(ctx.dtype) for grad in grads)
        # Products in half precision are not added there.
        wide = torch.promote_types(ctx.dtype, torch.float32)
        return None, None, None, (grads[0].to(wide) + grads[1].to(wide)).to(ctx.dtype), None


class Layer(torch.autograd.Function):
    """Write the slot of a layer into X, and route; the last layer hands nothing on."""

    @staticmethod
    def forward(
        ctx: Any, at: Place, x_k: Tensor, x_v: Tensor, t_k: Tensor, t_v: Tensor, *others: Tensor
    ) -> tuple[Tensor, ...]:
        p, w = [*others[: at.n_handed - 4]], others[at.n_handed - 4 : -2]
        shape = others[-1].shape
        own, near, place = at.all_rows()
        x, slot = _put_both((x_k, x_v), own, others[-2:], shape)
        compiling = torch.compiler.is_compiling()
        if not compiling:
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(*w, *(x if at.is_last else () if compiling else slot))
        ctx.at, ctx.n_weights, ctx.shape = at, len(w), shape
        read, routed = slice(max(at.first_read * at.rows, near.start), own.stop), []
        # Of keys, i = 0, and of values; w[-i] is the weight of the part, or the one for both.
        with autocast_disabled(x_k):
            if near.start and own.start == near.start:
                p = [product(w[-i][near, : near.start], x[i][: near.start]) for i in (0, 1)]
            for i in (0, 1) if at.routes else ():
                total, row = p[i][place] if near.start else None, w[-i][own, read]
                total = row @ x[i][read] if total is None else torch.addmm(total, row, x[i][read])
                routed.append(_as_slot(total, shape))
        return tuple(routed) if at.is_last else (*x, t_k, t_v, *p, *routed)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "routing on a shared buffer has no second derivatives (create_graph=True); run the "
                "forward and the backward inside layermem.ops.shared_buffer.using_naive()"
            )
        # Asked for once: a checkpoint computes them again then.
        at, saved = ctx.at, ctx.saved_tensors
        w, kept = saved[: ctx.n_weights], saved[ctx.n_weights :]
        own, near, place = at.all_rows()
        d: Any = grads[:2]
        x: Any = grads[2:4]
        q: Any = grads[4:6] if at.n_handed == 6 and not at.is_last else (None, None)
        if at.is_last or d[0] is None:
            # The pass begins here. Below the last layer, the rows of those above are zero.
            sizes = at.layers * at.rows, ctx.shape.numel() // at.rows
            # Anomaly detection looks at all rows, which layers write one after the other.
            compiling = torch.compiler.is_compiling()
            zero = not at.is_last or (not compiling and torch.is_anomaly_enabled())
            d = [new_rows(part, *sizes) for part in kept]
            x = kept if at.is_last else [new_rows(part, *sizes).zero_() for part in kept]
            d = [part.zero_() for part in d] if zero else d
        if (
            not at.is_last
            and kept
            and kept[0].untyped_storage().data_ptr() != x[0].untyped_storage().data_ptr()
        ):
            # This X is new, as a pass began below the last layer, or the slot is a copy.
            x, _ = _put_both(x, own, kept, ctx.shape)
        d, _ = _put_both(d, own, grads[-2:] if at.routes else (None, None), ctx.shape)
        readers = slice(own.start if at.routes else own.stop, near.stop)
        d_slot: list[Tensor | None] = [None, None]
        with autocast_disabled(d[0]):
            if own.stop == near.stop < len(w[0]):
                q = [product(w[-i][near.stop :, near].t(), d[i][near.stop :]) for i in (0, 1)]
            for i in (0, 1):
                if ctx.needs_input_grad[i - 2]:
                    total, columns = q[i], w[-i][readers, own].t()
                    if total is None:
                        total = columns @ d[i][readers]
                    else:
                        # In place: this pass has made Q, and reads the layer's rows once.
                        total = total.data[place].addmm_(columns, d[i][readers])
                    d_slot[i] = _as_slot(total, ctx.shape)
        # The layer below the first one of a group has a Q of its own.
        handed = (*d, *x, *(q if own.start > near.start else (None, None)))[: at.n_handed]
        return None, *handed, *(None,) * ctx.n_weights, *d_slot


def _put_both(
    buffers: Sequence[Tensor], own: slice, parts: Sequence[Tensor | None], shape: torch.Size
) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """Write key and value, or their gradients, [B, R, T, E], into a layer's own rows; return the
    buffers and what is there. No gradient is zero. A compiler writes in place too."""
    if torch.compiler.is_compiling():
        # Inductor writes `index_put` in place, and for `slice_scatter` rewrites the whole buffer.
        at = torch.arange(own.start, own.stop, device=buffers[0].device)
        rows = [
            b.new_zeros(()) if part is None else part.transpose(0, 1).reshape(len(at), -1)
            for b, part in zip(buffers, parts, strict=True)
        ]
        written = [torch.index_put(b, (at,), r) for b, r in zip(buffers, rows, strict=True)]
        return written, parts
    # `data` has a version of its own: writing a later slot is no change of those that are saved.
    slots = [_as_slot(buffer.data[own], shape) for buffer in buffers]
    for slot, part in zip(slots, parts, strict=True):
        slot.zero_() if part is None else slot.copy_(part)
    return [buffer.data for buffer in buffers], slots


def _as_slot(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return the rows of one layer as a view [B, *, T, E] like ``shape`` but for its heads."""
    batch, _, tokens, width = shape
    return rows.view(-1, batch, tokens, width).transpose(0, 1)


def _check_shapes(slots: Sequence[Slot], *weights: Tensor) -> None:
    """Raise ``ValueError`` if slots differ in shape, or if a weight does not fit them."""
    shapes = [tuple(part.shape) for slot in slots for part in slot]
    if not shapes or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"route needs slots, pairs of key and value, of one shape, got {shapes}")
    count, columns = len(slots), len(slots) * shapes[0][1]
    for weight in weights:
        if weight.ndim != 2 or (weight.shape[1] != columns and weight.shape != (1, count)):
            raise ValueError(
                f"a weight of {count} slots must have {columns} columns, or be [1, {count}], got "
                f"{list(weight.shape)}"
            )
