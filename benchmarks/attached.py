"""Time of layer memory attached to Hugging Face's LLaMA, compared with the bare LLaMA and our LIMe.

A training step (forward and backward) of everything, one of routers alone, and decoding one token
with a cache; float32, eager. All three models have the same weights. With --memory, bytes instead:
what a forward leaves for its backward, the peak of a step, and what each decoded token leaves.
"""

import copy
import functools

import torch
from decode_step import PROMPT, STEPS, decode_tokens, extend_cache, read_prompt
from measure import (
    SHAPES,
    complete_fields,
    make_parser,
    parse_arguments,
    print_table,
    round_seconds,
)
from memory import memory_rows, storages
from transformers import LlamaConfig, LlamaForCausalLM

import layermem

COLUMNS = ("native", "attached", "bare")


def build_three(fields, device, column=None):
    """Return {column: model} of all ``COLUMNS``, whichever is asked for."""
    torch.manual_seed(0)
    bare = LlamaForCausalLM(LlamaConfig(**complete_fields(fields))).to(device)
    native = layermem.LimeForCausalLM.from_llama(bare)
    attached = layermem.attach(copy.deepcopy(bare))
    with torch.no_grad():
        routers = layermem.router_parameters(attached)
        for layer, weight in enumerate(routers, start=1):
            weight.add_(0.1 * torch.randn_like(weight))
            native.model.layers[layer].self_attn.memory.weight.copy_(weight)
    return {"native": native, "attached": attached, "bare": bare}


def step(model, ids):
    model(ids, labels=ids, use_cache=False).loss.backward()
    model.zero_grad()


def freeze_base(models):
    """Let the routers alone train; the bare model, which has none, only runs forward."""
    for name in ("native", "attached"):
        for key, parameter in models[name].named_parameters():
            parameter.requires_grad_("router" in key or "memory" in key)
    return {name: models[name] for name in ("native", "attached")}


def measure_shape(shape, args):
    """Return {what: {column: seconds of each round}} for one shape."""
    fields, batch, tokens = SHAPES[shape]
    models = build_three(fields, args.device)
    ids = torch.randint(256, (batch, tokens), device=args.device)
    prompt = torch.randint(256, (1, PROMPT), device=args.device)
    caches = {model: read_prompt(model, prompt) for model in models.values()}

    def decode(model):
        decode_tokens(model, prompt[:, -1:], caches[model])

    train = functools.partial(step, ids=ids)
    return {
        f"{shape} token": round_seconds(models, decode, args.repeats, args.device, STEPS),
        f"{shape} step": round_seconds(models, train, args.repeats, args.device),
        f"{shape} step, routers": round_seconds(
            freeze_base(models), train, args.repeats, args.device
        ),
    }


def kept_by_a_token(shape, device):
    """Return {column: bytes} that tensors which outlive a decoded token grow by, on average."""
    models = build_three(SHAPES[shape][0], device)
    prompt, kept = torch.randint(256, (1, PROMPT), device=device), {}
    for name, model in models.items():
        cache = read_prompt(model, prompt)
        before = sum(storages().values())
        extend_cache(model, prompt[:, -1:], cache)
        kept[name] = (sum(storages().values()) - before) / STEPS
    return kept


def print_memory(args):
    """Print the memory of a step and of a token, and write it as JSON."""
    rows = {}
    for shape in args.shapes:
        rows |= memory_rows(build_three, COLUMNS, [shape], args.device)
        rows[f"{shape} token"] = kept_by_a_token(shape, args.device)
    print_table("memory, attached to LLaMA", rows, args.device, args.json, "native", ("MB", 1e-6))


def main():
    options = make_parser(__doc__, ("4x32", "8x384-gqa", "16x128"))
    options.add_argument("--memory", action="store_true", help="bytes in place of times")
    args = parse_arguments(options)
    if args.memory:
        print_memory(args)
        return
    rows = {}
    for shape in args.shapes:
        rows |= measure_shape(shape, args)
    # Routers alone have two columns, the others three.
    whole = {name: columns for name, columns in rows.items() if "bare" in columns}
    print_table("attached to LLaMA", whole, args.device, args.json, "native")
    alone = {name: columns for name, columns in rows.items() if "bare" not in columns}
    path = args.json and args.json.with_stem(f"{args.json.stem}_routers")
    print_table("routers alone", alone, args.device, path, "native")


if __name__ == "__main__":
    main()
