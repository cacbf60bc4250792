"""Time of decoding one token through a cache, against our plain decoder.

One sequence, eager: the prompt of 64 tokens in one forward, and the 16 tokens after it, greedy, one
forward each.
"""

import torch
from measure import SHAPES, arguments, columns, in_turn, parser, show
from transformers import DynamicCache

PROMPT, STEPS = 64, 16


def main():
    caches = {}
    args, rows = arguments(parser(__doc__, ("8x384", "64x128"))), {}
    for shape in args.shapes:
        prompt = torch.randint(256, (1, PROMPT), device=args.device)

        @torch.no_grad()
        def read(model, prompt=prompt):
            cache = DynamicCache(config=model.config)
            model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
            return cache

        @torch.no_grad()
        def write(model, prompt=prompt):
            token, cache = prompt[:, -1:], caches[model]
            for _ in range(STEPS):
                logits = model(token, past_key_values=cache, use_cache=True).logits
                token = logits[:, -1:].argmax(-1)
            cache.crop(-STEPS)

        models = columns(SHAPES[shape][0], args.device, ["naive", "deferred"])
        caches.clear()
        caches.update((model.eval(), read(model)) for model, _ in models.values())
        rows[f"{shape} prompt"] = in_turn(models, read, args.repeats, args.device)
        rows[f"{shape} token"] = in_turn(models, write, args.repeats, args.device, STEPS)
    show(f"a prompt of {PROMPT}; a token", rows, args.device, args.json, base="plain")


if __name__ == "__main__":
    main()
