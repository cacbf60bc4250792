"""Bytes that pipeline stages send each other for a micro-batch, counted: plain, LIMe, windows.

A boundary sends the residual and the slots that later layers read (``models/stages.py``), and their
gradients come back: as many bytes again. Sums are over all boundaries.
"""

import argparse

from layermem.models.registry import lookup
from layermem.models.stages import crossing, stage_layers

# name: layers, width, query heads, key-value heads.
MODELS = {
    "1B, 8 kv heads": (16, 2048, 32, 8),
    "1B, 32 kv heads": (16, 2048, 32, 32),
    "7B, 8 kv heads": (32, 4096, 32, 8),
    "7B, 32 kv heads": (32, 4096, 32, 32),
}
WAYS = {
    "plain": ("plain", {}),
    "LIMe, full": ("lime", {}),
    "LIMe, last 4": ("lime", {"router": "last", "router_window": 4}),
    "LIMe, first 4": ("lime", {"router": "first", "router_window": 4}),
}


def count_bytes(model, way, stages, tokens, size=2):
    """Return the bytes of a micro-batch's forward over all boundaries."""
    layers, width, heads, kv_heads = MODELS[model]
    name, fields = WAYS[way]
    entry = lookup(name)
    config = entry.config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        **fields,
    )
    slot = 2 * kv_heads * config.head_dim
    boundaries = [of_stage.start for of_stage in stage_layers(layers, stages)[1:]]
    numbers = sum(width + slot * len(crossing(entry.variant, config, b)) for b in boundaries)
    return numbers * tokens * size


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--stages", nargs="+", type=int, default=[2, 4, 8])
    options.add_argument("--tokens", type=int, default=2048, help="tokens of a micro-batch")
    args = options.parse_args()
    print(f"MB of a forward in bfloat16, {args.tokens} tokens; in brackets: times plain")
    print(f"{'':34s}" + "".join(f"{n:>9d} stages" for n in args.stages))
    for model in MODELS:
        for way in WAYS:
            cells = []
            for stages in args.stages:
                ours, plain = (count_bytes(model, w, stages, args.tokens) for w in (way, "plain"))
                cells.append(f"{ours / 1e6:8.1f} ({ours / plain:4.1f})")
            print(f"{model:18s}{way:16s}" + " ".join(cells))


if __name__ == "__main__":
    main()
