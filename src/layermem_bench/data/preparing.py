"""Documents tokenized into files of tokens for each split, prepared once and then reused.

The folder of prepared files is named by a digest of the text, the tokenizer and the options that
change the tokens. The text is divided into pieces (``pieces``), which several processes make
(``writing``, ``local_workers``); what is done stays where a preparation is stopped, and the next
goes on from there. Others that need the same wait for it (``staging``).
"""

import hashlib
import json
import logging
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from layermem_bench.config.run import Data
from layermem_bench.data.blocks import Prepared
from layermem_bench.data.document_hashes import Hashes, hash_text
from layermem_bench.data.local_workers import make_locally
from layermem_bench.data.pieces import divide, is_held_out, read_piece
from layermem_bench.data.preparations import (
    META,
    SPLITS,
    Plan,
    Work,
    check_files,
    same_text_error,
    shard_name,
    tokenizer_digest,
)
from layermem_bench.data.sources import HubDataset, Source, hub_name, open_source
from layermem_bench.data.staging import claim_folder, process_name, work_folder
from layermem_bench.data.tokenizers import fingerprint, id_dtype

logger = logging.getLogger(__name__)
# Makes the pieces of a plan that are missing; returns whether it has waited until all are made.
Make: TypeAlias = Callable[[Work, Plan, Any], bool]
# A source, the arguments of ``open_source`` that open it again, and its fingerprint.
Opened: TypeAlias = tuple[Source, dict[str, Any], str]
# A change of the tokens that are written takes another number, so that nothing older is found.
_VERSION = 4


def prepare(config: Data, tokenizer: Any) -> tuple[Prepared, Prepared]:
    """Return the training and validation tokens of a config, from the cache if they are there."""
    folder, _ = build(config, tokenizer, make_locally)
    train, valid = read_folder(folder, tokenizer)
    if train.left_out:
        logger.warning(
            "%s of %s documents of %s are in %s too: they are left out of training",
            f"{train.left_out:,}",
            f"{train.left_out + train.documents:,}",
            config.source,
            config.validation or "the share that is held out",
        )
    return train, valid


def build(config: Data, tokenizer: Any, make: Make) -> tuple[Path, bool]:
    """Return the folder of a config's tokens, and whether it is complete, after ``make`` has made
    what is missing of it."""
    sources = _open_sources(config)
    folder = _folder(config, _name(config, sources, tokenizer))
    with claim_folder(folder, (folder / META).exists) as must_build:
        if must_build:
            work = Work(folder, "" if must_build is True else process_name())
            _build(work, config, sources, tokenizer, make)
    return folder, (folder / META).exists()


def prepared_name(config: Data, tokenizer: Any) -> str:
    """Return the name of the folder of a config's tokens, a digest of the text that lies there now;
    nothing is prepared."""
    return _name(config, _open_sources(config), tokenizer)


def is_prepared(config: Data, name: str) -> bool:
    """Return whether the folder of a config's tokens is in the cache."""
    return (_folder(config, name) / META).exists()


def _folder(config: Data, name: str) -> Path:
    # What lies beside the tokens has its own version; the digest before it is that of records.
    return cache_folder(config.cache) / f"{name}-2"


def _name(config: Data, sources: Sequence[Opened], tokenizer: Any) -> str:
    fingerprints = [digest for _, _, digest in sources]
    if len(set(fingerprints)) < len(fingerprints):
        raise same_text_error(config.source, config.validation)
    share = None if config.validation else config.validation_share
    parts: list[Any] = [_VERSION, fingerprints, share, config.max_documents, fingerprint(tokenizer)]
    # Folders that were made before this option keep their names.
    parts += [] if config.shuffle_documents is None else [config.shuffle_documents]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def read_folder(folder: Path, tokenizer: Any) -> tuple[Prepared, Prepared]:
    """Return the splits of a folder, after checking that their files have the size they must."""
    mend = f"delete {folder} to have it made again"
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / META} is damaged ({error}); {mend}") from error
    # Folders of earlier versions do not say.
    if meta.get("tokenizer", tokenizer_digest(tokenizer)) != tokenizer_digest(tokenizer):
        raise ValueError(f"{folder} holds tokens of another tokenizer; {mend}")
    splits = []
    for split in SPLITS:
        fields = meta[split]
        shards = tuple(fields.pop("shards", ()))
        names = [shard_name(split, i, len(shards) or 1) for i in range(len(shards) or 1)]
        check_files(
            [folder / name for name in names],
            shards or [fields["tokens"]],
            fields["dtype"],
            folder,
        )
        splits.append(Prepared(path=folder / f"{split}.bin", shards=shards, **fields))
    return splits[0], splits[1]


