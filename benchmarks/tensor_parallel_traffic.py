"""Bytes that each process of tensor parallelism sends in a training step, counted by token.

    plain             the decoder without memory, by the rules that LLaMA has in transformers
    LIMe, gathered    queries, keys and values are gathered, and every process routes all heads
    LIMe, by source   each process routes from its own heads of the slots; a reduce-scatter sums
    LIMe, by target   keys and values are gathered, and each process routes to its own heads

The embedding and the head are counted too, and are the same in all. By source is what LIMe does
where the number of processes divides the key-value heads; by target is not implemented.
"""

import argparse
from collections import Counter

from layermem.models.registry import lookup

# name: layers, width, width of the mlp, query heads, key-value heads.
MODELS = {
    "1B, 8 kv heads": (16, 2048, 8192, 32, 8),
    "1B, 32 kv heads": (16, 2048, 8192, 32, 32),
    "7B, 8 kv heads": (32, 4096, 11008, 32, 8),
    "7B, 32 kv heads": (32, 4096, 11008, 32, 32),
}
WAYS = ("plain", "LIMe, gathered", "LIMe, by source", "LIMe, by target")
DEGREES = (2, 4, 8)


def count_collectives(config, way):
    """Return the numbers of all processes that each kind of collective takes for one token."""
    layers, width = config.num_hidden_layers, config.hidden_size
    queries = config.num_attention_heads * config.head_dim
    slot = 2 * config.num_key_value_heads * config.head_dim
    # Forward: the embedding and, in each layer, o_proj and down_proj. Backward: the inputs of q, k,
    # v, gate and up, each by itself, and of the head.
    numbers = Counter(all_reduce=width * (2 + layers * (2 + 5)), all_gather=config.vocab_size)
    routed = layers - 1 if getattr(config, "router", None) != "average" else 0
    if way == "LIMe, gathered":
        # Backward: the gradient of o_proj's input.
        numbers["all_gather"] += layers * (queries + slot + queries)
    elif way == "LIMe, by source":
        # Backward: each process gathers the gradient of the routed heads.
        numbers += Counter(reduce_scatter=routed * slot, all_gather=routed * slot)
    elif way == "LIMe, by target":
        # Backward: the gradients of slots, of which layer 0 has one too.
        numbers += Counter(all_gather=layers * slot, reduce_scatter=layers * slot)
    return numbers


def count_router_gradients(config, way):
    """Return the numbers that processes sum once in a backward, however many tokens it has."""
    if way not in ("LIMe, by source", "LIMe, by target"):
        return 0
    return lookup("lime").variant.extra_parameters(config)


def count_sent(numbers, degree):
    """Return what one process sends of these numbers, if processes form a ring."""
    per_round = (degree - 1) / degree
    return per_round * sum(n * (1 + (kind == "all_reduce")) for kind, n in numbers.items())


def count_bytes(model, way, degree, tokens, size=2):
    """Return the bytes that a process sends for one token of a step of so many."""
    layers, width, inner, heads, kv_heads = MODELS[model]
    config = lookup("plain" if way == "plain" else "lime").config(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
    )
    of_routers = Counter(all_reduce=count_router_gradients(config, way))
    return size * (
        count_sent(count_collectives(config, way), degree) + count_sent(of_routers, degree) / tokens
    )


def rows(degrees, tokens):
    """Return (model, way, cells) of the table."""
    for model in MODELS:
        for way in WAYS:
            sent = [[count_bytes(model, w, d, tokens) for w in (way, "plain")] for d in degrees]
            yield model, way, [f"{ours / 1e3:.0f} ({ours / plain:.2f})" for ours, plain in sent]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--degrees", nargs="+", type=int, default=list(DEGREES))
    options.add_argument("--tokens", type=int, default=8192, help="tokens of a backward")
    args = options.parse_args()
    print("kB in bfloat16 that a process sends for a token, forward and backward; in brackets:")
    print("times plain")
    print(f"{'':36s}" + "".join(f"{n:>3d} processes " for n in args.degrees))
    for model, way, cells in rows(args.degrees, args.tokens):
        print(f"{model:18s}{way:18s}" + " ".join(f"{cell:>12s}" for cell in cells))


if __name__ == "__main__":
    main()
