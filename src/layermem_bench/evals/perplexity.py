"""Losses of tokens by any causal language model: perplexity and bits per byte of documents.

    document  s_0 s_1 ... s_N            s_0: the token that stands before a document
    window 0  reads s_0 .. s_(C-1), predicts s_1 .. s_C            C: context, S: stride
    window k  reads s_(kS) .. s_(kS+C-1), predicts s_((k-1)S+C+1) .. s_(kS+C)

Each token is predicted once, documents apart from each other, and from the second window on each
has at least C - S + 1 tokens before it. A document's first token is predicted from the token that
stood before documents in training; its end is not predicted.
Windows are padded on the right, where a causal model sees nothing of it. Documents are tokenized
one at a time, a long one in parts, so memory does not grow with the text.

Letters: B windows of a batch, T tokens, V vocabulary.
"""

import hashlib
import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from layermem_bench.data.sources import cut_document
from layermem_bench.data.tokenizers import Ids, batch_encoder, bytes_of_first_token
from layermem_bench.evals import in_eval_mode

Predecessor = int | Literal["tokenizer"] | None
"""What stands before a text: an id, what the tokenizer says, or nothing."""
# Losses in nats, in float64.
Losses = np.ndarray[Any, Any]
# Logits of a batch: 128 MB in float32.
_LOGITS = 2**25
_MAX_ROWS = 64
# Tokens whose logits are in float32 at once.
_TOKENS_AT_ONCE = 512
# Batches that are sorted by length together, so that little is padded.
_BATCHES_SORTED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Tokens that one forward reads, and how many of them it predicts."""

    ids: Ids
    """Ids [T + 1] in int64; the model reads all but the last."""
    scored: int
    """Number of tokens, at the end, whose losses are asked for."""
    item: int
    """Number of the document or sentence."""


@dataclass(frozen=True, kw_only=True)
class PositionLoss:
    """Loss of the tokens that have from ``first`` to ``last`` tokens before them in a window."""

    first: int
    last: int
    tokens: int
    loss: float | None
    """Nats per token; None: there are no such tokens."""


@dataclass(frozen=True, kw_only=True)
class DocumentLosses:
    """Losses of the documents, in their order; one without a token to predict has zeros."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]
    """Tokens of each that were predicted."""
    bytes: tuple[int, ...]
    """Bytes (UTF-8) of the text of these tokens."""


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Losses of a model on documents."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """Loss in bits, per byte of text: comparable between tokenizers."""
    tokens: int
    """Tokens that were predicted, each once."""
    bytes: int
    """Bytes (UTF-8) of their text."""
    predecessor: int | None
    """Id that stands before each document; None: there is none, and the first token of each
    document is not predicted."""
    unknown_tokens: int
    """Tokens among them that stand for text which the tokenizer has no tokens for."""
    changed_documents: int
    """Documents that the tokens do not spell: the tokenizer drops or changes characters, such as
    repeated spaces or capitals, so that fewer bits are needed for the same bytes."""
    positions: tuple[PositionLoss, ...]
    """Loss by the number of tokens before the predicted one in its window."""
    ids_digest: str
    """Digest of all ids: two models' tokens are the same where it is."""
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
    predecessor: Predecessor = "tokenizer",
    progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """Return the loss of a causal language model on texts, each of which is a document.

    ``context``: most tokens that one forward reads; None: the model's longest sequence.
    ``stride``: tokens by which windows of a long document are apart; None: half of the context.
    ``batch_size``: windows of a forward; None: as many as 128 MB of logits allow, at most 64.
    ``predecessor``: id that stands before each document; "tokenizer": the tokenizer's BOS, or EOS
    where it has no BOS; None: nothing, and the first token is not predicted. Blocks of our runs on
    text have EOS there, and nothing where documents are kept apart (``data.isolate_documents``).
    ``progress`` is called with the number of tokens predicted so far. ``texts`` may be a generator.
    """
    check_tokenizer(tokenizer)
    if isinstance(texts, str):
        raise TypeError("texts must be several documents, got one string; pass [text]")
    longest = longest_context(model.config)
    context, stride = check_context(context, stride, longest, type(model).__name__)
    documents = _Documents(model, tokenizer, context, predecessor)
    windows = documents.windows(texts, stride)
    for window, losses in batched_losses(model, windows, rows_at_once(model, context, batch_size)):
        documents.add(window, losses)
        if progress is not None:
            progress(documents.predicted)
    if not documents.predicted:
        raise ValueError(f"there is no token to predict in {len(documents.bytes)} documents")
    return documents.result()


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


