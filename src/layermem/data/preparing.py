"""Documents to one long file of tokens for each split, made once and found again.

Every document is followed by the end token. Prepared files are found by what they were made of;
they are made by one process, in a staging folder, and moved into place whole. What validation holds
is left out of training, document by document.

It does not know: blocks, models, the order of training.
"""

import hashlib
import itertools
import json
import logging
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from tqdm import tqdm

from layermem.config import Data
from layermem.data.blocks import Prepared
from layermem.data.documents import Source
from layermem.data.sources import hub_name, open_source
from layermem.data.staging import claim_folder, explain_write_error, staging_folder
from layermem.data.tokenizers import fingerprint
from layermem.text_hash import hash_to_unit_interval

logger = logging.getLogger(__name__)
# A text, and the one that its document begins with.
Part: TypeAlias = tuple[str, str]
# Characters tokenized at once: a tokenizer's own notes take some hundred bytes for each.
_BATCH = 500_000
# 3: documents have a longest length, and training leaves out what validation holds.
# 4: the parts of a document fall to one split.
_VERSION = 4
_META = "meta.json"


def prepare(config: Data, tokenizer: Any) -> tuple[Prepared, Prepared]:
    """Return the training and validation tokens of a config, from the cache where they are.

    One process makes them, and others that want the same meanwhile wait for it (``staging``).
    """
    source, validation = _sources(config)
    texts = _fingerprints(source, validation)
    if len(set(texts)) < len(texts):
        raise _same_text(config)
    folder = cache_folder(config.cache) / _key(config, texts, tokenizer)
    with claim_folder(folder, (folder / _META).exists) as to_make:
        if to_make:
            _build(folder, config, source, validation, tokenizer, texts)
    train, valid = _read(folder)
    if train.left_out:
        logger.warning(
            "%s of %s documents of %s are in %s too: they are left out of training",
            f"{train.left_out:,}",
            f"{train.left_out + train.documents:,}",
            config.source,
            config.validation,
        )
    return train, valid


def _read(folder: Path) -> tuple[Prepared, Prepared]:
    """Return the splits of a folder, whole as they were made."""
    mend = f"delete {folder} to have it made again"
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / _META} is damaged ({error}); {mend}") from error
    train, valid = (Prepared(path=folder / f"{n}.bin", **meta[n]) for n in ("train", "valid"))
    for split in (train, valid):
        size = split.tokens * np.dtype(split.dtype).itemsize
        if not split.path.exists() or split.path.stat().st_size != size:
            raise ValueError(f"{split.path} is damaged; {mend}")
    return train, valid


def _same_text(config: Data) -> ValueError:
    return ValueError(
        f"data.validation, {config.validation}, holds the text of data.source; name another (a "
        "split of a Hugging Face dataset is NAME:validation), or leave it out, and a share is "
        "set apart"
    )


def cache_folder(given: str | None = None) -> Path:
    """Return the folder of prepared files: as given, LAYERMEM_CACHE, or ~/.cache/layermem."""
    return Path(given or os.environ.get("LAYERMEM_CACHE") or "~/.cache/layermem").expanduser()


def _sources(config: Data) -> tuple[Source, Source | None]:
    opened = partial(open_source, text_field=config.text_field, streaming=config.streaming)
    source = opened(config.source, subset=config.subset, revision=config.revision)
    if not config.validation:
        return source, None
    if hub_name(config.validation)[0] != hub_name(config.source)[0]:
        # Another dataset has configurations and revisions of its own.
        return source, opened(config.validation)
    return source, opened(config.validation, subset=config.subset, revision=config.revision)


