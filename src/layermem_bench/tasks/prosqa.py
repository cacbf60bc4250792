"""ProsQA: which of two concepts follows for a person, proved step by step (Hao et al., 2024).

    prompt      Every shumpus is a rempus. Every terpus is a fompus. Tom is a terpus. ... Every
                terpus is a brimpus. Every brimpus is a lempus. Is Tom a lempus or scrompus?
    solution    Tom is a terpus. Every terpus is a brimpus. Every brimpus is a lempus.
                ### Tom is a lempus.

The example is the first record of the original validation set, cut. ``load`` reads the original
files; ``generate`` draws records like theirs, for which shortcuts do not help (docs/tasks.md).
"""

import json
import logging
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from layermem_bench.config.typed_dicts import from_dict
from layermem_bench.tasks.problems import (
    Grade,
    require,
    tokenizer_of_words,
)
from layermem_bench.tasks.prosqa_graphs import Edge, Graph, draw_crossed, shortest_path

logger = logging.getLogger(__name__)
NAMES = [
    *("Alex", "Bob", "Carol", "Davis", "Eva", "Fae", "Gabriel", "Jack", "Max"),
    *("Oliver", "Polly", "Rex", "Sally", "Sam", "Stella", "Tom", "Wren"),
]
CONCEPTS = [
    *("bompus", "boompus", "brimpus", "chorpus", "dumpus", "felpus", "fompus", "gerpus"),
    *("gorpus", "grimpus", "gwompus", "hilpus", "impus", "jelpus", "jompus", "kerpus"),
    *("lempus", "lorpus", "numpus", "quimpus", "rempus", "rompus", "rorpus", "scrompus"),
    *("shumpus", "sterpus", "storpus", "terpus", "timpus", "tumpus", "vumpus", "worpus"),
    *("wumpus", "yerpus", "yimpus", "yumpus", "zhorpus", "zumpus"),
]
_SENTENCE = re.compile(r"(?:Every )?(\w+) is an? (\w+)")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One question with its proof; the fields are named as in the original files."""

    question: str
    answer: str
    steps: tuple[str, ...]
    idx_to_symbol: tuple[str, ...]
    edges: tuple[Edge, ...]
    root: int
    target: int
    neg_target: int

    @property
    def prompt(self) -> str:
        """The question, as it is given to the model."""
        return f"{self.question}\n"

    @property
    def solution(self) -> str:
        """The proof and the answer that the model should generate."""
        return f"{' '.join(self.steps)}\n### {self.answer}"


def generate(
    count: int,
    seed: int,
    *,
    split: str = "train",
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
    graphs: Literal["crossed"] = "crossed",
) -> list[Record]:
    """Return ``count`` different records of a split, from its file where one is given, else drawn.

    Records of a file that are in the file of a later split as well (in the order train, validation,
    test) are left out. The same seed draws other records for another split.

    ``steps`` of the proof, ``nodes`` (people and concepts) and ``statements`` are the same for
    every record where they are given, and else drawn like the originals', as many statements for
    each node. Statements are fewer where the graph has no room for more, and more where a node
    would be unconnected. ``graphs`` names how they are drawn, such that only person and directions
    together tell the answer, so that a recorded config says it.
    """
    files = {"train": train, "validation": validation, "test": test}
    if files[split]:
        return _load_split(split, files)[:count]
    draw, records = random.Random(f"{split}-{seed}"), dict[str, Record]()
    while len(records) < count:
        record = _as_record(draw_crossed(draw, steps, nodes, statements), draw)
        records[record.question] = record
    return list(records.values())


def load(path: str | os.PathLike[str]) -> list[Record]:
    """Read a file of records: a JSON list of objects with the fields of ``Record``, and maybe
    others. One whose proof does not follow is refused: no right answer would count."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    require(isinstance(values, list), f"{path} must hold a list of records")
    names, records = [each.name for each in fields(Record)], list[Record]()
    for number, value in enumerate(values):
        try:
            known = {name: value[name] for name in names}
            record = from_dict(Record, known, "")
            require(grade(record, record.solution).steps, "its proof does not follow")
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{path}, record {number}: {error!r}") from error
        records.append(record)
    return records


