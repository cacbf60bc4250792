"""Time of a compiled training step on long sequences, compared with Hugging Face's compiled LLaMA.

The number of tokens of a step is the same for every length, so what grows with the length is
attention. LLaMA gives sdpa a mask, because transformers cannot see under torch.compile whether
documents are packed; our decoder gives none and says that attention is causal. The columns are
LLaMA, the plain decoder, the plain decoder with a mask, and LIMe, all compiled for each length.
"""

import torch
from measure import SHAPES, build_models, make_parser, parse_arguments, print_table, round_seconds

LENGTHS, TOKENS = (512, 2048), 2048


def main():
    options = make_parser(__doc__, ("8x384",))
    options.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="tokens of a row")
    args, rows = parse_arguments(options), {}
    for shape in args.shapes:
        models = build_models(SHAPES[shape][0], args.device, ["functional"])
        for length in args.lengths:
            torch.compiler.reset()
            ids = torch.randint(256, (max(1, TOKENS // length), length), device=args.device)
            causal = torch.ones(length, length, dtype=torch.bool, device=args.device).tril()
            mask = causal.expand(len(ids), 1, -1, -1)
            columns = {
                "llama": (models["llama"], None),
                "plain": (models["plain"], None),
                "plain, mask": (models["plain"], mask),
                "lime": (models["lime functional"], None),
            }
            columns = {
                name: ((torch.compile(model, fullgraph=True, dynamic=False), mask), implementation)
                for name, ((model, implementation), mask) in columns.items()
            }

            def step(compiled, ids=ids):
                model, mask = compiled
                model(ids, labels=ids, attention_mask=mask, use_cache=False).loss.backward()
                model.zero_grad()

            rows[f"{shape}, {length}"] = round_seconds(columns, step, args.repeats, args.device)
    print_table("compiled training step", rows, args.device, args.json)


if __name__ == "__main__":
    main()
