"""Time of decoding one token through a cache, against our plain decoder.

One sequence, 64 tokens in the cache, greedy, eager; the cache grows by one token a step.
"""

import torch
from measure import SHAPES, arguments, columns, in_turn, show
from transformers import DynamicCache

STEPS = 16


def main():
    args, rows = arguments(__doc__, ("8x384", "64x128")), {}
    for shape in args.shapes:
        prompt = torch.randint(256, (1, 64), device=args.device)

        @torch.no_grad()
        def step(model, prompt=prompt):
            cache = DynamicCache(config=model.config)
            model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = prompt[:, -1:]
            for _ in range(STEPS):
                logits = model(token, past_key_values=cache, use_cache=True).logits
                token = logits[:, -1:].argmax(-1)

        models = columns(SHAPES[shape][0], args.device, ["naive", "deferred"])
        for model, _ in models.values():
            model.eval()
        rows[shape] = in_turn(models, step, args.repeats, args.device)
    show(f"a prompt of 64 and {STEPS} tokens", rows, args.device, args.json, base="plain")


if __name__ == "__main__":
    main()
