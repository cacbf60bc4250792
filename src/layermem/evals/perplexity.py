"""Perplexity and bits per byte of documents, in windows that are strided over long ones.

    document  s_0 s_1 ... s_N            s_0: the token that stands before a document
    window 0  reads s_0 .. s_(C-1), predicts s_1 .. s_C            C: context, S: stride
    window k  reads s_(kS) .. s_(kS+C-1), predicts s_((k-1)S+C+1) .. s_(kS+C)

Each token is predicted once, documents apart from each other, and from the second window on each
has at least C - S + 1 tokens before it. The end of a document is not predicted. Documents are
tokenized one at a time, a long one in parts, so memory does not grow with the text (three numbers
of each document are kept).
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from layermem.data.sources import cut_document
from layermem.data.tokenizers import Ids, batch_encoder, bytes_of_first_token
from layermem.evals.token_losses import (
    Window,
    batched_losses,
    check_ids,
    check_tokenizer,
    first_context,
    rows_at_once,
    vocabulary_size,
)


@dataclass(frozen=True, kw_only=True)
class PositionLoss:
    """Loss of the tokens with from ``first`` to ``last`` tokens before them in their window."""

    first: int
    """Fewest tokens before them."""
    last: int
    """Most tokens before them."""
    tokens: int
    """Number of these tokens."""
    loss: float | None
    """Nats per token; None: there are no such tokens."""


@dataclass(frozen=True, kw_only=True)
class DocumentLosses:
    """Losses of the documents, in their order. One without a token to predict has zeros."""

    nats: tuple[float, ...]
    """Summed loss of each."""
    tokens: tuple[int, ...]
    """Tokens of each that were predicted."""
    bytes: tuple[int, ...]
    """Bytes (UTF-8) of the text of these tokens."""


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """What a model's losses on some documents are."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """Loss in bits, per byte of text: comparable between tokenizers."""
    tokens: int
    """Tokens that were predicted, each once."""
    bytes: int
    """Bytes (UTF-8) of their text."""
    context: int
    """Most tokens that one forward reads."""
    stride: int
    """Tokens by which windows of a long document are apart."""
    predecessor: int | None
    """Id that stands before each document; None: the tokenizer has none, and the first token of
    each document is not predicted."""
    unknown_tokens: int
    """Tokens among them that stand for text which the tokenizer has no tokens for."""
    positions: tuple[PositionLoss, ...]
    """Loss by the number of tokens before the predicted one in its window."""
    documents: DocumentLosses
    """Loss by document."""

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite where it is too large for a number."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def perplexity(
    model: Any,
    tokenizer: Any,
    texts: Iterable[str],
    *,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """Return the loss of a causal language model on texts, each of which is a document.

    ``context``: most tokens that one forward reads; None: the model's longest sequence.
    ``stride``: tokens by which windows of a long document are apart; None: half of the context.
    ``batch_size``: windows of a forward; None: as many as 128 MB of logits allow, at most 64.
    ``progress`` is called with the number of tokens predicted so far. ``texts`` may be a generator.

    The first token of a document is predicted from the tokenizer's BOS token, or EOS where it has
    no BOS; with neither it is not predicted, and its bytes are not counted.
    """
    check_tokenizer(tokenizer)
    if isinstance(texts, str):
        raise TypeError("texts must be several documents, got one string; pass [text]")
    longest = longest_context(model.config)
    context, stride = check_context(context, stride, longest, type(model).__name__)
    rows = rows_at_once(model, context) if batch_size is None else batch_size
    if rows < 1:
        raise ValueError(f"batch_size must be at least 1, got {rows}")
    documents = _Documents(texts, tokenizer, vocabulary_size(model))
    sums = _Sums(context)
    for window, losses in batched_losses(model, documents.windows(context, stride), rows):
        sums.add(window, losses)
        if progress is not None:
            progress(sums.tokens)
    if not sums.tokens:
        raise ValueError(
            f"there is no token to predict in {len(documents.bytes)} documents: they are empty, or "
            "there are none"
        )
    return _result(sums, documents, context, stride)


def check_context(
    context: int | None, stride: int | None, longest: int | None, name: str
) -> tuple[int, int]:
    """Return context and stride with their defaults, after checking them.

    ``longest`` is the longest sequence of the model called ``name``; None: it does not say.
    """
    context = longest if context is None else context
    if context is None:
        raise ValueError(f"{name} does not say how long its sequences may be; give a context")
    if longest is not None and context > longest:
        raise ValueError(
            f"a context of {context} tokens is longer than the {longest} of {name} "
            f"(max_position_embeddings); give a context of at most {longest}"
        )
    if context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride must be from 1 to the context, {context}, got {stride}")
    return context, stride


