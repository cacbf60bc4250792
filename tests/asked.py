"""Questions that tiny models can learn to answer, tokenizers of their words, and runs on them."""

import json
import random

from host_models import DECODERS, make_host
from labelled import write_rows
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer, train_word_pieces
from layermem_bench.results.run_folder import RunFolder

KINDS = {
    "colour": ["red", "blue", "green", "black"],
    "animal": ["dog", "cat", "owl", "fox"],
    "city": ["oslo", "rome", "lima", "bern"],
    "number": ["two", "six", "ten", "nine"],
}
FILLERS = ["saw", "near", "then", "with"]
WORDS = [*(word for words in KINDS.values() for word in words), *FILLERS, "which", *KINDS, "?"]
END = "<end>"


def question_rows(count, *, seed=0, unanswerable=0.0):
    """Return records such as "near owl then red saw six": which animal? owl; which city? none."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        *told, absent = draw.sample(list(KINDS), 4)
        words = [draw.choice(KINDS[kind]) for kind in told]
        parts = [f"{draw.choice(FILLERS)} {word}" for word in words]
        is_none = draw.random() < unanswerable
        asked = draw.randrange(3)
        start = len(" ".join(parts[: asked + 1])) - len(words[asked])
        answers = {"text": [words[asked]], "answer_start": [start]}
        row = {
            "id": f"q{number}",
            "context": " ".join([*parts, *draw.choices(FILLERS, k=draw.randrange(3))]),
            "question": f"which {absent if is_none else told[asked]} ?",
            "answers": {"text": [], "answer_start": []} if is_none else answers,
        }
        rows.append(row)
    return rows


def words_tokenizer():
    """Return a tokenizer of these words that puts nothing between two texts, as GPT-2's does."""
    ids = {word: i for i, word in enumerate([END, "<unk>", *WORDS])}
    raw = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END, bos_token=END, unk_token="<unk>"
    )


def pieces_tokenizer():
    """Return a tokenizer that joins two texts as BERT's does."""
    return train_word_pieces([" ".join(WORDS)] * 3, 300)


def tokenizer_of(name):
    # Qwen2's class of tokenizers has a rule of its own to part texts, which leaves words out.
    by_name = {"qwen2": lambda: load_tokenizer("bytes")}
    return by_name.get(name, words_tokenizer if name in DECODERS else pieces_tokenizer)()


def put_base(path, name, **fields):
    """Save a tiny model with its tokenizer into a folder, and return the folder."""
    tokenizer = tokenizer_of(name)
    end = tokenizer.eos_token_id
    ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    ids = ends if name in DECODERS else {"pad_token_id": tokenizer.pad_token_id}
    make_host(name, vocab_size=len(tokenizer), **ids, **fields).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def asked(base, source, out, *more, steps=8):
    """Run `layermem train --host` on questions, and return its folder."""
    records = ["--records", str(source), "--kind", "question-answering"]
    sizes = ["--batch-size", "8", "--micro-batch", "4", "--max-length", "24", "--stride", "4"]
    often = [
        "--max-steps",
        str(steps),
        "--eval-every",
        "4",
        "--precision",
        "float32",
        "--lr",
        "3e-3",
    ]
    share = [] if "--validation" in more else ["--validation-share", "0.2"]
    arguments = [*records, *sizes, *often, *share, *more]
    cli.main(["train", "--host", str(base), *arguments, "--out", str(out)])
    return RunFolder(out)


def predictions_of(run):
    return [json.loads(line) for line in run.predictions.read_text().splitlines()]


def put_questions(path, count=80, **options):
    return write_rows(path, question_rows(count, **options))
