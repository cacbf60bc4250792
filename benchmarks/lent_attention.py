"""Time of one token's attention to what several layers hold: formed first, or never.

One layer, float32, one sequence. The columns are attention to what one layer holds, as in a plain
decoder; to a routed sum of --sources layers, formed and then attended to, or with weights in
queries and outputs (of each source a number, or one for each pair of heads); and to a head of some
layer for each head, copied first or by a call for each. The last lines say what the library takes.
"""

from functools import partial

import torch
import torch.nn.functional as F
from measure import make_parser, parse_arguments, print_table

from layermem.ops.lent_attention import attend_by_head, attend_to_routed, exchange_pays
from layermem.ops.route import route
from layermem_bench.efficiency import measuring

# name: query heads, key-value heads, width of a head.
HEADS = {"8/8x16": (8, 8, 16), "6/2x64": (6, 2, 64), "9/3x64": (9, 3, 64), "32/8x64": (32, 8, 64)}


@torch.no_grad()
def attend(query, key, value):
    """Attend to keys and values that are formed."""
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@torch.no_grad()
def form_and_attend(query, slots, weights):
    """Attend to a routed sum, formed first."""
    return attend(query, *route(slots, *weights))


@torch.no_grad()
def exchange(query, slots, weights, columns):
    """Attend to a routed sum that is not formed."""
    return attend_to_routed(query, slots, weights, columns, None, query.shape[-1] ** -0.5)


@torch.no_grad()
def copy_and_attend(query, heads):
    """Attend to heads of several layers, copied first."""
    keys, values = zip(*heads, strict=True)
    return attend(query, torch.stack(keys, 1), torch.stack(values, 1))


@torch.no_grad()
def call_each(query, heads):
    """Attend to heads of several layers, one after the other."""
    return attend_by_head(query, heads, None, query.shape[-1] ** -0.5)


def build(shape, tokens, sources):
    """Return {column: a function} of one shape and length."""
    query_heads, heads, width = HEADS[shape]
    query = torch.randn(1, query_heads, 1, width)
    slots = [tuple(torch.randn(2, 1, heads, tokens, width)) for _ in range(sources)]
    numbers = torch.randn(2, 1, sources).unbind()
    pairs = torch.randn(2, heads, sources * heads).unbind()
    chosen = [(slots[r % sources][0][:, (r + 1) % heads], slots[0][1][:, r]) for r in range(heads)]
    return {
        "one layer": partial(attend, query, *slots[0]),
        "numbers, formed": partial(form_and_attend, query, slots, numbers),
        "numbers, exchanged": partial(exchange, query, slots, numbers, 1),
        "pairs, formed": partial(form_and_attend, query, slots, pairs),
        "pairs, exchanged": partial(exchange, query, slots, pairs, heads),
        "heads, copied": partial(copy_and_attend, query, chosen),
        "heads, called": partial(call_each, query, chosen),
    }


def main():
    options = make_parser(__doc__, ())
    options.add_argument("--heads", nargs="+", choices=HEADS, default=[*HEADS])
    options.add_argument("--tokens", nargs="+", type=int, default=[128, 2048, 16384])
    options.add_argument("--sources", type=int, default=4, help="layers that are mixed")
    args = parse_arguments(options)
    rows, taken = {}, []
    for shape in args.heads:
        query_heads, heads, width = HEADS[shape]
        for tokens in args.tokens:
            steps = build(shape, tokens, args.sources)
            rows[f"{shape} {tokens}"] = measuring.time_interleaved(steps, args.repeats, args.device)
        exchanged = [
            name
            for name, columns in (("numbers", 1), ("pairs", heads))
            if exchange_pays(query_heads, heads, columns, args.sources)
        ]
        taken.append(f"{shape}: exchanged are {' and '.join(exchanged) or 'none'}")
    print_table("attention of one token", rows, args.device, args.json, "one layer", ("us", 1e6))
    print("\n".join(taken))


if __name__ == "__main__":
    main()