def cache_folder(given: str | None = None) -> Path:
    """Return the folder of all prepared files: as given, LAYERMEM_CACHE, or ~/.cache/layermem."""
    return (
        Path(given or os.environ.get("LAYERMEM_CACHE") or "~/.cache/layermem")
        .expanduser()
        .absolute()
    )


def _open_sources(config: Data) -> list[Opened]:
    """Return the text that is learnt and, where it has a source of its own, that of validation."""
    of_dataset = {"subset": config.subset, "revision": config.revision}
    opened = []
    for name in filter(None, (config.source, config.validation)):
        # Another dataset has configurations and revisions of its own.
        same = hub_name(name)[0] == hub_name(config.source)[0]
        # A task may begin in another folder.
        where = Path(name).expanduser()
        place = str(where.absolute()) if where.exists() and name != "stdlib" else name
        spec: dict[str, Any] = {"source": place, **(of_dataset if same else {})}
        spec |= {"text_field": config.text_field, "streaming": config.streaming}
        source = open_source(**spec)
        digest = source.fingerprint()
        if isinstance(source, HubDataset):
            # The commit of a streamed one is known by now; tasks read no other.
            spec["revision"] = source.revision
        opened.append((source, spec, digest))
    return opened


def _build(work: Work, config: Data, sources: Sequence[Opened], tokenizer: Any, make: Make) -> None:
    with work_folder(work.final, work.owner):
        logger.info("preparing %s", config.source)
        plan = work.plan() or _plan(work, config, sources, tokenizer)
        if make(work, plan, tokenizer):
            work.publish(plan)
            train, valid = (split.tokens for split in read_folder(work.final, tokenizer))
            text = "%s: tokens for training %s, for validation %s"
            logger.info(text, config.source, f"{train:,}", f"{valid:,}")


def _plan(work: Work, config: Data, sources: Sequence[Opened], tokenizer: Any) -> Plan:
    """Return a new plan, after writing it."""
    learnt, *held = (source for source, _, _ in sources)
    learnt_pieces = divide(learnt, config.max_documents)
    if config.shuffle_documents is not None:
        random.Random(config.shuffle_documents).shuffle(learnt_pieces)
    pieces = [piece | {"source": 1} for source in held for piece in divide(source)]
    pieces += [piece | {"source": 0} for piece in learnt_pieces]
    folder = Path(config.tokenizer).expanduser()
    plan = Plan(
        source=config.source,
        validation=config.validation,
        shuffle=config.shuffle_documents,
        share=0.0 if held else config.validation_share,
        tokenizer=tokenizer_digest(tokenizer),
        tokenizer_name=str(folder.absolute()) if folder.is_dir() else config.tokenizer,
        dtype=np.dtype(id_dtype(tokenizer)).name,
        end=tokenizer.eos_token_id,
        sources=[spec for _, spec, _ in sources],
        fingerprints=[digest for _, _, digest in sources],
        pieces=pieces,
        opened=dict(enumerate([learnt, *held])),
    )
    work.write_plan(plan, _hashes_held_out(plan))
    return plan


def _hashes_held_out(plan: Plan) -> Hashes:
    """Return the hashes of the documents of validation; of a share of a streamed data set none, as
    it would be fetched twice."""
    learnt = plan.open(0)
    is_streamed = isinstance(learnt, HubDataset) and learnt.streaming
    shares = [0.0 if is_streamed else plan.share, 1.0]
    hashes = (
        hash_text(text)
        for piece in plan.pieces
        if shares[piece["source"]]
        for text, first in read_piece(plan.open(piece["source"]), piece)
        if text and is_held_out(first, shares[piece["source"]])
    )
    return np.unique(np.fromiter(hashes, "<u8"))
