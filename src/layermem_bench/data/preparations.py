"""A preparation in its folder: what it is made of, which of its pieces are done, its end.

    .parts-KEY/plan.json                what is prepared, and its pieces
    .parts-KEY/held-out                 sorted hashes of the documents of validation
    .parts-KEY/train-00003.bin          tokens of a piece; train.bin where there is one
    .parts-KEY/00003.json               a piece is done, and how many tokens it has; written last
    KEY/                                the same folder, once all pieces are there, with meta.json

``Prepared`` reads the files of all pieces as one.
"""

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from layermem_base.files import write_atomically
from layermem_bench.data.document_hashes import Hashes, Sketch
from layermem_bench.data.pieces import Piece
from layermem_bench.data.sources import Source, open_source
from layermem_bench.data.staging import SUBMITTED, work_path, write_errors
from layermem_bench.data.tokenizers import fingerprint

META = "meta.json"
SPLITS = ("train", "valid")
_PLAN, _HELD_OUT = "plan.json", "held-out"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a preparation makes; the same text, tokenizer and options give the same plan."""

    source: str
    """The source's name, for messages."""
    validation: str | None
    share: float
    """Share of the source's documents that are held out for validation."""
    shuffle: int | None
    """Seed of a random order of documents for training; None: they stay as they are."""
    tokenizer: str
    """Digest of the tokenizer."""
    tokenizer_name: str
    dtype: str
    end: int
    sources: list[dict[str, Any]]
    """Arguments of ``open_source``: of the text that is learnt, then of validation's."""
    fingerprints: list[str]
    """Of the sources; they tell whether a text changed meanwhile."""
    pieces: list[Piece]
    """Validation's, then those of the text that is learnt: ``source`` is a place in ``sources``."""
    opened: dict[int, Source] = field(default_factory=dict, repr=False, compare=False)
    """Those that are open."""

    def open(self, number: int) -> Source:
        """Return one of the sources."""
        if number not in self.opened:
            self.opened[number] = open_source(**self.sources[number])
        return self.opened[number]

    def to_json(self) -> str:
        """Return the plan as it stands in its folder."""
        return json.dumps({k: v for k, v in vars(self).items() if k != "opened"}, indent=1)


