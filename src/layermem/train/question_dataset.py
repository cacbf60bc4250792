"""Windows of questions as training sequences, and what a model's spans of tokens say in words.

It does not know: files, models, the trainer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem.data.question_records import QuestionRecord
from layermem.train.host_inputs import padding_of
from layermem.train.question_windows import END, NULL, OUTSIDE, START, Window, WindowEncoder


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


class QuestionDataset(Dataset[dict[str, Tensor]]):
    """Windows: ``input_ids`` [T] and ``labels`` [T], each a sum of START, END and NULL."""

    def __init__(self, records: Sequence[QuestionRecord], encoder: WindowEncoder) -> None:
        self.records, self.has_segments = records, encoder.has_segments
        self.padding = padding_of(encoder.tokenizer)
        self.windows: list[Window] = []
        self.record_of: list[int] = []
        """Number of each window's record."""
        for number, record in enumerate(records):
            for window in encoder.encode(record):
                self.windows.append(window)
                self.record_of.append(number)
        self.length = sum(len(window.input_ids) for window in self.windows) / len(self.windows)

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Ids and labels of each window, by which data is recognised."""
        return [(each.input_ids.tolist(), each.labels.tolist()) for each in self.windows]

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
        """Return the answer to each question, of the best span of each window.

        ``best``: score, first token, last token and null score of each window, in order.
        """
        if len(best) != len(self.windows):
            raise ValueError(f"there are {len(self.windows)} windows, got spans of {len(best)}")
        spans: list[list[tuple[float, float, int, int, Window]]] = [[] for _ in self.records]
        for number, window, (score, first, last, null) in zip(
            self.record_of, self.windows, best, strict=True
        ):
            spans[number].append((score, null, int(first), int(last), window))
        return [
            _choose(record, of_record, unanswerable=unanswerable)
            for record, of_record in zip(self.records, spans, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        names = ("input_ids", "token_type_ids", "labels")
        window = self.windows[index]
        return {
            name: torch.from_numpy(getattr(window, name)).long()
            for name in names
            if name != "token_type_ids" or self.has_segments
        }

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad on the right to the longest window, with a mask."""
        padding = {"input_ids": self.padding, "token_type_ids": 0, "labels": OUTSIDE}
        batch = {
            name: pad_sequence([item[name] for item in items], True, value)
            for name, value in padding.items()
            if name in items[0]
        }
        ones = [torch.ones_like(item["input_ids"]) for item in items]
        return {**batch, "attention_mask": pad_sequence(ones, True, 0)}


def _gold_tokens(window: Window) -> int:
    """Return how many tokens the gold answer has in a window; 0: it is not in there."""
    begins, ends = ((window.labels > 0) & (window.labels & flag > 0) for flag in (START, END))
    if (begins & (window.labels & NULL > 0)).any():
        return 0
    return int(ends.argmax() - begins.argmax()) + 1


def _choose(
    record: QuestionRecord,
    spans: Sequence[tuple[float, float, int, int, Window]],
    *,
    unanswerable: bool,
) -> GivenAnswer:
    """Return the best span of all windows, or none where the null score is higher."""
    null = min(null for _, null, *_ in spans)
    score, _, first, last, window = max(spans, key=lambda span: span[0])
    if unanswerable and null > score:
        return GivenAnswer(text="", start=None, score=score, null_score=null)
    begin = int(window.spans[first - window.first, 0])
    text = record.context[begin : window.spans[last - window.first, 1]]
    shift = len(text) - len(text.lstrip())
    return GivenAnswer(text=text.strip(), start=begin + shift, score=score, null_score=null)
