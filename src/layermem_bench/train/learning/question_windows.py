"""Questions as sequences of tokens, their losses, and the spans of tokens that answer them.

    [CLS] question [SEP] context [SEP]                        a tokenizer that joins two texts
    question <|endoftext|> context <|endoftext|>              one that does not (GPT-2)

A context that is too long is read in windows, of which two in a row share ``stride`` tokens. In a
window without the whole answer, the answer is the null token: an encoder's [CLS], or the last token
of a decoder, which has read nothing at its first. An end token is put there where the tokenizer
puts none; a tokenizer's own windows (``return_overflowing_tokens``) have no room for it.

Letters: B windows, T tokens.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING

from layermem_bench.data.question_records import QuestionRecord
from layermem_bench.train.learning.record_inputs import PairEncoder, has_segments
from layermem_bench.train.sequences import IGNORED, PaddedSequences, padding_of

Numbers: TypeAlias = np.ndarray[Any, Any]
OUTSIDE, START, END, NULL = IGNORED, 1, 2, 4
"""Labels of a token: it can be no answer; the gold answer begins or ends here; the null token.
Those of one token are added; 0 is a token of the context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One sequence of a question."""

    input_ids: Numbers
    token_type_ids: Numbers
    labels: Numbers
    spans: Numbers
    """First character of each token of the context, and the one after its last [N, 2]."""
    first: int
    """Where the context begins in the sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenAnswer:
    """What a model answers a question."""

    text: str
    """A piece of the context; empty: no answer."""
    start: int | None
    """Number of characters before it; None: no answer."""
    score: float
    """Sum of the logits of the best piece's first and last token, over all windows."""
    null_score: float
    """Smallest sum of both logits of a window's null token."""


# Token ids and segments of a question with its whole context, the characters of each token of the
# context, and where the context begins.
_Whole: TypeAlias = tuple[list[int], list[int], list[tuple[int, int]], int]


@final
class WindowEncoder(PairEncoder):
    """Turns questions into windows."""

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        stride: int,
        *,
        has_segments: bool,
        reads_both_ways: bool,
    ) -> None:
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not say which characters a token is of, so that "
                "no answer can be found in a text: a fast tokenizer is needed (tokenizer.json)"
            )
        super().__init__(tokenizer, max_length, has_segments=has_segments)
        self.stride = stride
        cls = tokenizer.cls_token_id
        joins_after_cls = cls is not None and cls in tokenizer("a", "a")["input_ids"]
        self.has_null_first = reads_both_ways and joins_after_cls

    def encode(self, record: QuestionRecord) -> Iterator[Window]:
        """Yield the windows of a question, from the beginning of its context on."""
        whole = self._joined(record) if self.joins_pairs else self._side_by_side(record)
        ids, segments, spans, first = whole
        _check_covered(record, spans)
        answer, count = _tokens_of_answer(record, spans), len(spans)
        labels = [OUTSIDE] * len(ids)
        labels[first : first + count] = [0 if b > a else OUTSIDE for a, b in spans]
        labels[ids.index(self.tokenizer.cls_token_id) if self.has_null_first else -1] = NULL
        room = self._room(record, len(ids) - count, count)
        # Where the context fits as a whole, it is the only window, whatever two would share.
        for begin in range(0, max(1, count - self.stride), max(1, room - self.stride)):
            end = min(begin + room, count)
            left_out = [*range(first, first + begin), *range(first + end, first + count)]
            window_labels = np.delete(np.array(labels, dtype=np.int8), left_out)
            places = np.flatnonzero(window_labels == NULL).repeat(2)
            if answer and begin <= answer[0] and answer[1] < end:
                places = first - begin + np.array(answer)
            window_labels[places[0]] += START
            window_labels[places[1]] += END
            yield Window(
                input_ids=np.delete(np.array(ids, dtype=np.int32), left_out),
                token_type_ids=np.delete(np.array(segments, dtype=np.int8), left_out),
                labels=window_labels,
                spans=np.array(spans[begin:end], dtype=np.int32),
                first=first,
            )

    def _room(self, record: QuestionRecord, others: int, count: int) -> int:
        """Return how many of ``count`` tokens of the context a window has beside ``others``."""
        room = self.max_length - others
        if room < 1 or (room <= self.stride and room < count):
            raise ValueError(
                f"{record.where}: beside {others} tokens of the question and special tokens "
                f"records.max_length={self.max_length} has room for {max(room, 0)} of the context, "
                f"and windows must get on by more than they share, records.stride={self.stride}: "
                "raise --max-length or lower --stride"
            )
        return room

    def _joined(self, record: QuestionRecord) -> _Whole:
        encoded = self.call(record.question, record.context, return_offsets_mapping=True)
        ids, segments = list(encoded["input_ids"]), list(encoded["token_type_ids"])
        of_context = [i for i, text in enumerate(encoded.sequence_ids()) if text == 1]
        begin, end = (of_context[0], of_context[-1] + 1) if of_context else (len(ids), len(ids))
        if not self.has_null_first and end == len(ids):
            ids, segments = [*ids, self._end()], [*segments, segments[-1]]
        return ids, segments, encoded["offset_mapping"][begin:end], begin

    def _side_by_side(self, record: QuestionRecord) -> _Whole:
        question = self.call(record.question, special=False)
        context = self.call(record.context, special=False, return_offsets_mapping=True)
        before = [*question["input_ids"], self._end()]
        ids = [*before, *context["input_ids"], self._end()]
        return ids, [0] * len(ids), context["offset_mapping"], len(before)

    def _end(self) -> int:
        return self.end_token(
            "has no end token to put after a context, where a decoder says that there is no answer"
        )


