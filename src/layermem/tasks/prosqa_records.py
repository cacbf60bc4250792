"""ProsQA's records: one question with its proof, and the original files that hold lists of them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from layermem.tasks.prosqa_graphs import Edge


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
    if not isinstance(values, list):
        raise ValueError(f"{path} must hold a list of records, got {type(values).__name__}")
    return [_read_record(value, f"{path}, record {i}") for i, value in enumerate(values)]


def _read_record(value: Any, where: str) -> Record:
    """Check one object of a file and return it as a record; ``where`` names it in errors."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must hold named fields, got {value!r:.80}")
    names = [f.name for f in fields(Record)]
    if missing := [name for name in names if name not in value]:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    for name in ("steps", "idx_to_symbol", "edges"):
        if not isinstance(value[name], list):
            raise ValueError(f"{where}: {name} must be a list, got {value[name]!r:.80}")
    record = Record(**{name: _to_tuple(value[name]) for name in names})
    texts = (record.question, record.answer, *record.steps, *record.idx_to_symbol)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(
            f"{where}: question, answer, steps and idx_to_symbol must be non-empty strings"
        )
    numbers = [record.root, record.target, record.neg_target]
    for edge in record.edges:
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise ValueError(f"{where}: an edge must be [from, to], got {edge!r}")
        numbers += edge
    nodes = range(len(record.idx_to_symbol))
    if bad := [n for n in numbers if not isinstance(n, int) or n not in nodes]:
        raise ValueError(f"{where}: {bad[0]!r} is not an index of idx_to_symbol")
    return record


def _to_tuple(value: Any) -> Any:
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value
