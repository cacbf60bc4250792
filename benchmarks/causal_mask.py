"""Time of a compiled training step on long sequences, compared with Hugging Face's compiled LLaMA.

The number of tokens of a step is the same for every length, so what grows with the length is
attention. LLaMA gives sdpa a mask, because transformers cannot see under torch.compile whether
documents are packed; our decoder gives none and says that attention is causal. The columns are
LLaMA, the plain decoder, the plain decoder with a mask, and LIMe, all compiled for each length.
"""

import torch
from measure import SHAPES, build_models, make_parser, parse_arguments, print_table, round_seconds

LENGTHS, TOKENS = (512, 2048), 2048


def compile_columns(models, ids, **options):
    """Return {column: (compiled model, mask or None)} of "llama", "plain" and "lime"."""
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
    masks = {"llama": None, "plain": None, "plain, mask": causal.expand(len(ids), 1, -1, -1)}
    columns = {}
    for column, mask in {**masks, "lime": None}.items():
        model = models[column.partition(",")[0]]
        columns[column] = torch.compile(model, dynamic=False, **options), mask
    return columns


def make_step(ids):
    """Return a function that takes a training step of one column's (compiled model, mask)."""

    def step(compiled):
        model, mask = compiled
        try:
            model(ids, labels=ids, attention_mask=mask, use_cache=False).loss.backward()
        finally:
            model.zero_grad()

    return step


def main():
    options = make_parser(__doc__, ("8x384",))
    options.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="tokens of a row")
    args, rows = parse_arguments(options), {}
    for shape in args.shapes:
        models = build_models(SHAPES[shape][0], args.device, ["llama", "plain", "lime"])
        for length in args.lengths:
            torch.compiler.reset()
            ids = torch.randint(256, (max(1, TOKENS // length), length), device=args.device)
            columns, step = compile_columns(models, ids, fullgraph=True), make_step(ids)
            rows[f"{shape}, {length}"] = round_seconds(columns, step, args.repeats, args.device)
    print_table("compiled training step", rows, args.device, args.json)


if __name__ == "__main__":
    main()
