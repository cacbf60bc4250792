"""Losses of tokens by any causal language model: perplexity and bits per byte of documents.

    document  s_0 s_1 ... s_N            s_0: the token that stands before a document
    window 0  reads s_0 .. s_(C-1), predicts s_1 .. s_C            C: context, S: stride
    window k  reads s_(kS) .. s_(kS+C-1), predicts s_((k-1)S+C+1) .. s_(kS+C)

Each token is predicted once, documents apart from each other, and from the second window on each
has at least C - S + 1 tokens before it. A document's first token is predicted from the token that
stood before documents in training; its end is not predicted.
Windows are padded on the right. Documents are tokenized one at a time, a long one in parts, so
memory does not grow with the text.

Letters: B windows of a batch, T tokens, V vocabulary.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from layermem_bench.text.sources import cut_document
from layermem_bench.text.tokenizers import Ids, batch_encoder

Predecessor = int | Literal["tokenizer"] | None
"""What stands before a text: an id, what the tokenizer says (BOS, or EOS without one), nothing."""
# Losses in nats, in float64.
Losses = np.ndarray[Any, Any]
# Logits of a batch: 128 MB in float32.
_LOGITS = 2**25
_MAX_ROWS = 64
# Batches that are sorted by length together, so that little is padded.
_BATCHES_SORTED = 8


class Window(NamedTuple):
    """Tokens that one forward reads, and how many of them it predicts."""

    ids: Ids
    """Ids [T + 1] in int64; the model reads all but the last."""
    scored: int
    """Number of tokens, at the end, whose losses are asked for."""
    document: int
    """Number of the document or sentence."""


class Perplexity:
    """Losses of a model on documents, in their order; one without a token to predict has zeros."""

    def __init__(self, context: int) -> None:
        self.nats: list[float] = []
        """Loss of each document, summed over its tokens."""
        self.counts: list[int] = []
        """Tokens of each document that were predicted, each once."""
        self.sizes: list[int] = []
        """Bytes (UTF-8) of the text of these tokens."""
        self.unknown_tokens = 0
        """Tokens that stand for text which the tokenizer has no tokens for."""
        self.digest = hashlib.sha256()
        """Of all ids: two models' tokens are the same where it is."""
        self.context = context
        # Nats and tokens; bin i: from 2^i to 2^(i+1) - 1 tokens before the predicted one.
        self._bins = np.zeros((2, context.bit_length()))
        self._bin_of = np.array([max(n, 1).bit_length() - 1 for n in range(context + 1)])

    @property
    def tokens(self) -> int:
        """Tokens that were predicted."""
        return sum(self.counts)

    @property
    def bytes(self) -> int:
        """Bytes of their text."""
        return sum(self.sizes)

    @property
    def loss(self) -> float:
        """Nats per token."""
        return math.fsum(self.nats) / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Loss in bits, per byte of text: comparable between tokenizers."""
        return math.fsum(self.nats) / math.log(2) / self.bytes

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite where it is too large for a number."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def positions(self) -> dict[tuple[int, int], tuple[int, float]]:
        """From and to how many tokens before the predicted one in its window: the number of such
        tokens, and their nats per token. Spans without any are left out."""
        return {
            (2**i, min(2 ** (i + 1) - 1, self.context)): (int(tokens), float(nats / tokens))
            for i, (nats, tokens) in enumerate(self._bins.T)
            if tokens
        }

    def add(self, window: Window, losses: Losses) -> None:
        """Add the losses of the tokens that a window predicts."""
        self.nats[window.document] += float(losses.sum())
        self.counts[window.document] += window.scored
        bins = self._bin_of[len(window.ids) - window.scored : len(window.ids)]
        np.add.at(self._bins[0], bins, losses)
        np.add.at(self._bins[1], bins, 1)


def perplexity(
    model: Any,
    tokenizer: Any,
    texts: Iterable[str],
    *,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    predecessor: Predecessor = "tokenizer",
    progress: Callable[[int], None] = lambda tokens: None,
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
    if isinstance(texts, str):
        raise TypeError("texts must be several documents, got one string; pass [text]")
    context, stride = choose_windows([model.config], context, stride)
    read, done, was_training = Perplexity(context), 0, model.training
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    own = eos if bos is None else bos
    first = own if predecessor == "tokenizer" else predecessor
    windows = _windows(read, tokenizer, texts, stride, first)
    model.eval()
    for window, losses in _batched_losses(model, windows, batch_size):
        read.add(window, losses)
        done += window.scored
        progress(done)
    model.train(was_training)
    if not done:
        raise ValueError(f"there is no token to predict in {len(read.nats)} documents")
    # Of a document without a token to predict, no byte is predicted either.
    read.sizes = [size if n else 0 for size, n in zip(read.sizes, read.counts, strict=True)]
    return read


def choose_windows(
    configs: Iterable[Any], context: int | None, stride: int | None, default: int | None = None
) -> tuple[int, int]:
    """Return context and stride that models of these configs can all be measured with.

    ``default``: context where None is asked for, unless a model reads less.
    """
    known = (getattr(each.get_text_config(), "max_position_embeddings", None) for each in configs)
    longest = [length for length in known if isinstance(length, int) and length > 0]
    if context is None:
        context = min([*longest, *([] if default is None else [default])], default=None)
    if context is None:
        raise ValueError("no model says how long its sequences may be; give a context")
    if not 1 <= context <= min(longest, default=context):
        raise ValueError(
            f"context must be from 1 to the {min(longest)} tokens that a model reads, got {context}"
        )
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride must be from 1 to the context, {context}, got {stride}")
    return context, stride


def rows_at_once(model: Any, length: int, batch_size: int | None = None) -> int:
    """Return how many sequences a batch has: as many as asked for, or as keep its logits small."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return batch_size or max(1, min(_MAX_ROWS, _LOGITS // (length * vocabulary)))


