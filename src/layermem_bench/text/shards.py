"""Shards of a preparation: the tokens that each task makes of its slice of a text, then all as one.

    held-out                   hashes of the documents of validation
    train-00002.bin            tokens of the third task; valid-00002.bin
    00002.json                 counts and sketches of both; written last, so the shard is whole
    whole/train.bin            all shards in a row; valid.bin
    whole/meta.json            what they hold; written last

The tokens of ``whole`` do not depend on the number of tasks. Several are run by datatrove, whose
own ``DocumentTokenizer`` makes no such files: it has no splits, shuffles within a task, and an
added end token goes through the post-processor, which special tokens share.
"""

import importlib.util
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from tqdm import tqdm

from layermem_base.files import write_atomically
from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.text.document_hashes import Sketch, hash_text
from layermem_bench.text.sources import HubDataset, Source
from layermem_bench.text.tokenizers import batch_encoder, id_dtype

META = "meta.json"
SPLITS = ("train", "valid")
# A text, and the split that it is in, or "left_out".
Part: TypeAlias = tuple[str, str]
_HELD_OUT = "held-out"
# Characters tokenized at once: a tokenizer's own bookkeeping takes some hundred bytes for each.
_BATCH = 500_000


@final
@dataclass(frozen=True, kw_only=True)
class Shards:
    """What is made of a text, by how many tasks."""

    folder: Path
    sources: Sequence[Source]
    """The text that is learnt and, where it has a source of its own, that of validation."""
    share: float
    """Share of the documents of the text that is learnt that are held out for validation."""
    most: int | None
    """Most parts of documents that are read by a single task; None: all."""
    tokenizer: Any
    tasks: int = 1

    def make(self, workers: int = 1) -> Path:
        """Write the shards that are missing, so many at once, and return the folder of them all as
        one; an error of a task is raised."""
        self._find_held_out()
        if self.tasks == 1:
            self.write(0)
        else:
            self.write_by_tasks(workers)
        return self._merge()

    def write_by_tasks(self, workers: int) -> None:
        """Have tasks of datatrove write the shards; it marks and logs them."""
        if importlib.util.find_spec("datatrove") is None:
            raise ValueError('--tasks needs datatrove: pip install "layermem[scale]"')
        from datatrove.executor import LocalPipelineExecutor

        LocalPipelineExecutor(
            pipeline=[self],
            tasks=self.tasks,
            workers=min(self.tasks, workers),
            logging_dir=str(self.folder / "logs"),
        ).run()

    def __call__(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        """Write the shard of a task, as the one step of a pipeline of datatrove."""
        # One task has one core; another thread for each would be in the way of other tasks.
        os.environ["RAYON_NUM_THREADS"] = "1"
        self.write(rank)

    def _find_held_out(self) -> None:
        """Hash the documents that are held out, unless that has been done; of a share of a streamed
        data set none, as it would be fetched twice."""
        if (self.folder / _HELD_OUT).exists():
            return
        learnt, *own = self.sources
        texts: Iterable[str] = own[0] if own else ()
        if not own and not (isinstance(learnt, HubDataset) and learnt.streaming):
            parts = islice(learnt.parts(), self.most)
            texts = (text for text, first in parts if hash_to_unit_interval(first) < self.share)
        hashes = np.fromiter(map(hash_text, filter(None, texts)), "<u8")
        write_atomically(self.folder / _HELD_OUT, hashes.tobytes())

    def write(self, rank: int) -> None:
        """Write the shard of a task."""
        encode, dtype = batch_encoder(self.tokenizer), id_dtype(self.tokenizer)
        end = np.array([self.tokenizer.eos_token_id], dtype).tobytes()
        tokens, documents = Counter[str](), Counter[str]()
        sketches = {split: Sketch() for split in SPLITS}
        with ExitStack() as stack:
            paths = {split: self._path(split, rank) for split in SPLITS}
            files = {split: stack.enter_context(path.open("wb")) for split, path in paths.items()}
            # None: a progress bar in a terminal, nothing in a pipe.
            bar = stack.enter_context(tqdm(unit=" tokens", unit_scale=True, disable=None))
            for batch in _batches(self._divided(rank)):
                documents.update(split for _, split in batch)
                batch = [(text, split) for text, split in batch if split in SPLITS]
                encoded = encode([text for text, _ in batch])
                for (text, split), ids in zip(batch, encoded, strict=True):
                    files[split].write(ids.tobytes() + end)
                    tokens[split] += len(ids) + 1
                    sketches[split].add(hash_text(text))
                bar.update(sum(map(len, encoded)))
        rows = {
            split: {
                "tokens": tokens[split],
                "documents": documents[split],
                "left_out": documents["left_out"] if split == "train" else 0,
                "sketch": sketches[split].to_text(),
            }
            for split in SPLITS
        }
        write_atomically(self._mark(rank), json.dumps(rows))

    def _divided(self, rank: int) -> Iterator[Part]:
        """Yield each text of a slice with its split. Of a document that is cut, the first part
        decides; copies of documents that are held out are left out of training.

        White space counts for the split, as it did when runs were recorded, and not for copies.
        """
        learnt, *own = self.sources
        held_out = set(np.fromfile(self.folder / _HELD_OUT, "<u8").tolist())
        for text, first in islice(learnt.parts(rank, self.tasks), self.most):
            if hash_to_unit_interval(first) < self.share:
                yield text, "valid"
            else:
                yield text, "left_out" if hash_text(text) in held_out else "train"
        for source in own:
            yield from ((text, "valid") for text, _ in source.parts(rank, self.tasks))

    def _merge(self) -> Path:
        if lacking := [rank for rank in range(self.tasks) if not self._mark(rank).exists()]:
            raise RuntimeError(
                f"tasks {lacking} of {self.tasks} have not ended: see {self.folder}; start again"
            )
        shards = [json.loads(self._mark(rank).read_text("utf-8")) for rank in range(self.tasks)]
        dtype, end = np.dtype(id_dtype(self.tokenizer)).name, self.tokenizer.eos_token_id
        whole, meta = self.folder / "whole", dict[str, Any]()
        whole.mkdir(exist_ok=True)
        for split in SPLITS:
            with (whole / f"{split}.bin").open("wb") as file:
                for rank in range(self.tasks):
                    with self._path(split, rank).open("rb") as shard:
                        shutil.copyfileobj(shard, file)
                file.flush()
                os.fsync(file.fileno())
            rows = [shard[split] for shard in shards]
            sketch = Sketch.merged(Sketch.from_text(row.pop("sketch")) for row in rows)
            meta[split] = {name: sum(row[name] for row in rows) for name in rows[0]}
            meta[split] |= {"dtype": dtype, "end": end, "sketch": sketch.to_text()}
        write_atomically(whole / META, json.dumps(meta, indent=1))
        return whole

    def _path(self, split: str, rank: int) -> Path:
        return self.folder / f"{split}-{rank:05d}.bin"

    def _mark(self, rank: int) -> Path:
        return self.folder / f"{rank:05d}.json"


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
