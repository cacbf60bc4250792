"""Bytes that routing moves through memory in a training step, counted read by read.

The unit is a slot transfer: the keys and values of one layer, read or written once. Layer 0 has no
router, and a route reads the slots of all layers up to its own. What the plain decoder does too
(projections, rope, attention) is not counted, nor are the routers' weights. Three ways of computing
routes read a slot from where the projections left it:

    single routes      every route, router's gradient and slot's gradient reads all it sums over
    a fused pull       the gradient of a slot reads the later gradients anyway, and computes with
                       them what the slot adds to the gradients of the routers
    grouped            layers in groups, as ``ops/route/groups.py`` has them: what a group reads of
                       older slots, and what later groups send to its slots, is read once for the
                       whole group and kept as partial sums
    one group          all layers, in half precision, where sums are rounded once: products as thin
                       as single routes have, and the routers' gradients in fat ones

A tensor counts once for each launch
that is given it.
"""

import argparse

# name: layers, key-value heads, head width, batch, tokens; numbers of two bytes.
SHAPES = {
    "1B, 8 kv heads": (16, 8, 64, 4, 2048),
    "1B, 32 kv heads": (16, 32, 64, 4, 2048),
}
DEPTHS = (16, 32, 64)


def count_transfers(layers):
    """Return {implementation: slot transfers of a step}."""
    # Number of (router, slot that it reads) pairs, and of routers.
    pairs, routers = layers * (layers + 1) // 2 - 1, layers - 1
    return {
        # Forward: read all slots, write their concatenation, read it, write the result. Backward:
        # read the concatenation for the router's gradient, write its gradient, and add that to the
        # gradient of each slot (three transfers).
        "concatenation and autograd": (3 * pairs + routers) + (pairs + routers) + 4 * pairs,
        # Each slot is read once for each route, router's gradient and slot's gradient.
        "deferred backward: single routes": 2 * (pairs + routers) + (pairs + layers),
        # The router's gradient is computed with the slot's: autograd would have to accept it late.
        "fused pull": (pairs + routers) + (pairs + 2 * layers),
        # In half precision, partial sums that are not to be rounded have twice the bytes of a slot.
        "grouped, partial sums in float32": count_grouped(layers, partial=2),
        "grouped, partial sums rounded": count_grouped(layers, partial=1),
        "one group": count_one_group(layers),
        "each slot once each way": 6 * layers,
    }


def count_grouped(layers, partial=1):
    """Return the transfers of routing in groups; ``partial``: the size of a partial sum, in slots.

    The groups are those of ``ops/route/__init__.py``: of eight layers, and eight at most.
    """
    size = max(8, layers // 8)
    groups = [range(first, min(first + size, layers)) for first in range(0, layers, size)]
    total = 0
    for group in groups:
        first, end = group.start, group.stop
        readers = [layer for layer in group if layer > 0]
        later = layers - end
        # Pairs of a router and a slot of its own group.
        own = sum(layer - first + 1 for layer in readers)
        # Forward: older slots once, a partial sum for each layer, which is written and read.
        if first:
            total += first + 2 * partial * len(readers)
        total += own + len(readers)
        # The gradients of the group's routers: its own gradients, and all slots up to its last.
        total += len(readers) + end
        # The gradients of its slots: those of later groups once, a partial sum for each slot, and
        # then what its own group sends.
        if later:
            total += later + 2 * partial * len(group)
        total += own + len(group)
    return total


def count_one_group(layers):
    """Return the transfers of routing in one group."""
    pairs, routers = layers * (layers + 1) // 2 - 1, layers - 1
    # Gradients of at most 16 routers at a time, which read the slots up to their last.
    pieces = [range(first, min(first + 16, layers)) for first in range(1, layers, 16)]
    of_routers = sum(len(piece) + piece.stop for piece in pieces)
    return (pairs + routers) + of_routers + (pairs + layers)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--bandwidth", type=float, default=4.0, help="TB/s that a copy reaches")
    args = options.parse_args()
    print(f"{'slot transfers of a step':36s}" + "".join(f"{n:4d} layers" for n in DEPTHS))
    counts = [count_transfers(layers) for layers in DEPTHS]
    for implementation in counts[0]:
        cells = "".join(f"{count[implementation]:11d}" for count in counts)
        print(f"  {implementation:34s}{cells}")
    for name, (layers, heads, width, batch, tokens) in SHAPES.items():
        slot = 2 * 2 * batch * tokens * heads * width
        print(f"{name}, {layers} layers: a slot is {slot / 1e6:.1f} MB")
        for implementation, count in count_transfers(layers).items():
            seconds = count * slot / (args.bandwidth * 1e12)
            print(
                f"  {implementation:36s} {count:5d} transfers {count * slot / 1e9:7.2f} GB "
                f"{1e3 * seconds:6.2f} ms at {args.bandwidth:g} TB/s"
            )


if __name__ == "__main__":
    main()
