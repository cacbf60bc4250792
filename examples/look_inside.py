"""Prints what a model's layers hold: matrix entropy of values, and what each router reads.

Takes a checkpoint, ours or any Hugging Face decoder (routers are printed for those that have some),
or builds a LIMe with random weights. Seconds for a small model; memory is bounded by one batch.

    python examples/look_inside.py
    python examples/look_inside.py --model runs/lime/final --text notes.txt
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import layermem
from layermem_bench.analysis.capture import capture
from layermem_bench.analysis.entropy import matrix_entropy, standardise
from layermem_bench.analysis.routing import mean_heatmap
from layermem_bench.text.tokenizers import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="path or hub name; default: a small LIMe, untrained")
    parser.add_argument("--text", type=Path, default=Path(json.__file__), help="text file")
    parser.add_argument("--sequences", type=int, default=8, help="sequences to read")
    parser.add_argument("--length", type=int, default=64, help="tokens of each")
    options = parser.parse_args()

    if options.model is None:
        tokenizer = load_tokenizer("bytes")
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
        model = layermem.build("lime", vocab_size=len(tokenizer), **sizes)
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model = AutoModelForCausalLM.from_pretrained(options.model)

    tokens = tokenizer(options.text.read_text(encoding="utf-8"))["input_ids"]
    count = min(options.sequences, len(tokens) // options.length)
    if not count:
        parser.error(f"{options.text} has {len(tokens)} tokens, --length is {options.length}")
    ids = torch.tensor(tokens[: count * options.length]).view(count, options.length)

    # One batch at a time; what a layer's attention reads are the routed values.
    (batch,) = capture(model, [ids])
    print("layer  entropy of hidden states  of the values that attention reads")
    for layer, (hidden, routed) in enumerate(zip(batch.hidden, batch.routed, strict=True)):
        entropies = [
            np.mean([matrix_entropy(sequence) for sequence in standardise(array)])
            for array in (hidden, routed)
        ]
        print(f"{layer:5}  {entropies[0]:24.3f}  {entropies[1]:34.3f}")

    if hasattr(model, "router_summary"):
        print("\nshare that layer i (row) reads of layer j (column)")
        print(np.array2string(mean_heatmap(model), precision=2, suppress_small=True))


if __name__ == "__main__":
    main()
