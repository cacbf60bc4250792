"""ProsQA's records, the original files that hold them, and shortcuts that answer without a proof.

A shortcut takes a record and chooses an option without following statements from the person. It
returns its credit: 1 where it chooses the right option, 0 where it chooses the wrong one, 0.5 where
it sees no difference. docs/tasks.md says how often each is right, and ``layermem list tasks
prosqa`` measures all of them.
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
    """Check one object of a file and return it as a record; ``where`` names it in errors."""
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


def nearer_option(record: Record) -> float:
    """Choose the option that is nearer to the person, directions ignored."""
    steps = distances(undirected(record.edges), record.root)
    return _prefer_less(record, lambda option: steps.get(option, UNREACHABLE))


def within_three_steps(record: Record) -> float:
    """Choose the option that is at most 3 steps from the person, directions ignored."""
    steps = distances(undirected(record.edges), record.root)
    return _prefer_less(record, lambda option: steps.get(option, UNREACHABLE) > 3)


def likelier_end(record: Record) -> float:
    """Choose the option that a random walk reaches more often, directions ignored.

    The walk starts at the person, and starts again at each step with probability 0.15 (PageRank
    with restart, by 60 iterations).
    """
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


def more_walks(record: Record) -> float:
    """Choose the option to which more walks of 1 to 6 steps lead, directions ignored."""
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


def later_mention(record: Record) -> float:
    """Choose the option whose last mention before the question comes later."""
    words = re.findall(r"\w+", record.question.rpartition(". ")[0])
    place = {word: i for i, word in enumerate(words)}
    return _prefer_less(record, lambda i: -place.get(record.idx_to_symbol[i], -1))


def first_option(record: Record) -> float:
    """Choose the option that the question names first."""
    question = record.question.rpartition(". ")[2]
    return _prefer_less(record, lambda i: question.find(f" {record.idx_to_symbol[i]}"))


def fewer_statements(record: Record) -> float:
    """Choose the option in which fewer statements end."""
    count = Counter(b for _, b in record.edges)
    return _prefer_less(record, lambda option: count[option])


def farther_from_all(record: Record) -> float:
    """Choose the option that is farther, along the directions, from the person nearest to it."""
    return _choose_farther(record, _people(record))


def farther_from_others(record: Record) -> float:
    """Do the same among all people but the one asked about: elimination.

    It follows statements as the question does, only from everybody else.
    """
    return _choose_farther(record, [name for name in _people(record) if name != record.root])


def _people(record: Record) -> list[int]:
    return [i for i, symbol in enumerate(record.idx_to_symbol) if symbol[0].isupper()]


def _choose_farther(record: Record, people: Sequence[int]) -> float:
    steps_from = [distances(record.edges, person) for person in people]

    def nearest(option: int) -> int:
        return min((steps.get(option, UNREACHABLE) for steps in steps_from), default=UNREACHABLE)

    return _prefer_less(record, lambda option: -nearest(option))


def _prefer_less(record: Record, number: Callable[[int], int]) -> float:
    """Return the credit of choosing the option with the smaller number."""
    return _credit(number(record.neg_target) - number(record.target))


def _credit(lead: float) -> float:
    """Return the credit of a rule by how far it prefers the right option to the wrong one."""
    return 0.5 if lead == 0 else float(lead > 0)


SHORTCUTS = {
    "the nearer option, directions ignored": nearer_option,
    "the option within 3 steps, directions ignored": within_three_steps,
    "the likelier end of a walk, directions ignored": likelier_end,
    "the option of more walks, directions ignored": more_walks,
    "the option farther from everybody": farther_from_all,
    "the option mentioned last": later_mention,
    "the option with fewer statements": fewer_statements,
    "the option named first": first_option,
}