def _key(config: Data, texts: Sequence[str], tokenizer: Any) -> str:
    share = None if config.validation else config.validation_share
    parts = [_VERSION, texts, share, config.max_documents, fingerprint(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def _fingerprints(*sources: Source | None) -> list[str]:
    return [each.fingerprint() for each in sources if each]


def _build(
    folder: Path,
    config: Data,
    source: Source,
    validation: Source | None,
    tokenizer: Any,
    texts: Sequence[str],
) -> None:
    with staging_folder(folder) as staging:
        logger.info("preparing %s", config.source)
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(closing(_Writer(staging / f"{name}.bin", tokenizer)))
                for name in ("train", "valid")
            }
            held = _Marked(validation.parts() if validation else ())
            if validation:
                _write(held, 1.0, writers, tokenizer, str(config.validation))
            apart = _Apart(itertools.islice(source.parts(), config.max_documents), held.marks())
            share = 0.0 if validation else config.validation_share
            _write(apart, share, writers, tokenizer, config.source)
        _check(writers, config, apart.left_out)
        if _fingerprints(source, validation) != texts:
            raise ValueError(
                f"{config.source} or its validation text changed while it was prepared; start "
                "again once nothing writes to it"
            )
        meta = {name: writer.meta() for name, writer in writers.items()}
        meta["train"]["left_out"] = apart.left_out
        try:
            (staging / _META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        except OSError as error:
            raise explain_write_error(error, staging / _META) from error


class _Marked:
    """Documents, which leave a mark of 8 bytes each."""

    def __init__(self, documents: Iterable[Part]) -> None:
        self.documents, self._marks = documents, array("Q")

    def __iter__(self) -> Iterator[Part]:
        for text, first in self.documents:
            self._marks.append(_mark(text))
            yield text, first

    def marks(self) -> np.ndarray[Any, Any]:
        return np.unique(np.frombuffer(self._marks, dtype=np.uint64))


class _Apart:
    """Documents but for those of the given marks, which are counted."""

    def __init__(self, documents: Iterable[Part], marks: np.ndarray[Any, Any]) -> None:
        self.documents, self.marks, self.left_out = documents, marks, 0

    def __iter__(self) -> Iterator[Part]:
        for text, first in self.documents:
            if len(self.marks) and self._is_marked(text):
                self.left_out += bool(text)
            else:
                yield text, first

    def _is_marked(self, text: str) -> bool:
        mark = np.uint64(_mark(text))
        place = min(int(np.searchsorted(self.marks, mark)), len(self.marks) - 1)
        return bool(self.marks[place] == mark)


def _mark(text: str) -> int:
    """Return what stands for a text, whatever white space is around it."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest())


class _Writer:
    """Appends documents to a file of tokens."""

    def __init__(self, path: Path, tokenizer: Any) -> None:
        self.path, self.end = path, tokenizer.eos_token_id
        self.dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        self.tokens = self.documents = 0
        try:
            self.file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise explain_write_error(error, path) from error

    def add(self, ids: list[int]) -> None:
        try:
            self.file.write(np.asarray([*ids, self.end], dtype=self.dtype).tobytes())
        except OSError as error:
            raise explain_write_error(error, self.path) from error
        self.tokens += len(ids) + 1
        self.documents += 1

    def close(self) -> None:
        try:
            self.file.close()
        except OSError as error:
            raise explain_write_error(error, self.path) from error

    def meta(self) -> dict[str, Any]:
        return {
            "dtype": np.dtype(self.dtype).name,
            "tokens": self.tokens,
            "documents": self.documents,
            "end": self.end,
        }


def _write(
    documents: Iterable[Part], share: float, writers: dict[str, _Writer], tokenizer: Any, name: str
) -> None:
    """Tokenize documents; a share of them, told by how they begin alone, goes to validation."""
    # A bar in a terminal, nothing in a pipe.
    bar = tqdm(unit=" tokens", unit_scale=True, desc=f"tokenizing {name}", disable=None)
    with bar:
        for batch in _batches(part for part in documents if part[0]):
            texts = [text for text, _ in batch]
            encoded = tokenizer(
                texts, add_special_tokens=False, split_special_tokens=True, verbose=False
            )["input_ids"]
            for (_, first), ids in zip(batch, encoded, strict=True):
                writers["valid" if hash_to_unit_interval(first) < share else "train"].add(ids)
            bar.update(sum(map(len, encoded)))
    total = {split: f"{writer.tokens:,}" for split, writer in writers.items()}
    logger.info("%s: tokens for training %s, for validation %s", name, *total.values())


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Group texts by their length: at least one, and the last goes beyond the limit at most."""
    batch, size = [], 0
    for part in parts:
        batch.append(part)
        size += len(part[0])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check(writers: dict[str, _Writer], config: Data, left_out: int) -> None:
    """Raise where a split has no document."""
    train, valid = writers["train"], writers["valid"]
    if left_out and not train.documents:
        raise _same_text(config)
    if config.validation and not valid.documents:
        raise ValueError(f"data.validation, {config.validation}, holds no text")
    if not train.documents and (config.validation or not valid.documents):
        raise ValueError(f"{config.source} holds no text")
    for name, writer in writers.items():
        if not writer.documents:
            raise ValueError(
                f"none of the {train.documents + valid.documents} documents of {config.source} "
                f"fell to {name}; give data.validation a source of its own, or change "
                "data.validation_share"
            )
