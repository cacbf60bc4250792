"""Memory that looking inside takes above the model's own, at the paper's 1B shape.

The model has random weights: what is held depends on shapes alone. Batches are as large as those of
``layermem analyze``, of sequences of 128 tokens; entropies are taken and words' vectors kept as it
does. Peaks are the process's own (Linux); on a GPU, layers' activations lie there and not here.
"""

import argparse
import time

import torch

import layermem
from layermem.analysis.capture import capture, sequences_at_once
from layermem.analysis.disk_rows import DiskRows
from layermem.analysis.entropy import Standardiser, matrix_entropy
from layermem.efficiency.measuring import held, machine
from layermem.experiments import presets

TOKENS = 128
KINDS = ("hidden", "routed")


def look(model, batches, words):
    """Do what analyze does with a model, probes and layouts apart."""
    rows = min(16, sequences_at_once(model, TOKENS))
    moments, ids = {}, torch.randint(1000, (rows, TOKENS))
    for got in capture(model, [ids] * batches, kinds=KINDS):
        for kind in KINDS:
            for layer, array in enumerate(getattr(got, kind)):
                moments.setdefault((kind, layer), Standardiser()).add(array[got.mask])
    with DiskRows() as stored:
        for got in capture(model, [ids] * batches, kinds=KINDS):
            for (kind, layer), known in moments.items():
                array = getattr(got, kind)[layer]
                for tokens in array:
                    matrix_entropy(known.standardise(tokens))
                for word in range(words // batches):
                    stored.append((kind, layer), array[word % rows, word % TOKENS])
        for key in moments:
            stored.read(key)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--preset", default="paper-1b-full", help="whose shape is taken")
    options.add_argument("--variants", nargs="+", default=["lime"])
    options.add_argument("--batches", type=int, default=3)
    options.add_argument("--words", type=int, default=4 * 1668, help="vectors kept of a layer")
    args = options.parse_args()
    torch.set_num_threads(1)
    print(f"{args.preset} ({machine('cpu')})")
    for variant in args.variants:
        sizes = presets.lookup(args.preset).model.sizes() | {"vocab_size": 50257}
        # A small one first, so that what a library brings in does not count.
        look(layermem.build(variant, **{**sizes, "num_hidden_layers": 1}), 1, 16)
        model = layermem.build(variant, **sizes)
        before, start = held("cpu", "now"), time.process_time()
        look(model, args.batches, args.words)
        more = held("cpu", "peak") - before
        print(
            f"  {variant}: {model.num_parameters() / 1e9:.3f}B parameters, {before / 1e9:.2f} GB "
            f"before, {more / 1e9:.2f} GB more at the peak, {time.process_time() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
