"""Questions as sequences of tokens: the question, then a window of its context.

    [CLS] question [SEP] context [SEP]                        a tokenizer that joins two texts
    question <|endoftext|> context <|endoftext|>              one that does not (GPT-2)

A context that is too long is read in windows, of which two in a row share ``stride`` tokens. In a
window that does not hold the whole answer, the answer is the null token, as it is where there is no
answer at all. An encoder has [CLS] as that token; a decoder, which has read nothing at its first
token, the last one, so that an end token is put there where the tokenizer puts none.

It does not know: files, models, the trainer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from layermem.data.question_records import QuestionRecord
from layermem.train.host_inputs import joins_pairs

Numbers: TypeAlias = np.ndarray[Any, Any]
OUTSIDE, START, END, NULL = -100, 1, 2, 4
"""Labels of a token: it can be no answer; the gold answer begins or ends here; the null token.
Those of one token are added; 0 is a token of the context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One sequence of a question."""

    input_ids: Numbers
    token_type_ids: Numbers
    labels: Numbers
    spans: Numbers
    """Of each token of the context [N, 2]: its first character, and the one after its last."""
    first: int
    """Where the context begins in the sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """A question and its whole context in tokens, and what is around the context."""

    before: list[int]
    context: list[int]
    after: list[int]
    spans: list[tuple[int, int]]
    segments: tuple[list[int], int, list[int]]
    """Segments before the context, of the context, and after it."""


class WindowEncoder:
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
        self.tokenizer, self.max_length, self.stride = tokenizer, max_length, stride
        self.joins_pairs = joins_pairs(tokenizer)
        self.has_segments = has_segments and self.joins_pairs
        self.has_null_first = reads_both_ways and self._joins_after_cls()

    @property
    def separator(self) -> str | None:
        """Return the token that is put between the texts; None: the tokenizer sees to it."""
        return None if self.joins_pairs else self.tokenizer.eos_token

    def encode(self, record: QuestionRecord) -> Iterator[Window]:
        """Yield the windows of a question, from the beginning of its context on."""
        frame = self._framed(record)
        answer = _tokens_of_answer(record, frame.spans)
        count = len(frame.context)
        room = self._room(record, frame)
        begin = 0
        while True:
            end = min(begin + room, count)
            yield self._window(frame, begin, end, answer)
            if end == count:
                return
            begin += room - self.stride

    def _room(self, record: QuestionRecord, frame: _Frame) -> int:
        """Return how many tokens of the context a window has."""
        others = len(frame.before) + len(frame.after)
        room = self.max_length - others
        if room < 1 or (room <= self.stride and room < len(frame.context)):
            raise ValueError(
                f"{record.where}: beside {others} tokens of the question and special tokens "
                f"records.max_length={self.max_length} has room for {max(room, 0)} of the context, "
                f"and windows must get on by more than they share, records.stride={self.stride}: "
                "raise --max-length or lower --stride"
            )
        return room

    def _window(
        self, frame: _Frame, begin: int, end: int, answer: tuple[int, int] | None
    ) -> Window:
        spans = frame.spans[begin:end]
        context = [0 if b > a else OUTSIDE for a, b in spans]
        ids = [*frame.before, *frame.context[begin:end], *frame.after]
        labels = [*[OUTSIDE] * len(frame.before), *context, *[OUTSIDE] * len(frame.after)]
        null = self._null(ids)
        labels[null] = NULL
        if answer and begin <= answer[0] and answer[1] < end:
            shift = len(frame.before) - begin
            labels[answer[0] + shift] += START
            labels[answer[1] + shift] += END
        else:
            labels[null] += START + END
        first, of_context, last = frame.segments
        segments = [*first, *[of_context] * len(spans), *last]
        return Window(
            input_ids=np.array(ids, dtype=np.int32),
            token_type_ids=np.array(segments, dtype=np.int8),
            labels=np.array(labels, dtype=np.int8),
            spans=np.array(spans, dtype=np.int32),
            first=len(frame.before),
        )

    def _null(self, ids: list[int]) -> int:
        return ids.index(self.tokenizer.cls_token_id) if self.has_null_first else len(ids) - 1

    def _joins_after_cls(self) -> bool:
        cls = self.tokenizer.cls_token_id
        return cls is not None and cls in self.tokenizer("a", "a")["input_ids"]

    def _framed(self, record: QuestionRecord) -> _Frame:
        frame = self._joined(record) if self.joins_pairs else self._side_by_side(record)
        total = len("".join(record.context.split()))
        if not frame.spans or 2 * _covered(frame.spans) < total:
            raise ValueError(
                f"{record.where}: the tokenizer has tokens for {_covered(frame.spans)} of {total} "
                "characters of the context: it leaves words out, and is not one of such texts; "
                "save the tokenizer that the model was trained with"
            )
        return frame

    def _joined(self, record: QuestionRecord) -> _Frame:
        encoded = self._call(record.question, record.context)
        ids, types = list(encoded["input_ids"]), list(encoded["token_type_ids"])
        texts = encoded.sequence_ids()
        begin = texts.index(1) if 1 in texts else len(ids)
        end = len(ids) - texts[::-1].index(1) if 1 in texts else len(ids)
        after, segments_after = ids[end:], types[end:]
        if not (self.has_null_first or after):
            after, segments_after = [self._end()], [types[-1]]
        return _Frame(
            before=ids[:begin],
            context=ids[begin:end],
            after=after,
            spans=encoded["offset_mapping"][begin:end],
            segments=(types[:begin], types[begin] if 1 in texts else 0, segments_after),
        )

    def _side_by_side(self, record: QuestionRecord) -> _Frame:
        question, context = (
            self._call(text, special=False) for text in (record.question, record.context)
        )
        before = [*question["input_ids"], self._end()]
        return _Frame(
            before=before,
            context=list(context["input_ids"]),
            after=[self._end()],
            spans=context["offset_mapping"],
            segments=([0] * len(before), 0, [0]),
        )

    def _end(self) -> int:
        end = self.tokenizer.eos_token_id
        if end is None:
            raise ValueError(
                "the tokenizer has no end token to put after a context, where a decoder says that "
                "there is no answer; give it one: tokenizer.eos_token = ..., "
                "tokenizer.save_pretrained(...)"
            )
        return int(end)

    def _call(self, *texts: str, special: bool = True) -> Any:
        # What looks like a special token in a text is encoded like other text.
        return self.tokenizer(
            *texts,
            add_special_tokens=special,
            split_special_tokens=True,
            return_token_type_ids=True,
            return_offsets_mapping=True,
            verbose=False,
        )


def _covered(spans: list[tuple[int, int]]) -> int:
    """Return how many characters tokens are of, in the order of the text."""
    covered = end = 0
    for a, b in spans:
        covered += max(0, b - max(a, end))
        end = max(end, b)
    return covered


def _tokens_of_answer(
    record: QuestionRecord, spans: list[tuple[int, int]]
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
