"""Documents tokenized into a file of tokens for each split, prepared once and then reused.

    CACHE/KEY-3/train.bin, valid.bin    tokens; the end token follows every document
    CACHE/KEY-3/meta.json               counts of both, and sketches of their documents
    CACHE/.parts-KEY-3                  what is not complete yet (``shards``)

KEY is a digest of the text, the tokenizer and the options that change the tokens; recorded runs
name their data by it. A folder is whole or absent: a process makes it, others wait for its lock.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from layermem_bench.config.run import Data
from layermem_bench.text.blocks import Prepared
from layermem_bench.text.shards import META, SPLITS, Shards
from layermem_bench.text.sources import Source, hub_name, open_source
from layermem_bench.text.tokenizers import fingerprint

logger = logging.getLogger(__name__)
# A change of the tokens that are written takes another number, so that nothing older is found.
_VERSION = 4


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
            parts = folder.with_name(f".parts-{folder.name}" + f"-of-{tasks}" * (tasks > 1))
            shards = Shards(
                folder=parts,
                sources=sources,
                share=0.0 if config.validation else config.validation_share,
                most=config.max_documents,
                tokenizer=tokenizer,
                tasks=tasks,
            )
            _make(shards, workers, folder, config)
    train, valid = (_read(folder, split) for split in SPLITS)
    if train.left_out:
        logger.warning(
            "%s of %s documents of %s are in %s too: they are left out of training",
            f"{train.left_out:,}",
            f"{train.left_out + train.documents:,}",
            config.source,
            config.validation or "the share that is held out",
        )
    return train, valid


def cache_folder(given: str | None = None) -> Path:
    """Return the folder of all prepared files: as given, LAYERMEM_CACHE, or ~/.cache/layermem."""
    place = given or os.environ.get("LAYERMEM_CACHE") or "~/.cache/layermem"
    return Path(place).expanduser().absolute()


def prepared_name(config: Data, sources: Sequence[Source], tokenizer: Any) -> str:
    """Return a digest of what decides the tokens of a config; nothing is prepared."""
    fingerprints = [source.fingerprint() for source in sources]
    if len(set(fingerprints)) < len(fingerprints):
        raise ValueError(
            f"data.validation, {config.validation}, holds the text of data.source; name another "
            "(a split of a Hugging Face dataset is NAME:validation), or leave it out to use a share"
        )
    share = None if config.validation else config.validation_share
    parts = [_VERSION, fingerprints, share, config.max_documents, fingerprint(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def open_sources(config: Data) -> list[Source]:
    """Return the text that is learnt and, where it has a source of its own, that of validation."""
    of_dataset = {"subset": config.subset, "revision": config.revision}
    return [
        open_source(
            name,
            text_field=config.text_field,
            streaming=config.streaming,
            # Another dataset has configurations and revisions of its own.
            **(of_dataset if hub_name(name)[0] == hub_name(config.source)[0] else {}),
        )
        for name in filter(None, (config.source, config.validation))
    ]


def _make(shards: Shards, workers: int, folder: Path, config: Data) -> None:
    try:
        whole = shards.make(workers)
        if empty := [split for split in SPLITS if not _read(whole, split).documents]:
            raise ValueError(
                f"{config.source} has no document for {empty[0]} beside copies of what validates: "
                "divide it into more documents, change data.validation_share, or name another text "
                "as data.validation"
            )
        os.replace(whole, folder)
    finally:
        # What tasks have written stays for the same command to go on with.
        if shards.tasks == 1 or folder.exists():
            shutil.rmtree(shards.folder, ignore_errors=True)


def _read(folder: Path, split: str) -> Prepared:
    """Return a split of a folder, whose file must have the size of its tokens."""
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    prepared = Prepared(path=folder / f"{split}.bin", **meta[split])
    if prepared.path.stat().st_size != prepared.tokens * np.dtype(prepared.dtype).itemsize:
        raise ValueError(f"{prepared.path} is damaged; delete {folder} to have it made again")
    return prepared