def _windows(
    read: Perplexity, tokenizer: Any, texts: Iterable[str], stride: int, first: int | None
) -> Iterator[Window]:
    """Yield the windows of texts; begin each one's sums, and count bytes and unknown tokens."""
    encode, unknown = batch_encoder(tokenizer), getattr(tokenizer, "unk_token_id", None)

    def parts_of(text: str) -> Iterator[Ids]:
        not_predicted = 0 if first is not None else 1
        for part in cut_document(text):
            (ids,) = encode([part])
            read.digest.update(ids.astype(np.int64).tobytes())
            read.unknown_tokens += 0 if unknown is None else int(np.count_nonzero(ids == unknown))
            left_out = tokenizer.decode(ids[:not_predicted].tolist())
            read.sizes[-1] += len(part.encode()) - len(left_out.encode())
            not_predicted = 0 if len(ids) else not_predicted
            yield ids

    for document, text in enumerate(texts):
        for sums in (read.nats, read.counts, read.sizes):
            sums.append(0)
        for ids, scored in cut_windows(parts_of(text), read.context, stride, predecessor=first):
            yield Window(ids, scored, document)


def cut_windows(
    parts: Iterable[Ids], context: int, stride: int, *, predecessor: int | None
) -> Iterator[tuple[Ids, int]]:
    """Yield the ids of each window of one document, whose ids come in parts, and how many of them
    it predicts."""
    ids = np.array([] if predecessor is None else [predecessor], dtype=np.int64)
    # Tokens of ``ids`` before the first one that is still to be predicted.
    known = 1
    for part in parts:
        ids = np.concatenate([ids, part.astype(np.int64)])
        while len(ids) > context:
            yield ids[: context + 1], context + 1 - known
            ids, known = ids[stride:], context + 1 - stride
    if len(ids) > known:
        yield ids, len(ids) - known


def _batched_losses(
    model: Any, windows: Iterator[Window], batch_size: int | None
) -> Iterator[tuple[Window, Losses]]:
    """Yield each window, in some order, with the losses [scored] (nats) of its last tokens. They
    are read as they are needed; those of about one length share a batch."""
    while group := list(itertools.islice(windows, (batch_size or _MAX_ROWS) * _BATCHES_SORTED)):
        group.sort(key=lambda window: len(window.ids))
        while group:
            rows = rows_at_once(model, len(group[-1].ids), batch_size)
            group, batch = group[:-rows], group[-rows:]
            yield from zip(batch, _losses(model, batch), strict=True)


def pad_right(sequences: Iterable[Sequence[int] | Ids]) -> Tensor:
    """Return the ids [B, T] of sequences: a causal model needs no mask of what follows them."""
    return pad_sequence([torch.as_tensor(ids, dtype=torch.long) for ids in sequences], True)


@torch.inference_mode()
def _losses(model: Any, batch: Sequence[Window]) -> Iterator[Losses]:
    ids = pad_right(window.ids[:-1] for window in batch).to(model.device)
    for window, logits in zip(batch, model(input_ids=ids, use_cache=False).logits, strict=True):
        end = len(window.ids) - 1
        targets = torch.from_numpy(window.ids[-window.scored :]).to(model.device)
        # In float32, whatever the model computes in: a softmax over V needs it.
        scored = logits[end - window.scored : end].float()
        losses = functional.cross_entropy(scored, targets, reduction="none").double().cpu().numpy()
        if not np.isfinite(losses).all():
            raise ValueError(
                f"a loss of text {window.document} is not finite: the model's weights are not, or "
                "its precision is too low; try float32"
            )
        yield losses
