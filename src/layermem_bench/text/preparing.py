"""Documents tokenized into a file of tokens for each split, prepared once and then reused.

    CACHE/KEY-3/train.bin, valid.bin    tokens; the end token follows every document
    CACHE/KEY-3/meta.json               counts of both, and sketches of their documents
    CACHE/.parts-KEY-3/00002/           the same of the third task, while the text is prepared

KEY is a digest of the text, the tokenizer and the options that change the tokens; recorded runs
name their data by it. A folder is whole or absent: a process makes it, others wait for its lock.
The tokens do not depend on the number of tasks. Several are run by datatrove, whose own
``DocumentTokenizer`` makes no such files: it has no splits, shuffles within a task, and an added
end token goes through the post-processor, which special tokens share.
"""

import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from layermem_base.files import write_atomically
from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.config.run import Data
from layermem_bench.text.blocks import META, Prepared, Sketch, hash_text
from layermem_bench.text.sources import HubDataset, Source, open_source
from layermem_bench.text.tokenizers import batch_encoder, fingerprint, id_dtype

logger = logging.getLogger(__name__)
SPLITS = ("train", "valid")
# A text, and the split that it is in, or "left_out".
Part: TypeAlias = tuple[str, str]
# A change of the tokens that are written takes another number, so that nothing older is found.
_VERSION = 4
# Characters tokenized at once: a tokenizer's own bookkeeping takes some hundred bytes for each.
_BATCH = 500_000


def prepare(
    config: Data, tokenizer: Any, tasks: int = 1, workers: int = 1
) -> tuple[Prepared, Prepared]:
    """Return the training and validation tokens of a config, from the cache if they are there;
    otherwise that many ``tasks`` make them, ``workers`` at once."""
    sources = open_sources(config)
    # What lies beside the tokens has its own version; the digest before it is that of records.
    folder = cache_folder(config.cache) / f"{prepared_name(config, sources, tokenizer)}-3"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A soft lock, which FileLock would fall back to, would outlive a killed process.
    with FileLock(folder.with_name(f".lock-{folder.name}"), fallback_to_soft=False):
        if not (folder / META).exists():
            logger.info("preparing %s", config.source)
            _make(config, sources, tokenizer, folder, tasks, workers)
    train, valid = (Prepared.read(folder, split) for split in SPLITS)
    if train.left_out:
        logger.warning(
            "%s documents of %s are left out of training, as %s has them too",
            *(f"{train.left_out:,}", config.source, config.validation or "the held-out share"),
        )
    return train, valid


def cache_folder(given: str | None = None) -> Path:
    """Return the folder of all prepared files: as given, LAYERMEM_CACHE, or ~/.cache/layermem."""
    place = given or os.environ.get("LAYERMEM_CACHE") or "~/.cache/layermem"
    return Path(place).expanduser().absolute()


