"""Memory that analysis takes in addition to the model's, at the paper's 1B shape.

The model has random weights, because memory depends on shapes only. Batches are as large as those
of ``layermem analyze``, of sequences of 128 tokens, and entropies are computed and vectors of words
kept as it does. Peaks are those of the process on a CPU (Linux only).
"""

import argparse
import time

import torch

import layermem
from layermem.analysis.capture import capture, sequences_at_once
from layermem.analysis.entropy import Moments, matrix_entropy
from layermem.analysis.shelf import Shelf
from layermem.efficiency.measuring import describe_machine, read_memory
from layermem.experiments import presets

TOKENS = 128
KINDS = ("hidden", "routed")


def analyze(model, batches, words):
    """Do what ``layermem analyze`` does with a model, except for probes and layouts."""
    rows = min(16, sequences_at_once(model, TOKENS))
    moments, ids = {}, torch.randint(1000, (rows, TOKENS))
    for captured in capture(model, [ids] * batches, kinds=KINDS):
        for kind in KINDS:
            for layer, array in enumerate(getattr(captured, kind)):
                moments.setdefault((kind, layer), Moments()).add(array[captured.mask])
    with Shelf() as shelf:
        for captured in capture(model, [ids] * batches, kinds=KINDS):
            for (kind, layer), layer_moments in moments.items():
                array = getattr(captured, kind)[layer]
                for tokens in array:
                    matrix_entropy(layer_moments.standardise(tokens))
                for word in range(words // batches):
                    shelf.put((kind, layer), array[word % rows, word % TOKENS])
        for key in moments:
            shelf.get(key)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--preset", default="paper-1b-full", help="preset that gives the shape")
    options.add_argument("--variants", nargs="+", default=["lime"])
    options.add_argument("--batches", type=int, default=3)
    options.add_argument("--words", type=int, default=4 * 1668, help="vectors kept for each layer")
    args = options.parse_args()
    torch.set_num_threads(1)
    print(f"{args.preset} ({describe_machine('cpu')})")
    for variant in args.variants:
        sizes = presets.lookup(args.preset).model.sizes() | {"vocab_size": 50257}
        # A small model first, so that memory that libraries allocate once does not count.
        analyze(layermem.build(variant, **{**sizes, "num_hidden_layers": 1}), 1, 16)
        model = layermem.build(variant, **sizes)
        before, start = read_memory("cpu", "now"), time.process_time()
        analyze(model, args.batches, args.words)
        more = read_memory("cpu", "peak") - before
        print(
            f"  {variant}: {model.num_parameters() / 1e9:.3f}B parameters, {before / 1e9:.2f} GB "
            f"before, {more / 1e9:.2f} GB more at the peak, {time.process_time() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
