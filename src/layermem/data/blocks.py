"""Documents to one long file of tokens, and that file as blocks.

Every document is followed by the end token; the file is cut into blocks only as it is read, so one
file serves every block size, and nothing is lost but a last partial block. Prepared files are found
by what they were made of; they are made in a staging folder and moved into place whole.

Letters: N tokens, T tokens of a block.
It does not know: models, batches, the order of training.
"""

import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from layermem.config import Data
from layermem.data.sources import Source, hub_name, open_source
from layermem.data.tokenizers import fingerprint
from layermem.lots import lot

logger = logging.getLogger(__name__)
# Characters tokenized at once: a tokenizer's own notes take some hundred bytes for each.
_BATCH = 500_000
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One split's tokens on disk."""

    path: Path
    """The file of tokens."""
    dtype: str
    """uint16 or uint32."""
    tokens: int
    """How many."""
    documents: int
    """Of how many documents."""
    end: int
    """Id of the end token."""

    def array(self) -> np.ndarray[Any, Any]:
        """Return the tokens, mapped into memory."""
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.tokens,))


class Blocks(Dataset[dict[str, Tensor]]):
    """Blocks of T tokens: ``input_ids``, ``labels`` [T]; with ``isolate``, ``position_ids``."""

    def __init__(
        self,
        prepared: Prepared,
        block_size: int,
        *,
        isolate: bool = False,
        at_most: int | None = None,
    ) -> None:
        if prepared.tokens < block_size:
            raise ValueError(
                f"{prepared.path.stem} has {prepared.tokens:,} tokens, less than one block of "
                f"{block_size}; give more text or a smaller data.block_size"
            )
        self.prepared, self.block_size, self.isolate = prepared, block_size, isolate
        self.length = float(block_size)
        self.tokens = prepared.array()
        whole = prepared.tokens // block_size
        self.count = whole if at_most is None else min(whole, at_most)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index * self.block_size
        ids = torch.from_numpy(self.tokens[start : start + self.block_size].astype(np.int64))
        if not self.isolate:
            return {"input_ids": ids, "labels": ids.clone()}
        positions = _positions(ids == self.prepared.end)
        # Nothing in a document's first token can be told from the document before it.
        labels = ids.masked_fill(positions == 0, -100)
        return {"input_ids": ids, "labels": labels, "position_ids": positions}


def _positions(is_end: Tensor) -> Tensor:
    """Count from zero anew after every end token."""
    places = torch.arange(len(is_end))
    starts = torch.zeros_like(places)
    starts[1:] = torch.where(is_end[:-1], places[1:], 0)
    return places - starts.cummax(0).values


def prepare(config: Data, tokenizer: Any) -> tuple[Prepared, Prepared]:
    """Return the training and validation tokens of a config, from the cache where they are."""
    source, validation = _sources(config)
    texts = [each.fingerprint() for each in (source, validation) if each]
    if len(set(texts)) < len(texts):
        raise ValueError(
            f"data.validation, {config.validation}, holds the text of data.source; name another (a "
            "split of a Hugging Face dataset is NAME:validation), or leave it out, and a share is "
            "set apart"
        )
    folder = cache_folder(config.cache) / _key(config, texts, tokenizer)
    if not (folder / "meta.json").exists():
        _build(folder, config, source, validation, tokenizer)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    train, valid = (Prepared(path=folder / f"{n}.bin", **meta[n]) for n in ("train", "valid"))
    for split in (train, valid):
        size = split.tokens * np.dtype(split.dtype).itemsize
        if not split.path.exists() or split.path.stat().st_size != size:
            raise ValueError(f"{split.path} is damaged; delete {folder} to have it made again")
    return train, valid


def cache_folder(given: str | None = None) -> Path:
    """Return the folder of prepared files: as given, LAYERMEM_CACHE, or ~/.cache/layermem."""
    return Path(given or os.environ.get("LAYERMEM_CACHE") or "~/.cache/layermem").expanduser()


def _sources(config: Data) -> tuple[Source, Source | None]:
    opened = partial(open_source, text_field=config.text_field, streaming=config.streaming)
    source = opened(config.source, subset=config.subset)
    if not config.validation:
        return source, None
    # Another dataset has configurations of its own.
    same = hub_name(config.validation)[0] == hub_name(config.source)[0]
    return source, opened(config.validation, subset=config.subset if same else None)


def _key(config: Data, texts: Sequence[str], tokenizer: Any) -> str:
    share = None if config.validation else config.validation_share
    parts = [_VERSION, texts, share, config.max_documents, fingerprint(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def _build(
    folder: Path, config: Data, source: Source, validation: Source | None, tokenizer: Any
) -> None:
    staging = folder.with_name(f".staging-{folder.name}-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        logger.info("preparing %s", config.source)
        with (staging / "train.bin").open("wb") as train, (staging / "valid.bin").open("wb") as val:
            writers = {
                name: _Writer(f, tokenizer) for name, f in (("train", train), ("valid", val))
            }
            documents = itertools.islice(source, config.max_documents)
            share = 0.0 if validation else config.validation_share
            _write(documents, share, writers, tokenizer, config.source)
            if validation:
                _write(validation, 1.0, writers, tokenizer, str(config.validation))
        _check(writers, config)
        meta = json.dumps({name: writer.meta() for name, writer in writers.items()}, indent=1)
        (staging / "meta.json").write_text(meta, encoding="utf-8")
        try:
            os.replace(staging, folder)
        except OSError:
            # Somebody else has made the same meanwhile.
            if not (folder / "meta.json").exists():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class _Writer:
    """Appends documents to a file of tokens."""

    def __init__(self, file: IO[bytes], tokenizer: Any) -> None:
        self.file, self.end = file, tokenizer.eos_token_id
        self.dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        self.tokens = self.documents = 0

    def add(self, ids: list[int]) -> None:
        self.file.write(np.asarray([*ids, self.end], dtype=self.dtype).tobytes())
        self.tokens += len(ids) + 1
        self.documents += 1

    def meta(self) -> dict[str, Any]:
        return {
            "dtype": np.dtype(self.dtype).name,
            "tokens": self.tokens,
            "documents": self.documents,
            "end": self.end,
        }


def _write(
    documents: Iterable[str], share: float, writers: dict[str, _Writer], tokenizer: Any, name: str
) -> None:
    """Tokenize documents; a share of them, told by their text alone, goes to validation."""
    # A bar in a terminal, nothing in a pipe.
    bar = tqdm(unit=" tokens", unit_scale=True, desc=f"tokenizing {name}", disable=None)
    with bar:
        for texts in _batches(text for text in documents if text):
            encoded = tokenizer(
                texts, add_special_tokens=False, split_special_tokens=True, verbose=False
            )["input_ids"]
            for text, ids in zip(texts, encoded, strict=True):
                writers["valid" if lot(text) < share else "train"].add(ids)
            bar.update(sum(map(len, encoded)))
    total = {split: f"{writer.tokens:,}" for split, writer in writers.items()}
    logger.info("%s: tokens for training %s, for validation %s", name, *total.values())


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts by their length: at least one, and the last goes beyond the limit at most."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check(writers: dict[str, _Writer], config: Data) -> None:
    train, valid = writers["train"], writers["valid"]
    if not train.documents and not valid.documents:
        raise ValueError(f"{config.source} holds no text")
    for name, writer in writers.items():
        if not writer.documents:
            raise ValueError(
                f"none of the {train.documents + valid.documents} documents of {config.source} "
                f"fell to {name}; give data.validation a source of its own, or change "
                "data.validation_share"
            )
