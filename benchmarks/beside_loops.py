"""Time of a training step of each variant, compared with an eager loop of its equations.

A row is a variant at a shape: the loop in plain PyTorch (eager_loops.py) and our model, which have
the same weights and compute the same loss and gradients, in turn in one process.
"""

import sys

import torch
from eager_loops import EagerLoop, check_same
from measure import (
    SHAPES,
    WITH_LOOPS,
    build_variants,
    make_parser,
    parse_arguments,
    print_table,
    round_seconds,
    summarize,
    training_step,
)


def main():
    options = make_parser(__doc__, shapes=("8x384-gqa", "32x128"))
    options.add_argument(
        "--variants",
        default=WITH_LOOPS,
        help="NAME[:FIELD=VALUE...][,NAME...], as in a study (all that have a loop)",
    )
    args, rows = parse_arguments(options), {}
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)
        step = training_step(ids)
        for name, model in build_variants(fields, args.device, args.variants).items():
            loop = EagerLoop(model)
            check_same(model, loop, ids[:, :64])
            both = {"eager loop": loop, "ours": model}
            row = rows[f"{shape} {name}"] = round_seconds(both, step, args.repeats, args.device)
            ratio = summarize(row, "eager loop")["ratios"]["ours"]
            print(f"{shape} {name}: {ratio:.3f}", file=sys.stderr, flush=True)
    print_table("training step", rows, args.device, args.json, base="eager loop")


if __name__ == "__main__":
    main()