def prepared_name(config: Data, sources: Sequence[Source], tokenizer: Any) -> str:
    """Return a digest of what decides the tokens of a config; nothing is prepared."""
    fingerprints = [source.fingerprint() for source in sources]
    share = None if config.validation else config.validation_share
    parts = [_VERSION, fingerprints, share, config.max_documents, fingerprint(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def open_sources(config: Data) -> list[Source]:
    """Return the text that is learnt and, where it has a source of its own, that of validation."""
    names = filter(None, (config.source, config.validation))
    return [open_source(name, config) for name in names]


def _make(
    config: Data, sources: Sequence[Source], tokenizer: Any, folder: Path, tasks: int, workers: int
) -> None:
    """Have tasks write their tokens, and put them in a row."""
    parts = folder.with_name(f".parts-{folder.name}" + f"-of-{tasks}" * (tasks > 1))
    held_out = frozenset(_held_out(config, sources))

    # The one step of a pipeline of datatrove; as a function it is named in its logs, not written.
    def write(data: Iterable[Any] | None = None, rank: int = 0, tasks: int = 1) -> None:
        if tasks > 1:
            # A task has one core; another thread for each would be in the way of other tasks.
            os.environ["RAYON_NUM_THREADS"] = "1"
        texts = _divided(config, sources, held_out, rank, tasks)
        _write(parts / f"{rank:05d}", texts, tokenizer)

    try:
        if tasks == 1:
            write()
        else:
            try:
                from datatrove.executor import LocalPipelineExecutor
            except ImportError as error:
                raise ValueError(f'--tasks: {error}; pip install "layermem[scale]"') from error

            # Those that have ended are not run again; errors are raised.
            logs, at_once = str(parts / "logs"), min(tasks, workers)
            LocalPipelineExecutor([write], tasks, at_once, logging_dir=logs).run()
        whole = _join([parts / f"{rank:05d}" for rank in range(tasks)], parts / "whole")
        if empty := [split for split in SPLITS if not Prepared.read(whole, split).documents]:
            raise ValueError(
                f"{config.source} has no document for {empty[0]} beside copies of what validates: "
                "divide it into more documents, change data.validation_share, or name another text "
                "as data.validation"
            )
        os.replace(whole, folder)
    finally:
        # datatrove's tasks that have ended stay for the same command to go on with.
        if tasks == 1 or folder.exists():
            shutil.rmtree(parts, ignore_errors=True)


def _held_out(config: Data, sources: Sequence[Source]) -> Iterator[int]:
    """Yield hashes of the documents that are held out; of a share of a streamed dataset none, as
    it would be fetched twice."""
    learnt, *own = sources
    texts: Iterable[str] = own[0] if own else ()
    if not own and not (isinstance(learnt, HubDataset) and config.streaming):
        parts = islice(learnt.parts(), config.max_documents)
        share = config.validation_share
        texts = (text for text, first in parts if hash_to_unit_interval(first) < share)
    return map(hash_text, filter(None, texts))


def _divided(
    config: Data, sources: Sequence[Source], held_out: Set[int], rank: int, tasks: int
) -> Iterator[Part]:
    """Yield each text of a task's slice with its split. Of a document that is cut, the first part
    decides; copies of documents that are held out are left out of training.

    White space counts for the split, as it did when runs were recorded, and not for copies.
    """
    learnt, *own = sources
    for text, first in islice(learnt.parts(rank, tasks), config.max_documents):
        if not own and hash_to_unit_interval(first) < config.validation_share:
            yield text, "valid"
        else:
            yield text, "left_out" if hash_text(text) in held_out else "train"
    for source in own:
        yield from ((text, "valid") for text, _ in source.parts(rank, tasks))


def _write(folder: Path, texts: Iterable[Part], tokenizer: Any) -> None:
    """Write the tokens of texts, and what they are, to a folder of the form that is read."""
    folder.mkdir(parents=True, exist_ok=True)
    encode, dtype, end = batch_encoder(tokenizer), id_dtype(tokenizer), tokenizer.eos_token_id
    tokens, documents = Counter[str](), Counter[str]()
    sketches = {split: Sketch() for split in SPLITS}
    with ExitStack() as stack:
        files = {s: stack.enter_context((folder / f"{s}.bin").open("wb")) for s in SPLITS}
        # None: a progress bar in a terminal, nothing in a pipe.
        bar = stack.enter_context(tqdm(unit=" tokens", unit_scale=True, disable=None))
        for batch in _batches(texts):
            documents.update(split for _, split in batch)
            batch = [(text, split) for text, split in batch if split in SPLITS]
            encoded = encode([text for text, _ in batch])
            for (text, split), ids in zip(batch, encoded, strict=True):
                files[split].write(np.append(ids, np.array(end, dtype)).tobytes())
                tokens[split] += len(ids) + 1
                sketches[split].add(hash_text(text))
            bar.update(sum(map(len, encoded)))
    meta = {
        split: {
            "tokens": tokens[split],
            "documents": documents[split],
            "left_out": documents["left_out"] if split == "train" else 0,
            "dtype": np.dtype(dtype).name,
            "end": end,
            "sketch": sketches[split].to_text(),
        }
        for split in SPLITS
    }
    write_atomically(folder / META, json.dumps(meta, indent=1))


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Group texts that are not empty until a group has ``_BATCH`` characters."""
    batch, size = list[Part](), 0
    for text, split in parts:
        if text:
            batch.append((text, split))
            size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _join(folders: Sequence[Path], whole: Path) -> Path:
    """Put the tokens of all tasks in a row, in a new folder if there are several; return it."""
    if len(folders) == 1:
        return folders[0]
    metas, joined = [json.loads((each / META).read_text("utf-8")) for each in folders], {}
    whole.mkdir(exist_ok=True)
    for split in SPLITS:
        with (whole / f"{split}.bin").open("wb") as file:
            for path in (folder / f"{split}.bin" for folder in folders):
                with path.open("rb") as tokens:
                    shutil.copyfileobj(tokens, file)
        rows = [meta[split] for meta in metas]
        counts = {name: sum(r[name] for r in rows) for name in ("tokens", "documents", "left_out")}
        sketch = Sketch(n for r in rows for n in Sketch.from_text(r["sketch"]).hashes.tolist())
        joined[split] = {**rows[0], **counts, "sketch": sketch.to_text()}
    write_atomically(whole / META, json.dumps(joined, indent=1))
    return whole
