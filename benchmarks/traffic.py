"""Bytes that routing moves through memory in a training step, counted read by read.

The unit is a slot transfer: the keys and values of one layer, read or written once. A tensor counts
once for each call that is given it. Layer 0 has no router, and a route reads the slots of all
layers up to its own. What the plain decoder does too (projections, rope, attention) is not counted,
nor are the routers' weights.
"""

import argparse

# name: layers, key-value heads, head width, batch, tokens; numbers of two bytes.
SHAPES = {
    "1B, 8 kv heads": (16, 8, 64, 4, 2048),
    "1B, 32 kv heads": (16, 32, 64, 4, 2048),
}
DEPTHS = (16, 32, 64)


def count_transfers(layers):
    """Return {form of routing: slot transfers of a step}."""
    # Number of (router, slot that it reads) pairs, and of routers.
    pairs, routers = layers * (layers + 1) // 2 - 1, layers - 1
    return {
        # Forward: read all slots, write their concatenation, read it, write the result. Backward:
        # read the concatenation for the router's gradient, write its gradient, and add that to the
        # gradient of each slot (three transfers).
        "concatenation and autograd": (3 * pairs + routers) + (pairs + routers) + 4 * pairs,
        "shared buffer": count_products(layers) + count_copies(layers),
        "each slot once each way": 6 * layers,
    }


def count_products(layers):
    """Return those of the products of ``ops/route.py``, without groups, eager or compiled."""
    pairs, routers = layers * (layers + 1) // 2 - 1, layers - 1
    # Each route, each slot's gradient from the routes that read it, and D @ X^T.
    return (pairs + routers) + (pairs + layers) + 2 * layers


def count_copies(layers):
    """Return those of writing slots and gradients of routes into the buffers.

    A compiler may write them there when it computes them, or a slot a second time in the backward.
    """
    return 2 * layers + 2 * (layers - 1)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--bandwidth", type=float, default=4.0, help="TB/s that a copy reaches")
    args = options.parse_args()
    print(f"{'slot transfers of a step':36s}" + "".join(f"{n:4d} layers" for n in DEPTHS))
    counts = [count_transfers(layers) for layers in DEPTHS]
    for form in counts[0]:
        print(f"  {form:34s}" + "".join(f"{count[form]:11d}" for count in counts))
    for name, (layers, heads, width, batch, tokens) in SHAPES.items():
        slot = 2 * 2 * batch * tokens * heads * width
        print(f"{name}, {layers} layers: a slot is {slot / 1e6:.1f} MB")
        for form, count in count_transfers(layers).items():
            seconds = count * slot / (args.bandwidth * 1e12)
            print(
                f"  {form:36s} {count:5d} transfers {count * slot / 1e9:7.2f} GB "
                f"{1e3 * seconds:6.2f} ms at {args.bandwidth:g} TB/s"
            )


if __name__ == "__main__":
    main()
