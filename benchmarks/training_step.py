"""Time of a training step (forward and backward) compared with Hugging Face's LLaMA.

The columns are LLaMA, the plain decoder, LIMe in the paper's concatenating form, and LIMe with each
implementation of routing, eager, with --bfloat16 of weights in bfloat16. With --compile they are
the plain decoder and LIMe, both compiled; with --variants, plain and the named variants, eager, and
with --bfloat16 each of them under autocast too; with --routers, full, windowed and pruned routers.
"""

import torch
from measure import (
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
    if args.compile + bool(args.variants) + args.routers > 1:
        options.error("choose one of --compile, --variants and --routers")
    if args.bfloat16 and (args.compile or args.routers):
        options.error("--bfloat16 is for neither --compile nor --routers: leave one out")
    dtype = torch.bfloat16 if args.bfloat16 else torch.float32
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)
        step = training_step(ids)
        if args.variants:
            models = build_variants(fields, args.device, args.variants)
            if args.bfloat16:
                narrow = {name: InBfloat16(model) for name, (model, _) in models.items()}
                models |= {f"{name} bfloat16": (model, None) for name, model in narrow.items()}
        elif args.routers:
            models = build_routers(fields, args.device)
        else:
            models = build_models(fields, args.device, ["deferred", "grouped"], dtype)
        if args.compile:
            models = {
                name: (torch.compile(models[name][0], fullgraph=True), "grouped")
                for name in ("plain", "lime grouped")
            }
        rows[shape] = round_seconds(models, step, args.repeats, args.device)
    title = "compiled training step" if args.compile else "training step"
    base = "lime" if args.routers else "plain" if args.compile or args.variants else "llama"
    print_table(title, rows, args.device, args.json, base)


if __name__ == "__main__":
    main()
