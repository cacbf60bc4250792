"""Time of a training step (forward and backward) compared with Hugging Face's LLaMA.

The columns are LLaMA, the plain decoder, LIMe in the paper's concatenating form, and our LIMe; with
--variants, plain and the named variants; with --routers, full, windowed and pruned routers. They
are eager and in float32. --compile compiles plain and LIMe, or the named variants; --bfloat16 has
weights in bfloat16, and each of the named variants under autocast as well.
"""

import torch
from measure import (
    COLUMNS,
    SHAPES,
    add_routers_option,
    add_variants_option,
    build_models,
    build_routers,
    build_variants,
    make_parser,
    parse_arguments,
    print_table,
    round_seconds,
    training_step,
)


class InBfloat16(torch.nn.Module):
    """A model whose products are computed in bfloat16, as in a run of this precision."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, **given):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            return self.model(ids, **given)


def main():
    options = make_parser(__doc__)
    options.add_argument("--compile", action="store_true", help="compile plain and LIMe")
    options.add_argument(
        "--bfloat16",
        action="store_true",
        help="weights in bfloat16; with --variants: each by autocast as well",
    )
    add_variants_option(options)
    add_routers_option(options)
    args, rows = parse_arguments(options), {}
    if args.routers and (args.compile or args.variants or args.bfloat16):
        options.error("--routers is measured eager and in float32: leave the others out")
    if args.compile and args.bfloat16:
        options.error("choose one of --compile and --bfloat16")
    dtype = torch.bfloat16 if args.bfloat16 else torch.float32
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)
        if args.routers:
            models = build_routers(fields, args.device)
        elif args.variants or args.compile:
            models = build_variants(fields, args.device, args.variants or "lime")
        else:
            models = build_models(fields, args.device, COLUMNS, dtype)
        if args.variants and args.bfloat16:
            models |= {f"{name} bfloat16": InBfloat16(model) for name, model in models.items()}
        if args.compile:
            models = {name: torch.compile(m, fullgraph=True) for name, m in models.items()}
        rows[shape] = round_seconds(models, training_step(ids), args.repeats, args.device)
    title = "compiled training step" if args.compile else "training step"
    base = "lime" if args.routers else "plain" if args.compile or args.variants else "llama"
    print_table(title, rows, args.device, args.json, base)


if __name__ == "__main__":
    main()
