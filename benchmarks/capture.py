"""Measure the memory that an analysis takes beside the model's own, at the paper's 1B shape.

The weights are random, because memory depends on shapes alone. As in ``layermem analyze``, batches
are as large as its memory limit allows, of sequences of 128 tokens; entropies are computed, and the
vectors of words are stored. Peaks are those of the process (Linux); on a GPU the activations of the
layers are in its memory and are not counted.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import layermem
from layermem_bench import presets
from layermem_bench.analysis.capture import capture, sequences_at_once
from layermem_bench.analysis.entropy import Standardiser, matrix_entropy
from layermem_bench.costs.measuring import describe_machine, read_memory

TOKENS = 128
KINDS = ("hidden", "routed")


def analyze(model, batches, words):
    """Do what layermem analyze does with a model, without probes and layouts."""
    rows = min(16, sequences_at_once(model, TOKENS))
    standardisers, ids = {}, torch.randint(1000, (rows, TOKENS))
    for captured in capture(model, [ids] * batches, kinds=KINDS):
        for kind in KINDS:
            for layer, array in enumerate(getattr(captured, kind)):
                standardisers.setdefault((kind, layer), Standardiser()).add(array[captured.mask])
    with TemporaryDirectory() as folder:
        stored, count = {}, 0
        for captured in capture(model, [ids] * batches, kinds=KINDS):
            for (kind, layer), standardiser in standardisers.items():
                array = getattr(captured, kind)[layer]
                for tokens in array:
                    matrix_entropy(standardiser.standardise(tokens))
                if (kind, layer) not in stored:
                    shape, file = (words, array.shape[-1]), Path(folder, f"{kind}-{layer}")
                    stored[kind, layer] = np.memmap(file, np.float32, "w+", shape=shape)
                for word in range(words // batches):
                    stored[kind, layer][count + word] = array[word % rows, word % TOKENS]
            count += words // batches
        for vectors in stored.values():
            vectors.sum()


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--preset", default="paper-1b-full", help="preset whose shape is used")
    options.add_argument("--variants", nargs="+", default=["lime"])
    options.add_argument("--batches", type=int, default=3)
    options.add_argument(
        "--words", type=int, default=4 * 1668, help="vectors stored for each layer"
    )
    args = options.parse_args()
    torch.set_num_threads(1)
    print(f"{args.preset} ({describe_machine('cpu')})")
    for variant in args.variants:
        sizes = presets.get_preset(args.preset).model.sizes() | {"vocab_size": 50257}
        # A small model first, so that the memory of libraries it loads does not count.
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