def _load_split(split: str, files: Mapping[str, str | None]) -> list[Record]:
    """Return the different records of a split's file that no later split's file holds too; a file
    of which nothing would be left is refused."""
    records = {record.question: record for record in load(str(files[split]))}
    later = [path for path in list(files.values())[list(files).index(split) + 1 :] if path]
    held_out = {record.question for path in later for record in load(path)}
    left = [record for question, record in records.items() if question not in held_out]
    require(
        bool(left),
        f"{split}={files[split]} holds no problem that {' and '.join(later)} does not hold; give "
        "each split problems of its own",
    )
    if len(left) < len(records):
        count = f"{len(records) - len(left):,} of {len(records):,}"
        what = f"{split}={files[split]}"
        logger.warning("%s problems of %s are in a later split's file: left out", count, what)
    return left


def grade(record: Record, text: str) -> Grade:
    """Grade a generated solution: the proof, ``#``, the answer.

    A fault is "no answer" (no ``#``), "unreadable" (not a sentence of the expected form),
    "unstated" (not in the question), "apart" (does not start where the step before ended) or
    "elsewhere" (the proof does not end in the answer).
    """
    proof, separator, given = text.rpartition("#")
    if not separator:
        return Grade(answer=False, steps=False, fault="no answer")
    answer, proof = given.strip() == record.answer, proof.rstrip("# \n")
    sentences = [part.strip() for part in proof.split(".") if part.strip()]
    symbols = record.idx_to_symbol
    stated = {(symbols[a], symbols[b]) for a, b in record.edges}
    position = symbols[record.root]
    for number, sentence in enumerate(sentences, 1):
        match = _SENTENCE.fullmatch(sentence)
        wrong = partial(Grade, answer=answer, steps=False, at=number)
        if match is None or (sentence.startswith("Every") != match[1].islower()):
            return wrong(fault="unreadable")
        if match.groups() not in stated:
            return wrong(fault="unstated")
        if match[1] != position:
            return wrong(fault="apart")
        position = match[2]
    if not answer or position != symbols[record.target]:
        return Grade(answer=answer, steps=False, fault="elsewhere", at=len(sentences))
    return Grade(answer=True, steps=True)


def word_tokenizer(**_: Any) -> Tokenizer:
    words = ["\n", ".", "?", "###", " or", " is", " a"]
    words += [f"{space}{word}" for word in ("Every", "Is", *NAMES) for space in ("", " ")]
    inner = tokenizer_of_words([*words, *(f" {concept}" for concept in CONCEPTS)])
    pieces = Regex(r" ?\w+| ?#+|\n|[^\w\s]")
    inner.pre_tokenizer = pre_tokenizers.Split(pieces, "isolated")
    inner.decoder = decoders.Fuse()
    return inner


def _as_record(graph: Graph, draw: random.Random) -> Record:
    """Name the nodes of a graph, and write its statements in a random order."""
    edges, people, nodes = sorted(graph.edges), graph.people, graph.size
    symbols = [*draw.sample(NAMES, people), *draw.sample(CONCEPTS, nodes - people)]
    root, target, wrong = graph.question

    def sentence(a: int, b: int) -> str:
        return f"{'Every ' if a >= people else ''}{symbols[a]} is a {symbols[b]}."

    statements = [sentence(a, b) for a, b in draw.sample(edges, len(edges))]
    first, second = draw.sample((symbols[target], symbols[wrong]), 2)
    steps = pairwise(shortest_path(edges, root, target))
    return Record(
        question=f"{' '.join(statements)} Is {symbols[root]} a {first} or {second}?",
        answer=f"{symbols[root]} is a {symbols[target]}.",
        steps=tuple(sentence(a, b) for a, b in steps),
        idx_to_symbol=tuple(symbols),
        edges=tuple(edges),
        root=root,
        target=target,
        neg_target=wrong,
    )
