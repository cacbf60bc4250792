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


def _item(draw, task, number):
    """Return an item in the fields that lm-eval's definition of a task reads."""
    text, other, label = f"{phrase(draw)} {number}?", phrase(draw), draw.randrange(2)
    keyed = {"text": [phrase(draw, 3) for _ in range(4)], "label": list("ABCD")}
    choices = [f"{phrase(draw, 2)} {i}" for i in range(draw.choice([2, 3]))]
    keyed = {"choices": keyed, "answerKey": draw.choice("ABCD")}
    question = {"question": text, **keyed}
    return {
        "arc_easy": question,
        "arc_challenge": question,
        "openbookqa": {"question_stem": text, **keyed},
        "hellaswag": {
            "activity_label": other,
            "ctx_a": f" {text} [step] [title] Then.",
            "ctx_b": draw.choice(["", "the OLD man  "]),
            "endings": [f" {phrase(draw, 4)}. " for _ in range(4)],
            "label": draw.randrange(4),
        },
        "copa": {
            "premise": f"{text}. ",
            "question": draw.choice(["cause", "effect"]),
            "choice1": f"{phrase(draw, 4)}.",
            "choice2": f"{phrase(draw, 4)}!",
            "label": label,
        },
        "multirc": {"paragraph": f"{other}. So.", "question": text, "answer": "No", "label": label},
        "wic": {
            "sentence1": f"bank {text}",
            "sentence2": f"{other} banks.",
            "start1": 0,
            "end1": 4,
            "label": label,
        },
        "qnli": {"question": text, "sentence": f"{other}.", "label": label},
        "wnli": {"sentence1": text, "sentence2": f"{other}.", "label": label},
    }.get(
        task.stem,
        {
            "inputs": f"Q: {text}\nA:",
            "targets": [draw.choice(choices)],
            "multiple_choice_targets": choices,
        },
    )


def docs(name, count=12):
    """Return items of a task by split, always the same ones."""
    task = TASKS[name]
    draw = random.Random(f"items of {name}")
    splits = ("default",) if task.split == "default" else ("train", task.split)
    return {
        split: [_item(draw, task, 100 * at + number) for number in range(count)]
        for at, split in enumerate(splits)
    }
