"""Small models, and items of our own for every evaluation task, in the hub's fields.

Their texts have what prompts are made of wrongly: quotation marks, brackets, doubled spaces,
apostrophes, letters beyond ASCII.
"""

import random
import re

from tiny import TINY, make

from layermem.models.registry import lookup
from layermem_bench.evals.benchmark_records import TASKS

TEXT = """the river's stone [title] [edge] “old”  café said "no" it's a über-long  wooden bridge
near seven small houses where people sell bread and salt"""
WORDS = re.split(r"[ \n]", TEXT)


def our_model(name="lime", longest=64):
    """Return a model of random weights that reads bytes."""
    entry = lookup(name)
    sizes = {**TINY, "vocab_size": 257, "max_position_embeddings": longest}
    return make(entry.causal_lm, entry.config(**sizes))


def phrase(draw, count=6):
    """Return words with a capital first, doubled spaces among them."""
    text = " ".join(draw.choice(WORDS) for _ in range(count)).strip() or "word"
    return text[0].upper() + text[1:]


def _keyed(draw, count):
    labels = list("ABCDE"[:count])
    texts = [phrase(draw, 3) for _ in labels]
    return {"choices": {"text": texts, "label": labels}, "answerKey": draw.choice(labels)}


def _arc(draw, number):
    return {"question": f"{phrase(draw)} {number}?", **_keyed(draw, draw.choice([3, 4, 5]))}


def _openbookqa(draw, number):
    return {"question_stem": f"{phrase(draw)} {number}", **_keyed(draw, 4)}


def _hellaswag(draw, number):
    return {
        "activity_label": phrase(draw, 2),
        "ctx_a": f" {phrase(draw)} [step] {number}. [title] Then.",
        "ctx_b": draw.choice(["", "the OLD man  "]),
        "endings": [f" {phrase(draw, 4)}. " for _ in range(4)],
        "label": draw.randrange(4),
    }


def _copa(draw, number):
    return {
        "premise": f"{phrase(draw)} {number}. ",
        "question": draw.choice(["cause", "effect"]),
        "choice1": f"{phrase(draw, 4)}.",
        "choice2": f"{phrase(draw, 4)}!",
        "label": draw.randrange(2),
    }


def _multirc(draw, number):
    return {
        "paragraph": ". ".join(phrase(draw) for _ in range(3)),
        "question": f"{phrase(draw)} {number}?",
        "answer": phrase(draw, 3),
        "label": draw.randrange(2),
    }


def _wic(draw, number):
    first = f"{phrase(draw)} bank {number}."
    start = first.index("bank")
    return {
        "sentence1": first,
        "sentence2": f"{phrase(draw)} banks.",
        "start1": start,
        "end1": start + 4,
        "label": draw.randrange(2),
    }


def _glue(*names):
    def make(draw, number):
        first, second = f"{phrase(draw)} {number}?", f"{phrase(draw)}."
        return {names[0]: first, names[1]: second, "label": draw.randrange(2)}

    return make


def _bigbench(draw, number):
    choices = [f"{phrase(draw, 2)} {i}" for i in range(draw.choice([2, 3]))]
    return {
        "inputs": f"Q: {phrase(draw)} {number}?\nA:",
        "targets": [draw.choice(choices)],
        "multiple_choice_targets": choices,
    }


MAKERS = {
    "arc_easy": _arc,
    "arc_challenge": _arc,
    "openbookqa": _openbookqa,
    "hellaswag": _hellaswag,
    "copa": _copa,
    "multirc": _multirc,
    "wic": _wic,
    "qnli": _glue("question", "sentence"),
    "wnli": _glue("sentence1", "sentence2"),
}


def docs(name, count=12):
    """Return items of a task by split, always the same ones."""
    task = TASKS[name]
    draw = random.Random(f"items of {name}")
    make = MAKERS.get(task.stem, _bigbench)
    splits = ("default",) if task.split == "default" else ("train", task.split)
    return {
        split: [make(draw, 100 * at + number) for number in range(count)]
        for at, split in enumerate(splits)
    }
