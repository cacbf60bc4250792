"""Documents tokenized into one long file for each split, prepared once and then reused.

Every document is followed by the end token. The folder of prepared files is named by a digest of
the text, the tokenizer and the options that change the tokens. One process writes the files, and
others that need the same wait for it (``staging``).
"""

import hashlib
import itertools
import json
import logging
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from tqdm import tqdm

from layermem_bench.config.run import Data
from layermem_bench.config.text_hash import hash_to_unit_interval
from layermem_bench.data.blocks import Prepared
from layermem_bench.data.sources import Source, hub_name, open_source
from layermem_bench.data.staging import claim_folder, staging_folder, write_errors
from layermem_bench.data.tokenizers import Ids, batch_encoder, fingerprint, id_dtype

logger = logging.getLogger(__name__)
# A text, and the first part of its document.
Part: TypeAlias = tuple[str, str]
# Characters tokenized at once: a tokenizer's own bookkeeping takes some hundred bytes for each.
_BATCH = 500_000
# Batches that are read ahead of the one that is written: one is tokenized, one waits for that.
_AHEAD = 2
# A change of the tokens that are written takes another number, so that nothing older is found.
_VERSION = 4
_META = "meta.json"


def prepare(config: Data, tokenizer: Any) -> tuple[Prepared, Prepared]:
    """Return the training and validation tokens of a config, from the cache if they are there."""
    sources = _open_sources(config)
    fingerprints = [source.fingerprint() for source in sources]
    if len(set(fingerprints)) < len(fingerprints):
        raise _same_text_error(config)
    share = None if config.validation else config.validation_share
    parts = [_VERSION, fingerprints, share, config.max_documents, fingerprint(tokenizer)]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
    folder = cache_folder(config.cache) / key
    with claim_folder(folder, (folder / _META).exists) as must_build:
        if must_build:
            _build(folder, config, sources, tokenizer, fingerprints)
    train, valid = _read_folder(folder)
    if train.left_out:
        logger.warning(
            "%s of %s documents of %s are in %s too: they are left out of training",
            f"{train.left_out:,}",
            f"{train.left_out + train.documents:,}",
            config.source,
            config.validation,
        )
    return train, valid


def _read_folder(folder: Path) -> tuple[Prepared, Prepared]:
    """Return the splits of a folder, after checking that their files have the size they must."""
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


def _same_text_error(config: Data) -> ValueError:
    return ValueError(
        f"data.validation, {config.validation}, holds the text of data.source; name another (a "
        "split of a Hugging Face dataset is NAME:validation), or leave it out to use a share of "
        "the source"
    )


def cache_folder(given: str | None = None) -> Path:
    """Return the folder of all prepared files: as given, LAYERMEM_CACHE, or ~/.cache/layermem."""
    return Path(given or os.environ.get("LAYERMEM_CACHE") or "~/.cache/layermem").expanduser()


def _open_sources(config: Data) -> list[Source]:
    """Return the text that is learnt and, where it has a source of its own, that of validation."""
    of_dataset = {"subset": config.subset, "revision": config.revision}
    sources = []
    for source in filter(None, (config.source, config.validation)):
        # Another dataset has configurations and revisions of its own.
        same = hub_name(source)[0] == hub_name(config.source)[0]
        options = of_dataset if same else {}
        field, streaming = config.text_field, config.streaming
        sources.append(open_source(source, text_field=field, streaming=streaming, **options))
    return sources