def first_context(tokenizer: Any, predecessor: Predecessor = "tokenizer") -> int | None:
    """Return the id that stands before a text: the given one, or the tokenizer's BOS, else EOS;
    None: nothing stands there."""
    if predecessor != "tokenizer":
        return predecessor
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return bos if bos is not None else eos


def check_tokenizer(tokenizer: Any) -> None:
    if tokenizer is None or not callable(tokenizer):
        raise ValueError(
            f"a tokenizer is needed to read text, got {tokenizer!r}; pass the one that the model "
            "was trained with"
        )


def _vocabulary_size(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def check_ids(ids: Ids, model: Any) -> None:
    """Raise if the model has no embedding for an id."""
    vocabulary = _vocabulary_size(model)
    if len(ids) and int(ids.max()) >= vocabulary:
        raise ValueError(
            f"the tokenizer yields id {int(ids.max())}, and the model's vocabulary has {vocabulary}"
            " ids: they do not belong together; give the tokenizer the model was trained with"
        )


def rows_at_once(model: Any, context: int, batch_size: int | None = None) -> int:
    """Return how many windows of ``context`` tokens a batch has: as many as asked for, or as keep
    its logits small."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return batch_size or max(1, min(_MAX_ROWS, _LOGITS // (context * _vocabulary_size(model))))


class _Documents:
    """Documents as windows of tokens, and their losses summed by document and by position."""

    def __init__(self, model: Any, tokenizer: Any, context: int, predecessor: Predecessor) -> None:
        self.model, self.tokenizer, self.context = model, tokenizer, context
        self.encode = batch_encoder(tokenizer)
        self.predecessor = first_context(tokenizer, predecessor)
        self.ids_digest = hashlib.sha256()
        self.unknown = getattr(tokenizer, "unk_token_id", None)
        self.nats, self.tokens, self.bytes = array("d"), array("q"), array("q")
        self.unknown_tokens = self.changed_documents = self.predicted = 0
        # Nats and tokens; bin i: from 2^i to 2^(i+1) - 1 tokens before the predicted one.
        self.by_position = np.zeros((2, context.bit_length()))
        self.bin_of = np.array([max(n, 1).bit_length() - 1 for n in range(context + 1)])

    def windows(self, texts: Iterable[str], stride: int) -> Iterator[Window]:
        for item, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {item} must be a string, got {type(text).__name__}")
            for sums in (self.nats, self.tokens, self.bytes):
                sums.append(0)
            parts, first = self._parts(text), self.predecessor
            yield from cut_windows(parts, self.context, stride, predecessor=first, item=item)

    def _parts(self, text: str) -> Iterator[Ids]:
        """Yield the ids of a document, part by part."""
        first = is_spelt = True
        for part in cut_document(text):
            (ids,) = self.encode([part])
            is_spelt = is_spelt and self._spells(ids, part)
            if not len(ids):
                continue
            check_ids(ids, self.model)
            self.ids_digest.update(ids.astype(np.int64).tobytes())
            self.bytes[-1] += len(part.encode())
            if self.unknown is not None:
                self.unknown_tokens += int(np.count_nonzero(ids == self.unknown))
            if first and self.predecessor is None:
                self.bytes[-1] -= bytes_of_first_token(self.tokenizer, part, int(ids[0]))
            first = False
            yield ids
        self.changed_documents += not is_spelt

    def _spells(self, ids: Ids, part: str) -> bool:
        """Whether ids are decoded to the text, but for a space that tokenizers put before it."""
        read = self.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False)
        return bool(read.removeprefix(" ") == part.removeprefix(" "))

    def add(self, window: Window, losses: Losses) -> None:
        end = len(window.ids)
        if not np.isfinite(losses).all():
            at = int(np.flatnonzero(~np.isfinite(losses))[0])
            raise ValueError(
                f"the loss of a token of document {window.item} is {losses[at]}, "
                f"{end - window.scored + at} tokens into its window: the model's weights are not "
                "finite, or its precision is too low; try float32"
            )
        self.nats[window.item] += float(losses.sum())
        self.tokens[window.item] += window.scored
        self.predicted += window.scored
        bins, (nats, tokens) = self.bin_of[end - window.scored : end], self.by_position
        np.add.at(nats, bins, losses)
        np.add.at(tokens, bins, 1)

    def result(self) -> Perplexity:
        # Of a document without a token to predict, no byte is predicted either.
        sizes = tuple(size if n else 0 for size, n in zip(self.bytes, self.tokens, strict=True))
        nats = math.fsum(self.nats)
        positions = (
            PositionLoss(
                first=2**i,
                last=min(2 ** (i + 1) - 1, self.context),
                tokens=int(tokens),
                loss=float(of_bin / tokens) if tokens else None,
            )
            for i, (of_bin, tokens) in enumerate(self.by_position.T)
        )
        return Perplexity(
            loss=nats / self.predicted,
            bits_per_byte=nats / math.log(2) / sum(sizes),
            tokens=self.predicted,
            bytes=sum(sizes),
            predecessor=self.predecessor,
            unknown_tokens=self.unknown_tokens,
            changed_documents=self.changed_documents,
            positions=tuple(positions),
            ids_digest=self.ids_digest.hexdigest(),
            documents=DocumentLosses(nats=tuple(self.nats), tokens=tuple(self.tokens), bytes=sizes),
        )


def cut_windows(
    parts: Iterable[Ids], context: int, stride: int, *, predecessor: int | None, item: int = 0
) -> Iterator[Window]:
    """Yield the windows of one document, whose ids come in parts."""
    ids = np.array([] if predecessor is None else [predecessor], dtype=np.int64)
    # Tokens of ``ids`` before the first one that is still to be predicted.
    known = 1
    for part in parts:
        ids = np.concatenate([ids, part.astype(np.int64)])
        while len(ids) > context:
            yield Window(ids=ids[: context + 1], scored=context + 1 - known, item=item)
            ids, known = ids[stride:], context + 1 - stride
    if len(ids) > known:
        yield Window(ids=ids, scored=len(ids) - known, item=item)


def batched_losses(
    model: Any, windows: Iterable[Window], rows: int
) -> Iterator[tuple[Window, Losses]]:
    """Yield each window, in some order, with the losses [scored] (nats) of its last tokens.

    Windows are read as they are needed; those of about one length share a batch.
    """
    windows = iter(windows)
    with in_eval_mode(model):
        while group := list(itertools.islice(windows, rows * _BATCHES_SORTED)):
            group.sort(key=lambda window: len(window.ids))
            for start in range(0, len(group), rows):
                batch = group[start : start + rows]
                yield from zip(batch, _losses(model, batch), strict=True)


def pad_right(sequences: Iterable[Ids]) -> tuple[Tensor, Tensor]:
    """Return ids and mask [B, T] of sequences in int64."""
    rows = list(map(torch.from_numpy, sequences))
    return pad_sequence(rows, True), pad_sequence(list(map(torch.ones_like, rows)), True)


@torch.inference_mode()
def _losses(model: Any, batch: Sequence[Window]) -> list[Losses]:
    ids, mask = pad_right(window.ids[:-1] for window in batch)
    output = model(
        input_ids=ids.to(model.device),
        attention_mask=None if bool(mask.all()) else mask.to(model.device),
        use_cache=False,
    )
    losses = []
    for window, logits in zip(batch, output.logits, strict=True):
        end = len(window.ids) - 1
        scored = logits[end - window.scored : end].split(_TOKENS_AT_ONCE)
        targets = torch.from_numpy(window.ids[-window.scored :]).to(logits.device)
        # In float32, whatever the model computes in: a softmax over V needs it.
        parts = [
            functional.cross_entropy(some.float(), ids, reduction="none").cpu()
            for some, ids in zip(scored, targets.split(_TOKENS_AT_ONCE), strict=True)
        ]
        losses.append(torch.cat(parts).numpy().astype(np.float64))
    return losses
