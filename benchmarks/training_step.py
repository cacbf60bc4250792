"""Time of a training step (forward and backward, float32) compared with Hugging Face's LLaMA.

The columns are LLaMA, the plain decoder, LIMe in the paper's concatenating form, and LIMe with each
implementation of routing, eager. With --compile they are the plain decoder and LIMe, both compiled;
with --variants, plain and the named variants, eager.
"""

import torch
from measure import (
    SHAPES,
    add_variants_option,
    build_models,
    build_variants,
    make_parser,
    parse_arguments,
    print_table,
    round_seconds,
)


def main():
    options = make_parser(__doc__)
    options.add_argument("--compile", action="store_true", help="compile plain and LIMe")
    add_variants_option(options)
    args, rows = parse_arguments(options), {}
    if args.compile and args.variants:
        options.error("choose one of --compile and --variants")
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)

        def step(model, ids=ids):
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        if args.variants:
            models = build_variants(fields, args.device, args.variants)
        else:
            models = build_models(fields, args.device, ["functional", "deferred", "grouped"])
        if args.compile:
            models = {
                name: (torch.compile(models[name][0], fullgraph=True), "functional")
                for name in ("plain", "lime functional")
            }
        rows[shape] = round_seconds(models, step, args.repeats, args.device)
    title = "compiled training step" if args.compile else "training step"
    base = "plain" if args.compile or args.variants else "llama"
    print_table(title, rows, args.device, args.json, base)


if __name__ == "__main__":
    main()
