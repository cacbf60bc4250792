"""Tiny models with a tokenizer of bytes, records that they can learn, and runs on them."""

import json
import random

from host_models import make_host

from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.run_folder import RunFolder

SIZES = {"vocab_size": 257, "pad_token_id": 256, "max_position_embeddings": 300}
TOKENS = {**SIZES, "bos_token_id": 256, "eos_token_id": 256}
ENCODERS = ("bert", "roberta", "deberta")
DECODERS = ("llama", "gpt2", "gpt_neox")


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(count, seed=0):
    """Return records whose label is the first letter of the sentence."""
    draw = random.Random(seed)
    words = [[draw.choice("abcdefgh") for _ in range(draw.randrange(1, 6))] for _ in range(count)]
    return [
        {"question": " ".join(w), "sentence": f"{'xy'[i % 2]} {w[0]}", "label": "yn"[i % 2]}
        for i, w in enumerate(words)
    ]


def arguments(folder, *more, base="bert", steps=8):
    share = [] if "--validation" in more else ["--validation-share", "0.2"]
    records = ["--records", str(folder / "records.jsonl"), *share]
    sizes = ["--batch-size", "8", "--micro-batch", "4", "--max-length", "16", "--lr", "1e-2"]
    often = ["--max-steps", str(steps), "--eval-every", "4", "--precision", "float32"]
    return ["train", "--host", str(folder / base), *records, *sizes, *often, *more]


def finetuned(folder, out, *more, **changes):
    cli.main([*arguments(folder, *more, **changes), "--out", str(out)])
    return RunFolder(out)


def fill(path, names=(*ENCODERS, *DECODERS)):
    """Put models and records into a folder, and return it."""
    for name in names:
        make_host(name, **(SIZES if name in ENCODERS else TOKENS)).save_pretrained(path / name)
        load_tokenizer("bytes").save_pretrained(path / name)
    write_rows(path / "records.jsonl", rows_of(120))
    return path
