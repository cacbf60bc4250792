"""Minimal pairs of BLiMP, and which sentence of a pair a language model finds more probable.

    {"sentence_good": "Who should Derek hug after shocking Richard?",
     "sentence_bad": "Who should Derek hug Richard after shocking?",
     "field": "syntax", "linguistics_term": "island_effects", "UID": "adjunct_island", ...}

    ln p(sentence) = sum over its tokens of ln p(token | tokens before it)

The source is github.com/alexwarstadt/blimp, folder data: 67 files of 1,000 pairs, one for each
paradigm (UID); a phenomenon (linguistics_term) has several (Warstadt et al., arXiv 1912.00582). One
file writes its field syntax/semantics and others syntax_semantics: here both are the latter. A few
records hold one sentence twice: they are left out, with a warning.

A pair is right if the grammatical sentence has the higher log-probability, of the whole sentence
and not the mean of its tokens. The first token is predicted from the token that stands before texts
in training, and the end of a sentence is not predicted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layermem_bench.data.files import find_files
from layermem_bench.data.records import KINDS, file_records, kind_of
from layermem_bench.data.tokenizers import Ids, batch_encoder
from layermem_bench.evals.perplexity import (
    Predecessor,
    Window,
    batched_losses,
    check_ids,
    check_tokenizer,
    first_context,
    longest_context,
    rows_at_once,
)

logger = logging.getLogger(__name__)

_FIELDS = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID")
# Sentences tokenized at once.
_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A grammatical sentence and one that is not."""

    good: str
    bad: str
    field: str
    """Field of linguistics: "morphology", "syntax", "semantics" or "syntax_semantics"."""
    phenomenon: str
    """What is violated, such as "island_effects"."""
    paradigm: str
    """How it is violated, such as "adjunct_island"."""


def read_pairs(paths: Sequence[Path], *, per_paradigm: int | None = None) -> list[Pair]:
    """Return the pairs of files of records, or of folders of such files.

    ``per_paradigm``: the first so many pairs of each paradigm; None: all. Records that hold one
    sentence twice are left out.
    """
    counts, pairs, equal = Counter[str](), [], list[str]()
    files = [file for path in paths for file in _files(path)]
    _check_distinct(files)
    for record in (record for file in files for record in file_records(file)):
        good, bad, field, phenomenon, paradigm = map(record.text, _FIELDS)
        if good == bad:
            equal.append(record.where)
            continue
        counts[paradigm] += 1
        if per_paradigm is None or counts[paradigm] <= per_paradigm:
            field = field.replace("/", "_")
            pair = Pair(good=good, bad=bad, field=field, phenomenon=phenomenon, paradigm=paradigm)
            pairs.append(pair)
    if equal:
        logger.warning(
            "%d of %d pairs hold one sentence twice and are left out, the first in %s",
            *(len(equal), len(equal) + counts.total(), equal[0]),
        )
    if not pairs:
        raise ValueError(f"there are no pairs in {', '.join(map(str, paths))}")
    return pairs


def _files(path: Path) -> list[Path]:
    path = path.expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} does not exist; give BLiMP's JSON lines, a file or the folder data of "
            "github.com/alexwarstadt/blimp"
        )
    files = [file for file in sorted(find_files(path)) if kind_of(file) in KINDS]
    if not files:
        raise ValueError(f"the folder {path} holds no records of BLiMP")
    return files


def _check_distinct(files: Sequence[Path]) -> None:
    """Raise if a file is read twice, or beside a copy of another kind, compressed for example."""
    seen: dict[Path, Path] = {}
    for file in files:
        name = file.name[: file.name.lower().rindex(kind_of(file))]
        for place in {file.resolve(), file.parent.resolve() / name}:
            if place in seen:
                raise ValueError(
                    f"{seen[place]} and {file} are one file, or have one name, so that their pairs "
                    "would count twice: name one of them"
                )
            seen[place] = file


def score_sentences(
    model: Any,
    tokenizer: Any,
    sentences: Sequence[str],
    *,
    predecessor: Predecessor = "tokenizer",
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray[Any, Any]:
    """Return the log-probability (nats) of each sentence, in the given order.

    ``predecessor``: id that stands before each; "tokenizer": the tokenizer's BOS, or EOS without a
    BOS; None: nothing, and the log-probability is that of what follows the first token.
    ``batch_size``: sentences of a forward; None: as many as 128 MB of logits allow, at most 64.
    ``progress`` is called with the number of sentences done so far.
    """
    check_tokenizer(tokenizer)
    windows = list(_windows(model, tokenizer, sentences, predecessor))
    longest = max((len(window.ids) - 1 for window in windows), default=1)
    scores = np.full(len(sentences), np.nan)
    # Once each: equal ids, of words that the tokenizer does not know, tie whatever their batches.
    same: dict[bytes, list[int]] = {}
    for window in windows:
        same.setdefault(window.ids.tobytes(), []).append(window.item)
    different = [windows[items[0]] for items in same.values()]
    batches = batched_losses(model, different, rows_at_once(model, longest, batch_size))
    for done, (window, losses) in enumerate(batches, 1):
        if not np.isfinite(losses).all():
            raise ValueError(
                f"the log-probability of {sentences[window.item]!r} is not finite: the model's "
                "weights are not, or its precision is too low; try float32"
            )
        scores[same[window.ids.tobytes()]] = -losses.sum()
        if progress is not None:
            progress(done)
    return scores


def judge_pairs(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    predecessor: Predecessor = "tokenizer",
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray[Any, Any]:
    """Return by how much (nats) each pair's good sentence is more probable than its bad one."""
    # Once each: sentences are in several pairs.
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    scores = score_sentences(
        model,
        tokenizer,
        sentences,
        predecessor=predecessor,
        batch_size=batch_size,
        progress=progress,
    )
    of_sentence = dict(zip(sentences, scores, strict=True))
    return np.array([of_sentence[pair.good] - of_sentence[pair.bad] for pair in pairs])


def _windows(
    model: Any, tokenizer: Any, sentences: Sequence[str], predecessor: Predecessor
) -> Iterator[Window]:
    limit = longest_context(model.config)
    for item, ids in enumerate(encode_sentences(tokenizer, sentences, predecessor)):
        count = len(ids) - 1
        check_ids(ids, model)
        if not count:
            raise ValueError(f"the tokenizer has no tokens to predict in {sentences[item]!r}")
        if limit is not None and count > limit:
            raise ValueError(
                f"{sentences[item][:60]!r} has {count} tokens, more than the {limit} that the "
                "model reads"
            )
        yield Window(ids=ids, scored=count, item=item)


def encode_sentences(
    tokenizer: Any, sentences: Sequence[str], predecessor: Predecessor = "tokenizer"
) -> Iterator[Ids]:
    """Yield the ids of each sentence, in int64, behind the one that stands before it."""
    first = first_context(tokenizer, predecessor)
    encode = batch_encoder(tokenizer)
    if first is None and predecessor is not None:
        raise ValueError(
            "the tokenizer has neither a BOS nor an EOS token, so the first word of a sentence "
            "could not be predicted; give it the one that stands before texts in training"
        )
    for start in range(0, len(sentences), _AT_ONCE):
        for ids in encode(sentences[start : start + _AT_ONCE]):
            before = [] if first is None else [first]
            yield np.concatenate([before, ids]).astype(np.int64)
