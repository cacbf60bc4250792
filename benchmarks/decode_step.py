"""Time of a prompt and of decoding one token with a cache, compared with Hugging Face's LLaMA.

Eager, one sequence and a batch: a prompt of 64 tokens (--prompts) in one forward, and 16 greedy
tokens after it, one forward each. The columns are LLaMA, the plain decoder, LIMe in the paper's
concatenating form, and our LIMe; with --variants, plain and the named variants; with --routers,
full, windowed and pruned routers. With --tokens-only a cache is filled with copies of the entries
of 64 tokens, so that it can be long.
"""

import itertools

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
)
from transformers import DynamicCache

from layermem.models.inputs import CACHE

PROMPT, STEPS = 64, 16


@torch.no_grad()
def read_prompt(model, prompt):
    """Return the cache of a prompt."""
    cache = DynamicCache(config=model.config)
    model(prompt, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
    return cache


@torch.no_grad()
def fill_cache(model, prompt):
    """Return a cache as long as a prompt, which repeats what its first tokens have left."""
    cache = read_prompt(model, prompt[:, :PROMPT])
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            times = (1, 1, prompt.shape[1] // PROMPT, 1)
            layer.keys, layer.values = layer.keys.repeat(times), layer.values.repeat(times)
    return cache


@torch.no_grad()
def extend_cache(model, token, cache):
    """Decode tokens greedily."""
    for _ in range(STEPS):
        logits = model(token, **{CACHE: cache}, use_cache=True).logits
        token = logits[:, -1:].argmax(-1)


def decode_tokens(model, token, cache):
    """Decode tokens greedily, and shorten the cache to what it was."""
    extend_cache(model, token, cache)
    cache.crop(-STEPS)


def main():
    options = make_parser(__doc__, ("8x384", "64x128"))
    options.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="sequences at once")
    options.add_argument(
        "--prompts", nargs="+", type=int, default=[PROMPT], help="tokens of a prompt"
    )
    options.add_argument("--tokens-only", action="store_true", help="time no prompts")
    add_variants_option(options)
    add_routers_option(options)
    args, rows = parse_arguments(options), {}
    if args.tokens_only and any(length % PROMPT for length in args.prompts):
        options.error(f"--tokens-only wants --prompts that are multiples of {PROMPT}")
    for shape in args.shapes:
        fields = SHAPES[shape][0]
        if args.variants:
            models = build_variants(fields, args.device, args.variants)
        elif args.routers:
            models = build_routers(fields, args.device)
        else:
            models = build_models(fields, args.device, COLUMNS)
        for model in models.values():
            model.eval()
        for batch, length in itertools.product(args.batches, args.prompts):
            prompt = torch.randint(256, (batch, length), device=args.device)
            fill = fill_cache if args.tokens_only else read_prompt
            caches = {model: fill(model, prompt) for model in models.values()}

            def prefill(model, prompt=prompt):
                read_prompt(model, prompt)

            def decode(model, prompt=prompt, caches=caches):
                decode_tokens(model, prompt[:, -1:], caches[model])

            tokens = round_seconds(models, decode, args.repeats, args.device, STEPS)
            batched = f" x{batch}" if batch > 1 else ""
            # The lengths are named where there are several.
            named = args.prompts[1:] or args.tokens_only
            of, after = (f" of {length}", f" after {length}") if named else ("", "")
            if not args.tokens_only:
                rows[f"{shape} prompt{of}{batched}"] = round_seconds(
                    models, prefill, args.repeats, args.device
                )
            rows[f"{shape} token{after}{batched}"] = tokens
    base = "lime" if args.routers else "plain" if args.variants else "llama"
    lengths = " or ".join(map(str, args.prompts))
    title = f"a token after {lengths}" if args.tokens_only else f"a prompt of {lengths}; a token"
    print_table(title, rows, args.device, args.json, base)


if __name__ == "__main__":
    main()
