"""Preparing text, against the tokenizer alone: bytes, and a BPE trained on the same text.

    python benchmarks/preparing.py [--documents N] [--repeats N]

The tokenizer alone is one call for each batch of texts that are in memory, whose ids are thrown
away. Preparing reads, hashes and tokenizes the documents and writes the files. Both run on all
cores the process may use (``taskset``; TOKENIZERS_PARALLELISM=false: one), alternately in one
process; a ratio is the median of paired rounds, with quartiles, of CPU time and of wall time.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layermem_bench.config.run import Data
from layermem_bench.data import piece_writing, preparing
from layermem_bench.data.sources import open_source
from layermem_bench.data.tokenizers import END, load_tokenizer
from layermem_bench.efficiency.measuring import describe_machine


def trained_tokenizer(texts):
    """Return a byte-level BPE of 8,192 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def tokenize_alone(tokenizer, batches):
    """Tokenize batches of texts, and keep nothing."""
    for batch in batches:
        tokenizer(batch, add_special_tokens=False, split_special_tokens=True, verbose=False)


def prepare_anew(tokenizer, source):
    """Prepare a file of documents in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        # A tenth: of few documents too, some are in each split.
        config = Data(source=source, cache=folder, validation_share=0.1)
        preparing.prepare(config, tokenizer)


def seconds_of(function, *arguments):
    """Return the CPU and the wall seconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    function(*arguments)
    return time.process_time() - cpu, time.perf_counter() - wall


def compare(name, tokenizer, batches, source, size, repeats):
    """Print how long preparing takes against the tokenizer alone."""
    rounds = [
        (
            seconds_of(tokenize_alone, tokenizer, batches),
            seconds_of(prepare_anew, tokenizer, source),
        )
        for _ in range(repeats + 1)
    ][1:]
    for i, kind in enumerate(("CPU", "wall")):
        speed = size / statistics.median(alone[i] for alone, _ in rounds) / 1e6
        ratios = [prepared[i] / alone[i] for alone, prepared in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(
            f"{name:6} {kind:5} tokenizer alone {speed:6.3g} MB/s, preparing takes {middle:.3g} "
            f"times as long ({low:.3g} to {high:.3g})",
            flush=True,
        )


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--documents", type=int, default=200)
    options.add_argument("--repeats", type=int, default=9, help="measured rounds after a warm-up")
    options = options.parse_args()
    library = open_source("stdlib", subset=None, text_field="text", streaming=False, revision=None)
    parts = itertools.islice(library.parts(), options.documents)
    batches = [[text for text, _ in batch] for batch in piece_writing._batch_parts(parts)]
    texts = [text for batch in batches for text in batch]
    size = sum(len(text.encode()) for text in texts)
    alone = os.environ.get("TOKENIZERS_PARALLELISM") == "false"
    cores = 1 if alone else len(os.sched_getaffinity(0))
    print(f"{len(texts)} documents, {size / 1e6:.3g} MB, cores {cores} ({describe_machine('cpu')})")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "texts.jsonl")
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        source.write_text(lines, encoding="utf-8")
        compare("bytes", load_tokenizer("bytes"), batches, str(source), size, options.repeats)
        compare("bpe", trained_tokenizer(texts), batches, str(source), size, options.repeats)


if __name__ == "__main__":
    main()
