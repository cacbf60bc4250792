"""ProsQA: which of two concepts follows for somebody, proved step by step (Hao et al., 2024).

    prompt      Every shumpus is a rempus. Every terpus is a fompus. Tom is a terpus. ... Every
                terpus is a brimpus. Every brimpus is a lempus. Is Tom a lempus or scrompus?
    solution    Tom is a terpus. Every terpus is a brimpus. Every brimpus is a lempus.
                ### Tom is a lempus.

The example is the first record of the original validation set, cut. ``load`` reads the original
files; ``generate`` draws records like theirs, in which shortcuts do not help; docs/tasks.md says
which help in the originals.

It does not know: ids of tokens, models, training.
"""

import json
import os
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layermem.tasks.crossed import Crossed, draw_crossed
from layermem.tasks.grading import Grade
from layermem.tasks.graphs import NOWHERE, Edge, Graph, distances, draw_graph, way
from layermem.tasks.splits import apart


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Alex Bob Carol Davis Eva Fae Gabriel Jack Max Oliver Polly Rex Sally Sam Stella Tom Wren"
)
CONCEPTS = _words(
    "bompus boompus brimpus chorpus dumpus felpus fompus gerpus gorpus grimpus gwompus hilpus "
    "impus jelpus jompus kerpus lempus lorpus numpus quimpus rempus rompus rorpus scrompus shumpus "
    "sterpus storpus terpus timpus tumpus vumpus worpus wumpus yerpus yimpus yumpus zhorpus zumpus"
)
GRAPHS: dict[str, Callable[..., Graph | Crossed]] = {
    "crossed": draw_crossed,
    "bridged": draw_graph,
}
_SENTENCE = re.compile(r"(?:Every )?(\w+) is an? (\w+)")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One question with its proof, under the original files' names."""

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
        """The question, as the model is given it."""
        return f"{self.question}\n"

    @property
    def solution(self) -> str:
        """The proof and the answer, as the model should write them."""
        return f"{' '.join(self.steps)}\n### {self.answer}"


def generate(
    count: int,
    seed: int,
    *,
    split: str = "train",
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
    graphs: Literal["crossed", "bridged"] = "crossed",
) -> list[Record]:
    """Draw ``count`` different records; seeds of different splits do not meet.

    ``steps`` in a proof, ``nodes`` (people and concepts) and ``statements``: the same for every
    record; None: drawn like the originals', as many statements for each node. Statements are fewer
    where the graph has room for fewer, and more where a node would stand apart. ``graphs``: how
    they are drawn: "crossed", so that only the arrows say who follows, or "bridged", as before,
    where shortcuts are left (docs/tasks.md).
    """
    if graphs not in GRAPHS:
        raise ValueError(f"graphs must be one of {', '.join(GRAPHS)}, got {graphs!r}")
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    draw, found = random.Random(f"{split}-{seed}"), dict[str, Record]()
    while len(found) < count:
        graph = GRAPHS[graphs](draw, steps=steps, nodes=nodes, statements=statements)
        record = _told(graph, draw)
        found[record.question] = record
    return list(found.values())


