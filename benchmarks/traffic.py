"""Bytes that routing moves through memory in a training step, counted, not measured.

The unit is a slot transfer: one layer's keys and values read or written once. Layer 0 has no
router; a route reads the slots up to its own layer. Projections, rope and attention are not
counted: the plain decoder has them too.
"""

import argparse

# name: layers, key-value heads, head width, batch, tokens; two bytes a number.
SHAPES = {
    "1B, 8 kv heads": (16, 8, 64, 4, 2048),
    "1B, 32 kv heads": (16, 32, 64, 4, 2048),
}


def transfers(layers):
    """Return {how: slot transfers of a step}."""
    # Pairs of a router and a slot that it reads.
    pairs, routers = layers * (layers + 1) // 2 - 1, layers - 1
    return {
        # Forward: read all, write the copy, read it, write the result. Backward: the copy read for
        # the router's gradient; its own gradient written, and added to each slot's (three more).
        "concatenation and autograd": (3 * pairs + routers) + (pairs + routers) + 4 * pairs,
        # A slot read once by each product: the route, the router's gradient, the slot's gradient.
        "deferred backward (ours)": (pairs + routers) + (pairs + routers) + (pairs + layers),
        # The router's gradient taken while the slot's gradient is: needs it delivered late.
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
        for how, count in transfers(layers).items():
            seconds = count * slot / (args.bandwidth * 1e12)
            print(
                f"  {how:36s} {count:5d} transfers {count * slot / 1e9:7.2f} GB "
                f"{1e3 * seconds:6.2f} ms at {args.bandwidth:g} TB/s"
            )


if __name__ == "__main__":
    main()