def window_encoder(config: Any, tokenizer: Any, max_length: int, stride: int) -> WindowEncoder:
    """Return what encodes questions for a model of this config."""
    # A token sees those after it in models that fill in masked tokens.
    both_ways = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    return WindowEncoder(
        tokenizer,
        max_length,
        stride,
        has_segments=has_segments(config),
        reads_both_ways=both_ways and not getattr(config, "is_decoder", False),
    )


def _check_covered(record: QuestionRecord, spans: Sequence[tuple[int, int]]) -> None:
    """Raise if tokens, in the order of the text, are of less than half of its characters."""
    total = len("".join(record.context.split()))
    covered = end = 0
    for a, b in spans:
        covered += max(0, b - max(a, end))
        end = max(end, b)
    if not spans or 2 * covered < total:
        raise ValueError(
            f"{record.where}: the tokenizer has tokens for {covered} of {total} "
            "characters of the context: it leaves words out, and is not one of such texts; "
            "save the tokenizer that the model was trained with"
        )


def _tokens_of_answer(
    record: QuestionRecord, spans: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the first and the last token of the first gold answer; None: there is no answer."""
    if not record.answers:
        return None
    answer = record.answers[0]
    begin, end = answer.start, answer.start + len(answer.text)
    inside = [i for i, (a, b) in enumerate(spans) if a < b and a < end and b > begin]
    if not inside:
        raise ValueError(
            f"{record.where}: the tokenizer makes no token of the answer {answer.text!r:.60}"
        )
    return inside[0], inside[-1]


@final
class QuestionDataset(PaddedSequences):
    """Windows: ``input_ids`` [T] and ``labels`` [T], each a sum of START, END and NULL."""

    def __init__(self, records: Sequence[QuestionRecord], encoder: WindowEncoder) -> None:
        self.records, self.has_segments = records, encoder.has_segments
        self.windows: list[Window] = []
        self.record_of: list[int] = []
        """Number of each window's record."""
        for number, record in enumerate(records):
            for window in encoder.encode(record):
                self.windows.append(window)
                self.record_of.append(number)
        names = ["input_ids", *["token_type_ids"] * self.has_segments, "labels"]
        items = [{name: getattr(each, name) for name in names} for each in self.windows]
        documents = (record.split_key for record in records)
        super().__init__(items, padding_of(encoder.tokenizer), documents=documents)

    def out_of_reach(self, longest_answer: int) -> int:
        """Count records whose first gold answer is in no window whole, or is too long to give."""
        reached = {
            number
            for number, window in zip(self.record_of, self.windows, strict=True)
            if (tokens := _gold_tokens(window)) and tokens <= longest_answer
        }
        asked = {number for number, record in enumerate(self.records) if record.answers}
        return len(asked - reached)

    def given(self, best: Sequence[Sequence[float]], *, unanswerable: bool) -> list[GivenAnswer]:
        """Return the answer to each question, by what ``best_spans`` gives for each window."""
        spans: dict[int, list[tuple[Sequence[float], Window]]] = defaultdict(list)
        for number, span, window in zip(self.record_of, best, self.windows, strict=True):
            spans[number].append((span, window))
        return [
            _choose(record, spans[number], unanswerable=unanswerable)
            for number, record in enumerate(self.records)
        ]


def _gold_tokens(window: Window) -> int:
    """Return how many tokens the gold answer has in a window; 0: it is not in there."""
    begins, ends = ((window.labels > 0) & (window.labels & flag > 0) for flag in (START, END))
    if (begins & (window.labels & NULL > 0)).any():
        return 0
    return int(ends.argmax() - begins.argmax()) + 1


def _choose(
    record: QuestionRecord, spans: Sequence[tuple[Sequence[float], Window]], *, unanswerable: bool
) -> GivenAnswer:
    """Return the best span of all windows, or none where the null score is higher."""
    null = min(span[3] for span, _ in spans)
    (score, first, last, _), window = max(spans, key=lambda pair: pair[0][0])
    if unanswerable and null > score:
        return GivenAnswer(text="", start=None, score=score, null_score=null)
    begin = int(window.spans[int(first) - window.first, 0])
    text = record.context[begin : window.spans[int(last) - window.first, 1]]
    shift = len(text) - len(text.lstrip())
    return GivenAnswer(text=text.strip(), start=begin + shift, score=score, null_score=null)


def window_losses(starts: Tensor, ends: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of both cross-entropies of each window [B] of logits [B, T], in float32."""
    first, last = (
        nn.functional.cross_entropy(
            _candidates(logits, labels), _has(labels, flag).int().argmax(1), reduction="none"
        )
        for logits, flag in ((starts, START), (ends, END))
    )
    return (first + last) / 2


def best_spans(starts: Tensor, ends: Tensor, labels: Tensor, longest: int) -> Tensor:
    """Return score, first token, last token and null score of each window's best span [B, 4]."""
    starts, ends = _candidates(starts, labels), _candidates(ends, labels)
    null = _has(labels, NULL)
    null_score = (starts + ends).masked_fill(~null, 0).sum(1)
    starts, ends = (logits.masked_fill(null, -torch.inf) for logits in (starts, ends))
    tokens = torch.arange(labels.shape[1], device=labels.device)
    length = tokens[None] - tokens[:, None]
    scores = starts[:, :, None] + ends[:, None]
    scores = scores.masked_fill((length < 0) | (length >= longest), -torch.inf)
    best, index = scores.flatten(1).max(1)
    first, last = index // labels.shape[1], index % labels.shape[1]
    return torch.stack([best, first.to(best), last.to(best), null_score], dim=1)


def _candidates(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits in float32, minus infinity where a token can be no answer."""
    return logits.float().masked_fill(labels == OUTSIDE, -torch.inf)


def _has(labels: Tensor, flag: int) -> Tensor:
    return (labels != OUTSIDE) & (labels & flag != 0)
