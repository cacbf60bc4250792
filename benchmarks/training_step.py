"""Time of a training step (forward and backward, float32, eager) against Hugging Face's LLaMA.

Columns: LLaMA, our plain decoder, LIMe by each implementation of routing.
"""

import torch
from measure import SHAPES, arguments, columns, in_turn, show


def main():
    args, rows = arguments(__doc__), {}
    for shape in args.shapes:
        fields, batch, tokens = SHAPES[shape]
        ids = torch.randint(256, (batch, tokens), device=args.device)

        def step(model, ids=ids):
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        models = columns(fields, args.device, ["functional", "deferred"])
        rows[shape] = in_turn(models, step, args.repeats, args.device)
    show("training step", rows, args.device, args.json)


if __name__ == "__main__":
    main()
