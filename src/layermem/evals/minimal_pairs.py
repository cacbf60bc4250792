"""Which sentence of a minimal pair a language model finds more probable.

    ln p(sentence) = sum over its tokens of ln p(token | tokens before it)

A pair is right if the grammatical sentence has the higher log-probability. It is that of the whole
sentence, not the mean of its tokens: a sentence of more tokens has more to be improbable in, and
this is part of the score. The first token is predicted from the tokenizer's BOS token, or from EOS
where it has no BOS, and the end of a sentence is not predicted. Chance is 50%.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from layermem.data.tokenizers import Ids, batch_encoder
from layermem.evals.blimp_records import Pair
from layermem.evals.perplexity import longest_context
from layermem.evals.scores import compare_right
from layermem.evals.token_losses import (
    Window,
    batched_losses,
    check_ids,
    check_tokenizer,
    first_context,
    rows_at_once,
    vocabulary_size,
)
from layermem.intervals import proportion
from layermem.results.eval import Difference, Score

# Sentences tokenized at once.
_AT_ONCE = 1000


def score_sentences(
    model: Any,
    tokenizer: Any,
    sentences: Sequence[str],
    *,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray[Any, Any]:
    """Return the log-probability (nats) of each sentence, in the given order.

    ``batch_size``: sentences of a forward; None: as many as 128 MB of logits allow, at most 64.
    ``progress`` is called with the number of sentences done so far.
    """
    check_tokenizer(tokenizer)
    first = sentence_start(tokenizer)
    windows = list(_windows(model, tokenizer, sentences, first))
    longest = max((len(window.ids) - 1 for window in windows), default=1)
    rows = rows_at_once(model, longest) if batch_size is None else batch_size
    if rows < 1:
        raise ValueError(f"batch_size must be at least 1, got {rows}")
    scores = np.full(len(sentences), np.nan)
    for done, (window, losses) in enumerate(batched_losses(model, windows, rows), 1):
        if not np.isfinite(losses).all():
            raise ValueError(
                f"the log-probability of {sentences[window.item]!r} is not finite: the model's "
                "weights are not, or its precision is too low; try float32"
            )
        scores[window.item] = -losses.sum()
        if progress is not None:
            progress(done)
    return scores


def sentence_start(tokenizer: Any) -> int:
    """Return the id that stands before a sentence; raise if the tokenizer has none."""
    first = first_context(tokenizer)
    if first is None:
        raise ValueError(
            "the tokenizer has neither a BOS nor an EOS token, so the first word of a sentence "
            "could not be predicted; give it the one that stands before texts in training"
        )
    return first


def judge_pairs(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray[Any, Any]:
    """Return by how much (nats) each pair's good sentence is more probable than its bad one."""
    # Once each: sentences are in several pairs.
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    scores = score_sentences(model, tokenizer, sentences, batch_size=batch_size, progress=progress)
    of_sentence = dict(zip(sentences, scores, strict=True))
    return np.array([of_sentence[pair.good] - of_sentence[pair.bad] for pair in pairs])


def share_right(margins: np.ndarray[Any, Any]) -> Score:
    """Return the share of right pairs with its 95% interval, and how many are ties."""
    right, ties = int((margins > 0).sum()), int((margins == 0).sum())
    return Score(
        value=right / len(margins),
        interval=proportion(right, len(margins)),
        count=len(margins),
        counts={"ties": ties} if ties else {},
    )


def compare_pairs(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> Difference:
    """Return the difference of two models on the same pairs, with McNemar's p-value."""
    return compare_right([(ours > 0).astype(int).tolist()], [(theirs > 0).astype(int).tolist()])


def _windows(model: Any, tokenizer: Any, sentences: Sequence[str], first: int) -> Iterator[Window]:
    """Yield each sentence as one window."""
    encode, vocabulary = batch_encoder(tokenizer), vocabulary_size(model)
    limit = longest_context(model.config)
    for start in range(0, len(sentences), _AT_ONCE):
        some = sentences[start : start + _AT_ONCE]
        for item, ids in enumerate(encode(some), start):
            check_ids(ids, vocabulary)
            _check_length(ids, limit, sentences[item])
            whole = np.concatenate([[first], ids.astype(np.int64)])
            yield Window(ids=whole, scored=len(ids), item=item)


def _check_length(ids: Ids, limit: int | None, sentence: str) -> None:
    if not len(ids):
        raise ValueError(f"the tokenizer has no tokens for {sentence!r}")
    if limit is not None and len(ids) > limit:
        raise ValueError(
            f"{sentence[:60]!r} has {len(ids)} tokens, more than the {limit} that the model reads"
        )
