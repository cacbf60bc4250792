"""Time of a training step (forward and backward, float32, eager) against Hugging Face's LLaMA.

Columns: LLaMA, our plain decoder, LIMe by each implementation of routing. With --compile, both of
ours through torch.compile, against the compiled plain decoder.
"""

import torch
from measure import SHAPES, arguments, columns, in_turn, parser, show


def main():
    options = parser(__doc__)
    options.add_argument("--compile", action="store_true", help="compile plain and LIMe")
    args, rows = arguments(options), {}
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)

        def step(model, ids=ids):
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        models = columns(fields, args.device, ["functional", "deferred"])
        if args.compile:
            models = {
                name: (torch.compile(models[name][0], fullgraph=True), "functional")
                for name in ("plain", "lime functional")
            }
        rows[shape] = in_turn(models, step, args.repeats, args.device)
    title, base = (
        ("compiled training step", "plain") if args.compile else ("training step", "llama")
    )
    show(title, rows, args.device, args.json, base)


if __name__ == "__main__":
    main()
