"""ProsQA: which of two concepts follows for a person, proved step by step (Hao et al., 2024).

    prompt      Every shumpus is a rempus. Every terpus is a fompus. Tom is a terpus. ... Every
                terpus is a brimpus. Every brimpus is a lempus. Is Tom a lempus or scrompus?
    solution    Tom is a terpus. Every terpus is a brimpus. Every brimpus is a lempus.
                ### Tom is a lempus.

The example is the first record of the original validation set, cut. ``load`` reads the original
files; ``generate`` draws records like theirs, for which shortcuts do not help. docs/tasks.md says
which shortcuts help for the originals.
"""

import logging
import random
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

from layermem_bench.tasks.problems import (
    Grade,
    check_split_and_count,
    require,
    require_one_of,
    spread,
    tokenizer_of_words,
)
from layermem_bench.tasks.prosqa_crossed import draw_crossed
from layermem_bench.tasks.prosqa_graphs import Graph, draw_bridged, draw_lines, shortest_path
from layermem_bench.tasks.prosqa_records import SHORTCUTS, Record, farther_from_others, load

__all__ = ["CONCEPTS", "NAMES", "Record", "describe", "generate", "grade", "load"]

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
_GRAPHS = {"crossed": draw_crossed, "bridged": draw_bridged, "lines": draw_lines}
_SENTENCE = re.compile(r"(?:Every )?(\w+) is an? (\w+)")


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
    graphs: Literal["crossed", "bridged", "lines"] = "crossed",
) -> list[Record]:
    """Return ``count`` different records of a split, from its file where one is given, else drawn.

    Records of a file that are in the file of a later split as well (in the order train, validation,
    test) are left out. The same seed draws other records for another split.

    ``steps`` of the proof, ``nodes`` (people and concepts) and ``statements`` are the same for
    every record where they are given, and else drawn like the originals', as many statements for
    each node. Statements are fewer where the graph has no room for more, and more where a node
    would be unconnected. ``graphs`` says how they are drawn: "crossed", such that only person and
    directions together tell the answer; "bridged", as recorded runs learned from, where shortcuts
    are left; or "lines", which do not branch, to learn on that statements are looked up
    (docs/tasks.md).
    """
    check_split_and_count(split, count)
    require_one_of("graphs", graphs, _GRAPHS)
    files = {"train": train, "validation": validation, "test": test}
    if files[split]:
        return _load_split(split, files)[:count]
    draw, records = random.Random(f"{split}-{seed}"), dict[str, Record]()
    while len(records) < count:
        record = _as_record(_GRAPHS[graphs](draw, steps, nodes, statements), draw)
        records[record.question] = record
    return list(records.values())


def _load_split(split: str, files: Mapping[str, str | None]) -> list[Record]:
    """Return the records of a split's file without those that a later split's file holds too.

    Two files that hold the same records, in any order, are refused, and so is a file of which
    nothing would be left.
    """
    records, own = load(str(files[split])), f"{split}={files[split]}"
    different = {record.question: record for record in records}
    if len(different) < len(records):
        count = f"{len(records) - len(different):,} of {len(records):,}"
        logger.warning("%s problems of %s repeat one before: left out", count, own)
        records = list(different.values())
    for record in records:
        if not grade(record, record.solution).steps:
            raise ValueError(
                f"{own}: the proof of the question {record.question[:80]!r} ... does not follow "
                "from its statements, so that no right answer would count: mend its edges or root"
            )
    questions = set(different)
    later = False
    for other_split, path in files.items():
        later = later or other_split == split
        if other_split == split or not path:
            continue
        others, other = {record.question for record in load(path)}, f"{other_split}={path}"
        remaining = [record for record in records if record.question not in others]
        if questions == others or (later and not remaining):
            raise ValueError(
                f"{own} holds no problem that {other} does not hold; give each split problems of "
                "its own"
            )
        if later and len(remaining) < len(records):
            count = f"{len(records) - len(remaining):,} of {len(records):,}"
            logger.warning(
                "%s problems of %s are in %s too: left out of %s", count, own, other, split
            )
            records = remaining
    return records


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


def describe(records: Sequence[Record]) -> dict[str, Any]:
    require(len(records) > 0, "there are no records to describe")
    used = {symbol for record in records for symbol in record.idx_to_symbol}
    steps = Counter(len(record.steps) for record in records)
    people = sum(symbol[0].isupper() for symbol in used)
    return {
        "records": len(records),
        "steps": {number: steps[number] / len(records) for number in sorted(steps)},
        "nodes: fewest, mean, most": spread([len(record.idx_to_symbol) for record in records]),
        "statements: fewest, mean, most": spread([len(record.edges) for record in records]),
        "names and concepts": [people, len(used) - people],
        "right answers by shortcut": {
            name: statistics.fmean(map(shortcut, records)) for name, shortcut in SHORTCUTS.items()
        },
        "right answers by elimination": statistics.fmean(map(farther_from_others, records)),
    }


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
