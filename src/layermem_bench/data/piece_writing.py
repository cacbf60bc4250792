"""The pieces of a plan as files of tokens, each whole or absent.

Every document is followed by the end token. Several processes may be at it: a lock for each piece
keeps them from making it twice.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import IO, Any, TypeAlias, final

import numpy as np

from layermem_base.files import write_atomically
from layermem_bench.data.document_hashes import Hashes, Sketch, hash_text
from layermem_bench.data.pieces import is_held_out, read_piece
from layermem_bench.data.preparations import SPLITS, Plan, Work, tokenizer_digest
from layermem_bench.data.staging import claim_folder, process_name, write_errors
from layermem_bench.data.tokenizers import Ids, batch_encoder

# A text, and the split that it is in.
Part: TypeAlias = tuple[str, str]
# Told how many tokens were written just now.
Progress: TypeAlias = Callable[[int], Any]
# Characters tokenized at once: a tokenizer's own bookkeeping takes some hundred bytes for each.
_BATCH = 500_000
# Batches that are read ahead of the one that is written: one is tokenized, one waits for that.
_AHEAD = 2


def make_pieces(
    work: Work, plan: Plan, tokenizer: Any, indices: Sequence[int], progress: Progress
) -> None:
    """Make pieces that are not done; wait for those that other processes make."""
    if tokenizer_digest(tokenizer) != plan.tokenizer:
        raise ValueError(
            f"the tokenizer {plan.tokenizer_name} is not the one that {plan.source} was begun "
            f"with; give that one, or delete {work.folder}"
        )
    for index in indices:

        def is_done(index: int = index) -> bool:
            return work.mark(index).exists() or work.published()

        # What has an owner is divided among its processes beforehand.
        alone = nullcontext(not is_done()) if work.owner else None
        with alone or claim_folder(work.mark(index), is_done) as must_make:
            if must_make:
                _make_piece(work, plan, tokenizer, index, progress)


def share_of(count: int, rank: int, tasks: int) -> range:
    """Return the pieces of one of several tasks."""
    return range(rank, count, tasks)


def _make_piece(work: Work, plan: Plan, tokenizer: Any, index: int, progress: Progress) -> None:
    piece = plan.pieces[index]
    parts = read_piece(plan.open(piece["source"]), piece)
    splits = _Splits(1.0 if piece["source"] else plan.share, work.held_out())
    with ExitStack() as stack:
        writers = {}
        for split in SPLITS:
            name = f".tmp-{index:05d}-{process_name()}-{split}.bin"
            writers[split] = stack.enter_context(_Writer(work.folder / name, plan))
        write_parts(splits.of(parts), writers, tokenizer, progress)
    if plan.shuffle is not None:
        order = np.random.default_rng([plan.shuffle, index])
        writers["train"] = _shuffled(writers["train"], plan, order)
    done: dict[str, Any] = {"tokenizer": plan.tokenizer, "left_out": splits.left_out}
    for split, writer in writers.items():
        done[split] = {"tokens": writer.tokens, "documents": writer.documents}
        done[split]["sketch"] = splits.sketches[split].to_text()
    with write_errors(work.folder):
        for split, writer in writers.items():
            os.replace(writer.path, work.file(split, index, len(plan.pieces)))
        write_atomically(work.mark(index), json.dumps(done))


def _shuffled(writer: "_Writer", plan: Plan, order: np.random.Generator) -> "_Writer":
    """Return the writer of another file, with the documents of a complete one in random order."""
    tokens = np.fromfile(writer.path, writer.dtype)
    ends = np.flatnonzero(tokens == writer.end)
    if len(ends) != writer.documents:
        raise ValueError(
            f"the tokenizer makes end tokens ({writer.end}) of text, so that documents cannot be "
            "put in another order: choose another --data.tokenizer, or leave out "
            "--data.shuffle-documents"
        )
    begins = np.concatenate([[0], ends[:-1] + 1])
    with _Writer(writer.path.with_suffix(".shuffled"), plan) as shuffled:
        for document in order.permutation(len(ends)):
            shuffled.add([tokens[begins[document] : ends[document]]])
    writer.path.unlink()
    return shuffled


class _Splits:
    """Divides documents between training and validation, whose copies training leaves out."""

    def __init__(self, share: float, held_out: Hashes) -> None:
        self.share, self.held_out, self.left_out = share, held_out, 0
        self.sketches = {split: Sketch() for split in SPLITS}

    def of(self, parts: Iterable[tuple[str, str]]) -> Iterator[Part]:
        """Yield each text with its split, of texts with the first part of their document."""
        for text, first in parts:
            if not text:
                continue
            split, number = SPLITS[is_held_out(first, self.share)], hash_text(text)
            if split == "train" and self._holds(number):
                self.left_out += 1
                continue
            self.sketches[split].add(number)
            yield text, split

    def _holds(self, number: int) -> bool:
        place = int(np.searchsorted(self.held_out, np.uint64(number)))
        return place < len(self.held_out) and int(self.held_out[place]) == number


@final
class _Writer:
    """Appends documents to a file of tokens, which is deleted where an error comes."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.end, self.dtype = path, plan.end, np.dtype(plan.dtype)
        self.tokens = self.documents = 0
        with write_errors(path):
            self.file: IO[bytes] = path.open("wb")

    def add(self, documents: Sequence[Ids]) -> None:
        """Write the ids of documents, each with the end token."""
        end = np.array([self.end], self.dtype)
        content = np.concatenate([part for ids in documents for part in (ids, end)])
        with write_errors(self.path):
            self.file.write(content.tobytes())
        self.tokens += len(content)
        self.documents += len(documents)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with write_errors(self.path), self.file:
                if kind is None:
                    self.file.flush()
                    os.fsync(self.file.fileno())
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        if kind is not None:
            self.path.unlink(missing_ok=True)


def write_parts(
    documents: Iterable[Part],
    writers: dict[str, _Writer],
    tokenizer: Any,
    progress: Progress,
) -> None:
    """Tokenize documents, and write each into its split."""
    with closing(_tokenize(_batch_parts(documents), tokenizer)) as tokenized:
        for batch, encoded in tokenized:
            sides: dict[str, list[Ids]] = {side: [] for side in writers}
            for (_, split), ids in zip(batch, encoded, strict=True):
                sides[split].append(ids)
            for side, added in sides.items():
                if added:
                    writers[side].add(added)
            progress(sum(map(len, encoded)))


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