def load(path: str | os.PathLike[str]) -> list[Record]:
    """Read an original file: a JSON list of records."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, list):
        raise ValueError(f"{path} must hold a list of records, got {type(values).__name__}")
    return [_record(value, f"{path}, record {i}") for i, value in enumerate(values)]


def problems(
    *,
    split: str,
    count: int,
    seed: int,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
    graphs: Literal["crossed", "bridged"] = "crossed",
) -> list[Record]:
    """Return the records of a split: of the original file where one is given, else drawn.

    What a file holds of the files held out after it (train, validation, test) is left out.
    """
    files = {"train": train, "validation": validation, "test": test}
    if files[split]:
        return apart(split, files, load)[:count]
    sizes = {"steps": steps, "nodes": nodes, "statements": statements}
    return generate(count, seed, split=split, graphs=graphs, **sizes)


def grade(record: Record, text: str) -> Grade:
    """Grade a generated solution: the proof, ``#``, the answer.

    A fault is "no answer" (no ``#``), "unreadable" (no sentence of the form), "unstated" (not in
    the question), "apart" (does not follow from the step before) or "elsewhere" (the proof does
    not end in the answer).
    """
    proof, mark, given = text.rpartition("#")
    if not mark:
        return Grade(answer=False, steps=False, fault="no answer")
    answer, proof = given.strip() == record.answer, proof.rstrip("# \n")
    sentences = [part.strip() for part in proof.split(".") if part.strip()]
    symbols = record.idx_to_symbol
    stated = {(symbols[a], symbols[b]) for a, b in record.edges}
    at = symbols[record.root]
    for number, sentence in enumerate(sentences, 1):
        match = _SENTENCE.fullmatch(sentence)
        fault = ""
        if match is None or (sentence.startswith("Every") != match[1].islower()):
            fault = "unreadable"
        elif match.groups() not in stated:
            fault = "unstated"
        elif match[1] != at:
            fault = "apart"
        if fault or match is None:
            return Grade(answer=answer, steps=False, fault=fault, at=number)
        at = match[2]
    if not answer or at != symbols[record.target]:
        return Grade(answer=answer, steps=False, fault="elsewhere", at=len(sentences))
    return Grade(answer=True, steps=True)


def tokenizer(**_: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token for each word, which gives back every prompt as it was."""
    words = ["<pad>", "<end>", "<unknown>", "\n", ".", "?", "###", " or", " is", " a"]
    words += [f"{space}{word}" for word in ("Every", "Is", *NAMES) for space in ("", " ")]
    words += [f" {concept}" for concept in CONCEPTS]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>")
    )
    pieces = Regex(r" ?\w+| ?#+|\n|[^\w\s]")
    inner.pre_tokenizer = pre_tokenizers.Split(pieces, "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def describe(records: Sequence[Record]) -> dict[str, Any]:
    """Return what records are like, and how often shortcuts answer right."""
    if not records:
        raise ValueError("there are no records to describe")
    nodes = [len(record.idx_to_symbol) for record in records]
    statements = [len(record.edges) for record in records]
    used = {symbol for record in records for symbol in record.idx_to_symbol}
    steps = Counter(len(record.steps) for record in records)
    return {
        "records": len(records),
        "steps": {number: steps[number] / len(records) for number in sorted(steps)},
        "nodes: fewest, mean, most": [min(nodes), statistics.fmean(nodes), max(nodes)],
        "statements: fewest, mean, most": [
            min(statements),
            statistics.fmean(statements),
            max(statements),
        ],
        "names and concepts": [
            len([symbol for symbol in used if symbol[0].isupper()]),
            len([symbol for symbol in used if symbol[0].islower()]),
        ],
        "right answers by shortcut": {
            name: statistics.fmean(guess(record) for record in records)
            for name, guess in SHORTCUTS.items()
        },
        "right answers by elimination": statistics.fmean(map(farther_from_others, records)),
    }


def shorter_way(record: Record) -> float:
    """Credit for taking the option that is nearer, arrows forgotten; half where both are alike."""
    far = distances(_both_ways(record), record.root)
    return _credit(far.get(record.neg_target, NOWHERE) - far.get(record.target, NOWHERE))


def within_three_steps(record: Record) -> float:
    """Credit for taking the option that is 3 steps away or nearer, arrows forgotten."""
    far = distances(_both_ways(record), record.root)
    near = [far.get(i, NOWHERE) <= 3 for i in (record.target, record.neg_target)]
    return _credit(near[0] - near[1])


def likelier_walk(record: Record) -> float:
    """Credit for taking the option where a walk is more often that forgets the arrows.

    It begins with who is asked about, and begins anew at each step with probability 0.15 (PageRank
    with restart).
    """
    edges = _both_ways(record)
    out = Counter(a for a, _ in edges)
    begun = [float(i == record.root) for i in range(len(record.idx_to_symbol))]
    share = begun
    for _ in range(60):
        following = [0.15 * own for own in begun]
        for a, b in edges:
            following[b] += 0.85 * share[a] / out[a]
        share = following
    return _credit(round(share[record.target] - share[record.neg_target], 9))


def more_walks(record: Record) -> float:
    """Credit for taking the option that more walks of up to 6 steps lead to, arrows forgotten."""
    edges = _both_ways(record)
    walks = [int(i == record.root) for i in range(len(record.idx_to_symbol))]
    lead = 0
    for _ in range(6):
        following = [0] * len(walks)
        for a, b in edges:
            following[b] += walks[a]
        walks = following
        lead += walks[record.target] - walks[record.neg_target]
    return _credit(lead)


def later_mention(record: Record) -> float:
    """Credit for taking the option that is mentioned last before the question is asked."""
    body = record.question.rpartition(". ")[0]
    last = [
        max((m.start() for m in re.finditer(rf"\b{record.idx_to_symbol[i]}\b", body)), default=-1)
        for i in (record.target, record.neg_target)
    ]
    return _credit(last[0] - last[1])


def first_option(record: Record) -> float:
    """Credit for taking the option that is named first."""
    asked = record.question.rpartition(". ")[2]
    return _credit(
        asked.find(f" {record.idx_to_symbol[record.neg_target]}")
        - asked.find(f" {record.idx_to_symbol[record.target]}")
    )


def fewer_mentions(record: Record) -> float:
    """Credit for taking the option that fewer statements lead to."""
    into = Counter(b for _, b in record.edges)
    return _credit(into[record.neg_target] - into[record.target])


def farther_from_all(record: Record) -> float:
    """Credit for taking the option that is farther from whoever is nearest to it."""
    return _farther(record, _people(record))


def farther_from_others(record: Record) -> float:
    """The same without who is asked about: the work of the question itself, for everybody else."""
    return _farther(record, [name for name in _people(record) if name != record.root])


def _people(record: Record) -> list[int]:
    return [i for i, symbol in enumerate(record.idx_to_symbol) if symbol[0].isupper()]


def _farther(record: Record, people: Sequence[int]) -> float:
    far = [distances(record.edges, name) for name in people]
    target, other = (
        min((each.get(i, NOWHERE) for each in far), default=NOWHERE)
        for i in (record.target, record.neg_target)
    )
    return _credit(target - other)


SHORTCUTS = {
    "the nearer option, arrows forgotten": shorter_way,
    "the option within 3 steps, arrows forgotten": within_three_steps,
    "the likelier end of a walk, arrows forgotten": likelier_walk,
    "the option of more walks, arrows forgotten": more_walks,
    "the option farther from everybody": farther_from_all,
    "the option mentioned last": later_mention,
    "the option with fewer statements": fewer_mentions,
    "the option named first": first_option,
}


def _both_ways(record: Record) -> list[Edge]:
    return [*record.edges, *((b, a) for a, b in record.edges)]


def _credit(lead: float) -> float:
    return 0.5 if lead == 0 else float(lead > 0)


def _record(value: Any, where: str) -> Record:
    """Check one record of a file, and return it."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must hold named fields, got {value!r:.80}")
    known = [f.name for f in fields(Record)]
    if missing := [name for name in known if name not in value]:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    for name in ("steps", "idx_to_symbol", "edges"):
        if not isinstance(value[name], list):
            raise ValueError(f"{where}: {name} must be a list, got {value[name]!r:.80}")
    record = Record(**{name: _frozen(value[name]) for name in known})
    texts = (record.question, record.answer, *record.steps, *record.idx_to_symbol)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{where}: question, answer, steps and idx_to_symbol must be texts")
    numbers = [record.root, record.target, record.neg_target]
    for edge in record.edges:
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise ValueError(f"{where}: an edge must be [from, to], got {edge!r}")
        numbers += edge
    nodes = range(len(record.idx_to_symbol))
    if bad := [n for n in numbers if not isinstance(n, int) or n not in nodes]:
        raise ValueError(f"{where}: {bad[0]!r} is no place in idx_to_symbol")
    return record


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _told(graph: Graph | Crossed, draw: random.Random) -> Record:
    """Give everything a name and tell it in any order."""
    edges, people, nodes = sorted(graph.edges), graph.people, graph.size
    symbols = [*draw.sample(NAMES, people), *draw.sample(CONCEPTS, nodes - people)]
    root, target, wrong = graph.question

    def sentence(a: int, b: int) -> str:
        return f"{'Every ' if a >= people else ''}{symbols[a]} is a {symbols[b]}."

    told = [sentence(a, b) for a, b in draw.sample(edges, len(edges))]
    first, second = draw.sample((symbols[target], symbols[wrong]), 2)
    steps = pairwise(way(edges, root, target))
    return Record(
        question=f"{' '.join(told)} Is {symbols[root]} a {first} or {second}?",
        answer=f"{symbols[root]} is a {symbols[target]}.",
        steps=tuple(sentence(a, b) for a, b in steps),
        idx_to_symbol=tuple(symbols),
        edges=tuple(edges),
        root=root,
        target=target,
        neg_target=wrong,
    )
