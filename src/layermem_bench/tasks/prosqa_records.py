"""ProsQA's records, the original files that hold them, and shortcuts that answer without a proof.

A shortcut chooses an option of a record without following statements from the person. It returns
its credit: 1 where it chooses the right option, 0 where it chooses the wrong one, 0.5 where it sees
no difference. docs/tasks.md says how often each is right.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from layermem_bench.config.typed_dicts import from_dict
from layermem_bench.tasks.problems import require
from layermem_bench.tasks.prosqa_graphs import UNREACHABLE, Edge, distances, undirected


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


def load(path: str | os.PathLike[str]) -> list[Record]:
    """Read a file of records: a JSON list of objects with the fields of ``Record``."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    kind = type(values).__name__
    require(isinstance(values, list), f"{path} must hold a list of records, got {kind}")
    return [_read_record(value, f"{path}, record {i}") for i, value in enumerate(values)]


def _read_record(value: Any, where: str) -> Record:
    if isinstance(value, Mapping):
        # A file may have further fields.
        value = {f.name: value[f.name] for f in fields(Record) if f.name in value}
    record = from_dict(Record, value, f"{where}: ")
    texts = (record.question, record.answer, *record.steps, *record.idx_to_symbol)
    require(all(texts), f"{where}: question, answer, steps and idx_to_symbol must not be empty")
    for edge in record.edges:
        require(len(edge) == 2, f"{where}: an edge must be [from, to], got {edge!r}")
    nodes = range(len(record.idx_to_symbol))
    for number in (record.root, record.target, record.neg_target, *chain(*record.edges)):
        require(number in nodes, f"{where}: {number} is not an index of idx_to_symbol")
    return record


def _nearer_option(record: Record) -> float:
    steps = distances(undirected(record.edges), record.root)
    return _prefer_less(record, lambda option: steps.get(option, UNREACHABLE))


def _within_three_steps(record: Record) -> float:
    steps = distances(undirected(record.edges), record.root)
    return _prefer_less(record, lambda option: steps.get(option, UNREACHABLE) > 3)


def _likelier_end(record: Record) -> float:
    """PageRank with restart at the person, with probability 0.15 at each of 60 steps."""
    edges = undirected(record.edges)
    degree = Counter(a for a, _ in edges)
    start = [float(i == record.root) for i in range(len(record.idx_to_symbol))]
    rank = start
    for _ in range(60):
        following = [0.15 * share for share in start]
        for a, b in edges:
            following[b] += 0.85 * rank[a] / degree[a]
        rank = following
    return _credit(round(rank[record.target] - rank[record.neg_target], 9))


def _more_walks(record: Record) -> float:
    """Walks of 1 to 6 steps are counted."""
    edges = undirected(record.edges)
    walks = [int(i == record.root) for i in range(len(record.idx_to_symbol))]
    lead = 0
    for _ in range(6):
        following = [0] * len(walks)
        for a, b in edges:
            following[b] += walks[a]
        walks = following
        lead += walks[record.target] - walks[record.neg_target]
    return _credit(lead)


def _last_mentioned(record: Record) -> float:
    words = re.findall(r"\w+", record.question.rpartition(". ")[0])
    place = {word: i for i, word in enumerate(words)}
    return _prefer_less(record, lambda i: -place.get(record.idx_to_symbol[i], -1))


def _named_first(record: Record) -> float:
    question = record.question.rpartition(". ")[2]
    return _prefer_less(record, lambda i: question.find(f" {record.idx_to_symbol[i]}"))


def _fewer_statements(record: Record) -> float:
    """Statements that end in an option are counted."""
    count = Counter(b for _, b in record.edges)
    return _prefer_less(record, lambda option: count[option])


def _farther_from_all(record: Record) -> float:
    return _choose_farther(record, _people(record))


def farther_from_others(record: Record) -> float:
    """Choose the option that is farther from all people but the one asked about: elimination.

    It follows statements as the question does, only from everybody else.
    """
    return _choose_farther(record, [name for name in _people(record) if name != record.root])


def _people(record: Record) -> list[int]:
    return [i for i, symbol in enumerate(record.idx_to_symbol) if symbol[0].isupper()]


def _choose_farther(record: Record, people: Sequence[int]) -> float:
    """Choose the option that is farther, along the directions, from the person nearest to it."""
    steps_from = [distances(record.edges, person) for person in people]

    def nearest(option: int) -> int:
        return min((steps.get(option, UNREACHABLE) for steps in steps_from), default=UNREACHABLE)

    return _prefer_less(record, lambda option: -nearest(option))


def _prefer_less(record: Record, number: Callable[[int], int]) -> float:
    """Return the credit of choosing the option with the smaller number."""
    return _credit(number(record.neg_target) - number(record.target))


def _credit(lead: float) -> float:
    return 0.5 if lead == 0 else float(lead > 0)


SHORTCUTS = {
    "the nearer option, directions ignored": _nearer_option,
    "the option within 3 steps, directions ignored": _within_three_steps,
    "the likelier end of a walk, directions ignored": _likelier_end,
    "the option of more walks, directions ignored": _more_walks,
    "the option farther from everybody": _farther_from_all,
    "the option mentioned last": _last_mentioned,
    "the option with fewer statements": _fewer_statements,
    "the option named first": _named_first,
}
"""What each chooses to what chooses it."""