def longest_context(config: Any) -> int | None:
    """Return the longest sequence that a model's config allows; None: it does not say."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


class _Documents:
    """Documents as windows of tokens; what is counted of each is filled in as it is read."""

    def __init__(self, texts: Iterable[str], tokenizer: Any, vocabulary: int) -> None:
        self.texts, self.tokenizer, self.vocabulary = texts, tokenizer, vocabulary
        self.encode = batch_encoder(tokenizer)
        self.predecessor = first_context(tokenizer)
        self.unknown = getattr(tokenizer, "unk_token_id", None)
        self.bytes, self.unknown_tokens = array("q"), 0

    def windows(self, context: int, stride: int) -> Iterator[Window]:
        """Yield the windows of all documents."""
        for item, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise TypeError(f"text {item} must be a string, got {type(text).__name__}")
            self.bytes.append(0)
            yield from cut_windows(
                self._parts(text), context, stride, predecessor=self.predecessor, item=item
            )

    def _parts(self, text: str) -> Iterator[Ids]:
        """Yield the ids of a document, part by part."""
        first = True
        for part in cut_document(text):
            (ids,) = self.encode([part])
            if not len(ids):
                continue
            check_ids(ids, self.vocabulary)
            self.bytes[-1] += len(part.encode())
            if self.unknown is not None:
                self.unknown_tokens += int(np.count_nonzero(ids == self.unknown))
            if first and self.predecessor is None:
                self.bytes[-1] -= bytes_of_first_token(self.tokenizer, part, int(ids[0]))
            first = False
            yield ids


def cut_windows(
    parts: Iterable[Ids], context: int, stride: int, *, predecessor: int | None, item: int = 0
) -> Iterator[Window]:
    """Yield the windows of one document, whose ids come in parts."""
    start = [] if predecessor is None else [predecessor]
    ids = np.array(start, dtype=np.int64)
    # Tokens of ``ids`` before the first one that is still to be predicted.
    known = 1
    for part in parts:
        ids = np.concatenate([ids, part.astype(np.int64)])
        while len(ids) > context:
            yield Window(ids=ids[: context + 1], scored=context + 1 - known, item=item)
            ids, known = ids[stride:], context + 1 - stride
    if len(ids) > known:
        yield Window(ids=ids, scored=len(ids) - known, item=item)


class _Sums:
    """Losses summed over documents and positions as they come."""

    def __init__(self, context: int) -> None:
        # Bin i: from 2^i to 2^(i+1) - 1 tokens before the predicted one.
        self.context, bins = context, context.bit_length()
        self.nats_at, self.tokens_at = np.zeros(bins), np.zeros(bins, dtype=np.int64)
        self.bin_of = np.array([max(n, 1).bit_length() - 1 for n in range(context + 1)])
        self.nats_of, self.tokens_of = array("d"), array("q")
        self.tokens = 0

    def add(self, window: Window, losses: np.ndarray[Any, Any]) -> None:
        end = len(window.ids)
        if not np.isfinite(losses).all():
            at = int(np.flatnonzero(~np.isfinite(losses))[0])
            raise ValueError(
                f"the loss of a token of document {window.item} is {losses[at]}, "
                f"{end - window.scored + at} tokens into its window: the model's weights are not "
                "finite, or its precision is too low; try float32"
            )
        missing = window.item + 1 - len(self.nats_of)
        self.nats_of.extend([0.0] * missing)
        self.tokens_of.extend([0] * missing)
        self.nats_of[window.item] += float(losses.sum())
        self.tokens_of[window.item] += window.scored
        bins = self.bin_of[end - window.scored : end]
        self.nats_at += np.bincount(bins, weights=losses, minlength=len(self.nats_at))
        self.tokens_at += np.bincount(bins, minlength=len(self.nats_at))
        self.tokens += window.scored

    def positions(self) -> tuple[PositionLoss, ...]:
        """Return the loss by position."""
        return tuple(
            PositionLoss(
                first=2**i,
                last=min(2 ** (i + 1) - 1, self.context),
                tokens=int(tokens),
                loss=float(nats / tokens) if tokens else None,
            )
            for i, (nats, tokens) in enumerate(zip(self.nats_at, self.tokens_at, strict=True))
        )


def _result(sums: _Sums, documents: _Documents, context: int, stride: int) -> Perplexity:
    nats = math.fsum(sums.nats_of)
    missing = len(documents.bytes) - len(sums.nats_of)
    tokens_of = (*sums.tokens_of, *[0] * missing)
    # Of a document without a token to predict, no byte is predicted either.
    bytes_of = tuple(
        size if tokens else 0 for size, tokens in zip(documents.bytes, tokens_of, strict=True)
    )
    return Perplexity(
        loss=nats / sums.tokens,
        bits_per_byte=nats / math.log(2) / sum(bytes_of),
        tokens=sums.tokens,
        bytes=sum(bytes_of),
        context=context,
        stride=stride,
        predecessor=documents.predecessor,
        unknown_tokens=documents.unknown_tokens,
        positions=sums.positions(),
        documents=DocumentLosses(
            nats=(*sums.nats_of, *[0.0] * missing), tokens=tokens_of, bytes=bytes_of
        ),
    )
