"""Bytes that routing moves through memory in a training step, in closed form.

The unit is a slot transfer: the keys and values of one layer, read or written once. Layer 0 has no
router, and a route reads the slots of all layers up to its own. What the plain decoder does too
(projections, rope, attention) is not counted.
"""

import argparse

# name: layers, key-value heads, head width, batch, tokens; numbers of two bytes.
SHAPES = {
    "1B, 8 kv heads": (16, 8, 64, 4, 2048),
    "1B, 32 kv heads": (16, 32, 64, 4, 2048),
}


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
        "deferred backward (ours)": (pairs + routers) + (pairs + routers) + (pairs + layers),
        # The router's gradient is computed with the slot's: autograd would have to accept it late.
        "the same, router's gradient fused": (pairs + routers) + (pairs + 2 * layers),
        "each slot once each way": 6 * layers,
    }


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--bandwidth", type=float, default=4.0, help="TB/s that a copy reaches")
    args = options.parse_args()
    for name, (layers, heads, width, batch, tokens) in SHAPES.items():
        slot = 2 * 2 * batch * tokens * heads * width
        print(f"{name}: a slot is {slot / 1e6:.1f} MB")
        for implementation, count in count_transfers(layers).items():
            seconds = count * slot / (args.bandwidth * 1e12)
            print(
                f"  {implementation:36s} {count:5d} transfers {count * slot / 1e9:7.2f} GB "
                f"{1e3 * seconds:6.2f} ms at {args.bandwidth:g} TB/s"
            )


if __name__ == "__main__":
    main()