def _build(
    folder: Path,
    config: Data,
    sources: Sequence[Source],
    tokenizer: Any,
    fingerprints: Sequence[str],
) -> None:
    with staging_folder(folder) as staging:
        logger.info("preparing %s", config.source)
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(closing(_Writer(staging / f"{name}.bin", tokenizer)))
                for name in ("train", "valid")
            }
            held_out, share = _HeldOut(), config.validation_share
            source, *validation = sources
            for each in validation:
                held, share = held_out.hold_out(each.parts()), 0.0
                _write(held, 1.0, writers, tokenizer, str(config.validation))
            parts = itertools.islice(source.parts(), config.max_documents)
            _write(held_out.leave_out(parts), share, writers, tokenizer, config.source)
        _check_splits(writers, config, held_out.left_out)
        if [source.fingerprint() for source in sources] != fingerprints:
            raise ValueError(
                f"{config.source} or its validation text changed while it was prepared; start again"
            )
        meta = {name: writer.meta() for name, writer in writers.items()}
        meta["train"]["left_out"] = held_out.left_out
        with write_errors(staging / _META):
            (staging / _META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


class _HeldOut:
    """Hashes of the documents of validation, which training leaves out."""

    def __init__(self) -> None:
        self.hashes: set[bytes] = set()
        self.left_out = 0

    def hold_out(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield parts of documents, whose hashes are kept."""
        for text, first in parts:
            self.hashes.add(_hash_text(text))
            yield text, first

    def leave_out(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield parts of documents without those that are held out, which are counted."""
        for text, first in parts:
            if self.hashes and _hash_text(text) in self.hashes:
                self.left_out += bool(text)
            else:
                yield text, first


def _hash_text(text: str) -> bytes:
    """Return a hash of 8 bytes of a text without the white space around it."""
    return hashlib.blake2b(text.strip().encode(), digest_size=8).digest()


class _Writer:
    """Appends documents to a file of tokens."""

    def __init__(self, path: Path, tokenizer: Any) -> None:
        self.path, self.end = path, tokenizer.eos_token_id
        self.dtype = id_dtype(tokenizer)
        self.tokens = self.documents = 0
        with write_errors(path):
            self.file: IO[bytes] = path.open("wb")

    def add(self, documents: Sequence[Ids]) -> None:
        end = np.array([self.end], self.dtype)
        content = np.concatenate([part for ids in documents for part in (ids, end)])
        with write_errors(self.path):
            self.file.write(content.tobytes())
        self.tokens += len(content)
        self.documents += len(documents)

    def close(self) -> None:
        with write_errors(self.path):
            self.file.close()

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
    """Tokenize documents and write them; a hash of how they begin sends a share to validation."""
    # None: a progress bar in a terminal, nothing in a pipe.
    bar = tqdm(unit=" tokens", unit_scale=True, desc=f"tokenizing {name}", disable=None)
    batches = _batch_parts(part for part in documents if part[0])
    with bar, closing(_tokenize(batches, tokenizer)) as tokenized:
        for batch, encoded in tokenized:
            sides: dict[str, list[Ids]] = {side: [] for side in writers}
            for (_, first), ids in zip(batch, encoded, strict=True):
                sides["valid" if hash_to_unit_interval(first) < share else "train"].append(ids)
            for side, added in sides.items():
                if added:
                    writers[side].add(added)
            bar.update(sum(map(len, encoded)))
    total = {split: f"{writer.tokens:,}" for split, writer in writers.items()}
    logger.info("%s: tokens for training %s, for validation %s", name, *total.values())


def _tokenize(
    batches: Iterable[list[Part]], tokenizer: Any
) -> Generator[tuple[list[Part], list[Ids]], None, None]:
    """Yield each batch, in order, with the ids of its texts, while later ones are tokenized."""
    encode = batch_encoder(tokenizer)
    waiting: deque[tuple[list[Part], Future[list[Ids]]]] = deque()
    # One thread, so that a tokenizer's own bookkeeping is that of one batch; the tokenizer divides
    # the texts of a batch among the cores, and lets Python go on meanwhile.
    thread = ThreadPoolExecutor(max_workers=1)
    try:
        for batch in batches:
            waiting.append((batch, thread.submit(encode, [text for text, _ in batch])))
            if len(waiting) > _AHEAD:
                done, ids = waiting.popleft()
                yield done, ids.result()
        for done, ids in waiting:
            yield done, ids.result()
    finally:
        # After an error nothing waits for what is not begun.
        thread.shutdown(cancel_futures=True)


def _batch_parts(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Group texts until a group has ``_BATCH`` characters; only its last text may exceed them."""
    batch, size = [], 0
    for part in parts:
        batch.append(part)
        size += len(part[0])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_splits(writers: dict[str, _Writer], config: Data, left_out: int) -> None:
    train, valid = writers["train"], writers["valid"]
    if left_out and not train.documents:
        raise _same_text_error(config)
    if config.validation and not valid.documents:
        raise ValueError(f"data.validation, {config.validation}, holds no text")
    if not train.documents and (config.validation or not valid.documents):
        raise ValueError(f"{config.source} holds no text")
    for name, writer in writers.items():
        if not writer.documents:
            raise ValueError(
                f"none of the {train.documents + valid.documents} documents of {config.source} "
                f"are in the split {name}; give data.validation a source of its own, or change "
                "data.validation_share"
            )
