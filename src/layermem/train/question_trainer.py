"""The trainer of a run on questions: the first and the last token of an answer are two classes.

Both are among the tokens of a window's context and its null token; the logits of others do not
count. The loss of a window is the mean of the two cross-entropies. What is given as an answer is
the piece of at most ``longest_answer`` tokens with the largest sum of both logits, in any window.

Letters: B windows, T tokens.
It does not know: how records are read, the run folder.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from layermem.tasks.answer_scores import exact_match, f1
from layermem.train.question_dataset import GivenAnswer, QuestionDataset
from layermem.train.question_windows import END, NULL, OUTSIDE, START
from layermem.train.record_trainer import RecordTrainer, forward_all


@final
class QuestionTrainer(RecordTrainer):
    """The training loop of a run on questions."""

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return window_losses(outputs.start_logits, outputs.end_logits, labels)

    def judge(self, outputs: Any, labels: Tensor) -> Tensor:
        longest = self.run.records.longest_answer
        return best_spans(outputs.start_logits, outputs.end_logits, labels, longest)

    def metrics(self, judged: Tensor) -> dict[str, float]:
        data: Any = self.eval_dataset
        given = data.given(judged.tolist(), unanswerable=self.run.records.unanswerable)
        pairs = [(each.text, record.gold) for each, record in zip(given, data.records, strict=True)]
        return {
            "val_accuracy": sum(exact_match(*pair) for pair in pairs) / len(pairs),
            "val_f1": sum(f1(*pair) for pair in pairs) / len(pairs),
        }


def window_losses(starts: Tensor, ends: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of both cross-entropies of each window [B] of logits [B, T], in float32."""
    both = (
        nn.functional.cross_entropy(
            _candidates(logits, labels), _has(labels, flag).int().argmax(1), reduction="none"
        )
        for logits, flag in ((starts, START), (ends, END))
    )
    return sum(both, torch.zeros_like(starts[:, 0], dtype=torch.float32)) / 2


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


def answer_all(
    model: Any, data: QuestionDataset, batch_size: int, longest: int, *, unanswerable: bool
) -> Sequence[GivenAnswer]:
    """Return the answer that a model gives each question, in their order."""
    best = [
        row
        for outputs, labels in forward_all(model, data, batch_size)
        for row in best_spans(outputs.start_logits, outputs.end_logits, labels, longest).tolist()
    ]
    return data.given(best, unanswerable=unanswerable)


def _candidates(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits in float32, minus infinity where a token can be no answer."""
    return logits.float().masked_fill(labels == OUTSIDE, -torch.inf)


def _has(labels: Tensor, flag: int) -> Tensor:
    return (labels != OUTSIDE) & (labels & flag != 0)