class Work:
    """The folder of a preparation that is under way.

    ``owner``: where there are no locks, the process that makes it alone.
    """

    def __init__(self, final: Path, owner: str = "") -> None:
        self.final, self.owner = final, owner
        self.folder = work_path(final, owner)
        self.logs = final.with_name(f".logs-{final.name}")

    def published(self) -> bool:
        """Return whether all is done, and at its final place."""
        return (self.final / META).exists()

    def write_plan(self, plan: Plan, held_out: Hashes) -> None:
        with write_errors(self.folder):
            write_atomically(self.folder / _HELD_OUT, held_out.tobytes())
            write_atomically(self.folder / _PLAN, plan.to_json())

    def plan(self) -> Plan | None:
        """Return the plan that is in the folder, if there is one."""
        try:
            text = (self.folder / _PLAN).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            return Plan(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.folder / _PLAN} is damaged ({error}); delete {self.folder}"
            ) from error

    def held_out(self) -> Hashes:
        """Return the sorted hashes of the documents of validation, mapped into memory."""
        path = self.folder / _HELD_OUT
        empty = not path.stat().st_size
        return np.empty(0, "<u8") if empty else np.memmap(path, "<u8", mode="r")

    def mark(self, index: int) -> Path:
        """Return the file that says that a piece is done."""
        return self.folder / f"{index:05d}.json"

    def file(self, split: str, index: int, count: int) -> Path:
        """Return the file of a split's tokens in a piece."""
        return self.folder / shard_name(split, index, count)

    def done(self, index: int, plan: Plan) -> dict[str, Any] | None:
        """Return what a finished piece has, or None where it is not finished."""
        try:
            done = json.loads(self.mark(index).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if done["tokenizer"] != plan.tokenizer:
            raise ValueError(
                f"{self.mark(index)} is of another tokenizer than the plan; delete {self.folder}"
            )
        return done

    def missing(self, plan: Plan) -> list[int]:
        """Return the pieces that are not done."""
        return [i for i in range(len(plan.pieces)) if not self.mark(i).exists()]

    def publish(self, plan: Plan) -> None:
        """Check that all is there and whole, and put it at its final place, unless it is there."""
        if self.published():
            return
        done = [self.done(i, plan) for i in range(len(plan.pieces))]
        if lacking := [i for i, each in enumerate(done) if each is None]:
            raise RuntimeError(
                f"{len(lacking)} of {len(done)} pieces of {plan.source} are not there; start again"
            )
        meta = self._check(plan, [each for each in done if each is not None])
        if [plan.open(i).fingerprint() for i in range(len(plan.sources))] != plan.fingerprints:
            raise ValueError(
                f"{plan.source} or its validation text changed while it was prepared; start again"
            )
        with write_errors(self.folder):
            write_atomically(self.folder / META, json.dumps(meta, indent=1))
            try:
                os.replace(self.folder, self.final)
            except OSError as error:
                # Without locks another process may have made the same folder meanwhile.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        self._clean()

    def _check(self, plan: Plan, done: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the description of the splits, after checking the size of every file."""
        meta: dict[str, Any] = {"tokenizer": plan.tokenizer}
        for split in SPLITS:
            tokens = [each[split]["tokens"] for each in done]
            documents = sum(each[split]["documents"] for each in done)
            meta[split] = {"dtype": plan.dtype, "tokens": sum(tokens), "documents": documents}
            sketch = Sketch.merged(Sketch.from_text(each[split]["sketch"]) for each in done)
            meta[split] |= {"end": plan.end, "sketch": sketch.to_text()}
            if len(done) > 1:
                meta[split]["shards"] = tokens
        meta["train"]["left_out"] = sum(each["left_out"] for each in done)
        for split in SPLITS:
            paths = [self.file(split, i, len(done)) for i in range(len(done))]
            check_files(paths, [each[split]["tokens"] for each in done], plan.dtype, self.folder)
        _check_splits(plan, meta)
        return meta

    def _clean(self) -> None:
        """Delete what only the preparation needed."""
        for pattern in ("[0-9]*.json", ".lock-*", ".tmp-*", _PLAN, _HELD_OUT, "host", SUBMITTED):
            for path in self.final.glob(pattern):
                with suppress(OSError):
                    path.unlink()


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a short text that changes when the tokens of a text would."""
    return hashlib.sha256(fingerprint(tokenizer).encode()).hexdigest()[:20]


def shard_name(split: str, index: int, count: int) -> str:
    """Return the name of the file of a split's tokens in a piece."""
    return f"{split}.bin" if count == 1 else f"{split}-{index:05d}.bin"


def check_files(paths: Sequence[Path], tokens: Sequence[int], dtype: str, folder: Path) -> None:
    """Raise unless each file has the size of its tokens."""
    for path, count in zip(paths, tokens, strict=True):
        size = count * np.dtype(dtype).itemsize
        if not path.exists() or path.stat().st_size != size:
            raise ValueError(f"{path} is damaged; delete {folder} to have it made again")


def _check_splits(plan: Plan, meta: dict[str, Any]) -> None:
    train, valid = (meta[split]["documents"] for split in SPLITS)
    if plan.validation and meta["train"]["left_out"] and not train:
        raise same_text_error(plan.source, plan.validation)
    if plan.validation and not valid:
        raise ValueError(f"data.validation, {plan.validation}, holds no text")
    if not train and (plan.validation or not valid):
        raise ValueError(f"{plan.source} holds no text")
    for split in SPLITS:
        if not meta[split]["documents"]:
            raise ValueError(
                f"none of the {train + valid} documents of {plan.source} are in the split {split}; "
                "give data.validation a source of its own, divide the text into more documents (a "
                "file or a JSON line for each), or change data.validation_share"
            )


def same_text_error(source: str, validation: str | None) -> ValueError:
    """Return the error of a validation text that is the one that is learnt."""
    return ValueError(
        f"data.validation, {validation}, holds the text of data.source; name another (a "
        "split of a Hugging Face dataset is NAME:validation), or leave it out to use a share of "
        "the source"
    )
