"""Time of a prompt and of decoding one token with a cache, compared with the plain decoder.

One sequence, eager: a prompt of 64 tokens in one forward, and 16 greedy tokens, one forward each.
"""

import torch
from measure import SHAPES, build_models, make_parser, median_seconds, parse_arguments, print_table
from transformers import DynamicCache

PROMPT, STEPS = 64, 16


def main():
    caches = {}
    args, rows = parse_arguments(make_parser(__doc__, ("8x384", "64x128"))), {}
    for shape in args.shapes:
        prompt = torch.randint(256, (1, PROMPT), device=args.device)

        @torch.no_grad()
        def read_prompt(model, prompt=prompt):
            cache = DynamicCache(config=model.config)
            model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
            return cache

        @torch.no_grad()
        def decode_tokens(model, prompt=prompt):
            token, cache = prompt[:, -1:], caches[model]
            for _ in range(STEPS):
                logits = model(token, past_key_values=cache, use_cache=True).logits
                token = logits[:, -1:].argmax(-1)
            cache.crop(-STEPS)

        models = build_models(SHAPES[shape][0], args.device, ["naive", "deferred"])
        caches.clear()
        caches.update((model.eval(), read_prompt(model)) for model, _ in models.values())
        rows[f"{shape} prompt"] = median_seconds(models, read_prompt, args.repeats, args.device)
        rows[f"{shape} token"] = median_seconds(
            models, decode_tokens, args.repeats, args.device, STEPS
        )
    print_table(f"a prompt of {PROMPT}; a token", rows, args.device, args.json, base="plain")


if __name__ == "__main__":
    main()
