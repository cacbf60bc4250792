"""Preparing text by tasks: the same tokens by 1, 2 and 4, and the speed beside datatrove's own.

    python benchmarks/prepare_tasks.py TEXT.jsonl[.xz] ... [--megabytes N] [--speed N] [--repeats N]

The texts are repeated to N megabytes of JSON lines, each document with its number. Tokens of bytes
are made of it by 1, 2 and 4 tasks of ``layermem prepare``, and their digests compared. The speed is
that of one thread with a BPE of 8,192 tokens on fewer megabytes: ours, with its hashes, splits and
files, and datatrove's DocumentTokenizer after the same reader, alternately in one process. CPU time
is the process's, so that another program beside it does not count. 0 megabytes: that part is left
out.
"""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils.logging import logger
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layermem_bench.config.run import Data
from layermem_bench.data.datatrove_tasks import Engine
from layermem_bench.data.local_workers import make_locally
from layermem_bench.data.preparing import build, read_folder
from layermem_bench.data.sources import open_source
from layermem_bench.data.tokenizers import END, load_tokenizer
from layermem_bench.efficiency.measuring import describe_machine


def write_text(sources, size, path):
    """Write documents of texts, over and over, until the file has so many bytes; return them."""
    written, count = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for text in itertools.chain.from_iterable(map(open_source, sources)):
                line = json.dumps({"text": f"{count}\n{text}"}, ensure_ascii=False) + "\n"
                file.write(line)
                written, count = written + len(line.encode()), count + 1
                if written >= size:
                    break
    return written


def trained_tokenizer(path, folder):
    """Save a byte-level BPE of 8,192 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    texts = itertools.islice(open_source(str(path)), 300)
    tokenizer.train_from_iterator((text[:20_000] for text in texts), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.save_pretrained(folder)
    return fast


def digest(splits):
    """Return a digest of the tokens of both splits."""
    value = hashlib.sha256()
    for split in splits:
        tokens = split.array()
        for begin in range(0, len(tokens), 2**22):
            value.update(tokens[begin : begin + 2**22].tobytes())
    return value.hexdigest()[:16]


def compare_tasks(source, folder):
    """Print the digest of the tokens that 1, 2 and 4 tasks make."""
    tokenizer, found = load_tokenizer("bytes"), set()
    for tasks in (1, 2, 4):
        cache = folder / f"{tasks}-tasks"
        engine = Engine(executor="local", tasks=tasks)
        begun = time.perf_counter()
        made, _ = build(Data(source=str(source), cache=str(cache)), tokenizer, engine.make)
        splits = read_folder(made, tokenizer)
        found.add(digest(splits))
        print(
            f"{tasks} tasks: {sum(split.tokens for split in splits):,} tokens, "
            f"{len(splits[0].shards)} files, digest {digest(splits)}, "
            f"{time.perf_counter() - begun:.0f} s",
            flush=True,
        )
        shutil.rmtree(cache)
    assert len(found) == 1, found


def ours(source, tokenizer, folder):
    """Prepare a text by one process; return the tokens and the seconds of its CPU."""
    cache = folder / "ours"
    begun = time.process_time()
    config = Data(source=str(source), cache=str(cache))
    made, _ = build(config, tokenizer, partial(make_locally, workers=1))
    spent = time.process_time() - begun
    tokens = sum(split.tokens for split in read_folder(made, tokenizer))
    shutil.rmtree(cache)
    return tokens, spent


def datatroves(source, tokenizer, folder):
    """Have datatrove's own steps tokenize a text in this process; return as ``ours``."""
    out = folder / "datatrove"

    def reader(data, rank, world_size):
        for number, text in enumerate(open_source(str(source))):
            yield Document(text=text, id=str(number))

    step = DocumentTokenizer(
        str(out),
        tokenizer_name_or_path=str(tokenizer / "tokenizer.json"),
        eos_token=END,
        shuffle_documents=False,
    )
    begun = time.process_time()
    LocalPipelineExecutor([reader, step], workers=1, logging_dir=str(folder / "logs")).run()
    spent = time.process_time() - begun
    tokens = sum(path.stat().st_size for path in out.glob("*.ds")) // 2
    shutil.rmtree(out)
    shutil.rmtree(folder / "logs")
    return tokens, spent


def compare_speed(source, folder, repeats):
    """Print tokens per second and core of ours and of datatrove's."""
    saved = folder / "tokenizer"
    tokenizer = trained_tokenizer(source, saved)
    rounds = [
        (ours(source, tokenizer, folder), datatroves(source, saved, folder))
        for _ in range(repeats + 1)
    ][1:]
    assert len({tokens for pair in rounds for tokens, _ in pair}) == 1, rounds
    for name, place in (("layermem", 0), ("datatrove", 1)):
        speeds = [pair[place][0] / pair[place][1] for pair in rounds]
        print(f"{name:9} {statistics.median(speeds):,.0f} tokens per second and core")
    ratios = [theirs / own for (_, own), (_, theirs) in rounds]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"ours is {middle:.2f} times as fast ({low:.2f} to {high:.2f} in {repeats} rounds)")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("texts", nargs="+")
    options.add_argument("--megabytes", type=float, default=300)
    options.add_argument("--speed", type=float, default=12, help="megabytes to measure speed on")
    options.add_argument("--repeats", type=int, default=5)
    options = options.parse_args()
    logger.remove()
    print(describe_machine("cpu"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = folder / "small.jsonl", folder / "large.jsonl"
        if options.speed:
            write_text(options.texts, options.speed * 1e6, small)
            compare_speed(small, folder, options.repeats)
        if options.megabytes:
            written = write_text(options.texts, options.megabytes * 1e6, large)
            print(f"{written / 1e6:.0f} MB", flush=True)
            compare_tasks(large, folder)


if __name__ == "__main__":
    main()
