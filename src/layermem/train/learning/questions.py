"""Learning questions: the first and the last token of the answer in a text are two classes.

Both are among the tokens of a window's context and its null token; the logits of others do not
count. The loss of a window is the mean of the two cross-entropies, that of a step the mean over its
windows, whatever the micro-batch is. What is given as an answer is the piece of at most
``longest_answer`` tokens with the largest sum of both logits, in any window.

    answer_questions(model, tokenizer, [(question, context)]) -> the pieces of the contexts

Letters: B windows, T tokens.
"""

import json
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering

from layermem.config import Records, Run
from layermem.data.question_records import QuestionFields, QuestionRecord, read_questions
from layermem.data.record_splits import split_records
from layermem.results.answers import Answers, QuestionCounts
from layermem.results.files import read_result, to_json
from layermem.results.solved import Solved
from layermem.runs import RunFolder, write_atomically
from layermem.tasks.answer_scores import exact_match, f1
from layermem.train.host_models import load_host_config, load_record_model
from layermem.train.learning.question_scores import score_all, solved_of
from layermem.train.learning.question_windows import (
    END,
    NULL,
    OUTSIDE,
    START,
    GivenAnswer,
    QuestionDataset,
    window_encoder,
)
from layermem.train.learning.record_inputs import (
    check_fits,
    check_known,
    forward_all,
    judge_outputs,
    load_host_tokenizer,
    log_counts,
    path_of,
)
from layermem.train.model_card import Learnt, head_loading, literal
from layermem.train.sequences import padding_of

# Training windows by which a tokenizer is checked to know the texts.
_CHECKED_WINDOWS = 1000


@final
class QuestionLearning:
    """What a run on questions learns."""

    def __init__(self, run: Run) -> None:
        records, model = run.records, str(run.host.model)
        self.run = run
        self.tokenizer, self.config = load_host_tokenizer(run), load_host_config(run)
        _check_head(self.config, model)
        self.training, validation, left_out = _read(records)
        _check_answers(self.training, records.unanswerable)
        check_fits(run, self.config, self.tokenizer)
        encoder = window_encoder(self.config, self.tokenizer, records.max_length, records.stride)
        self.train_data = QuestionDataset(self.training, encoder)
        self.validation_data = QuestionDataset(validation, encoder)
        self.collate = self.train_data.collate
        check_known(self.train_data.items[:_CHECKED_WINDOWS], self.tokenizer, model)
        self.config.pad_token_id = padding_of(self.tokenizer)
        if self.config.num_labels != 2:
            # Of a classifier that is gone on with; some heads have an output for each.
            self.config.num_labels = 2
        longest = records.longest_answer
        self.counts = QuestionCounts(
            training=len(self.training),
            validation=len(validation),
            left_out=left_out,
            training_windows=len(self.train_data),
            validation_windows=len(self.validation_data),
            training_out_of_reach=self.train_data.out_of_reach(longest),
            validation_out_of_reach=self.validation_data.out_of_reach(longest),
            separator=encoder.separator,
            null_is_first=encoder.has_null_first,
        )
        log_counts(self.counts)

    def load_model(self) -> Any:
        return load_record_model(self.run, self.config, AutoModelForQuestionAnswering)

    def step_loss(self, outputs: Any, labels: Tensor, **_: Any) -> Tensor:
        losses = window_losses(outputs.start_logits, outputs.end_logits, labels)
        return losses.sum() / self.run.optim.batch_size

    def judge(self, model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
        return judge_outputs(model, batch, self._judge)

    def _judge(self, outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = outputs.start_logits, outputs.end_logits
        best = best_spans(*logits, labels, self.run.records.longest_answer)
        return window_losses(*logits, labels), best

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        data, unanswerable = self.validation_data, self.run.records.unanswerable
        given = data.given(judged.tolist(), unanswerable=unanswerable)
        pairs = [(each.text, record.gold) for each, record in zip(given, data.records, strict=True)]
        return {
            "val_loss": loss,
            "val_accuracy": sum(exact_match(*pair) for pair in pairs) / len(pairs),
            "val_f1": sum(f1(*pair) for pair in pairs) / len(pairs),
        }

    def save(self, trainer: Any, folder: RunFolder) -> tuple[Solved, list[str]] | None:
        """Write what the trained model answers to the validation questions, and the scores."""
        if not trainer.is_world_process_zero():
            return None
        data, options = self.validation_data, self.run.records
        given = answer_all(
            trainer.model,
            data,
            trainer.args.eval_batch_size,
            options.longest_answer,
            unanswerable=options.unanswerable,
        )
        records, texts = data.records, [answer.text for answer in given]
        answers = score_all(records, texts, self.training, run_id=self.run.id, counts=self.counts)
        rows = [
            {
                "id": record.id,
                "question": record.question,
                "context": record.context,
                "answers": record.gold,
                "prediction": answer.text,
                "start": answer.start,
                "score": answer.score,
                "null_score": answer.null_score,
                "exact": exact_match(answer.text, record.gold),
                "f1": f1(answer.text, record.gold),
            }
            for record, answer in zip(records, given, strict=True)
        ]
        write_atomically(folder.predictions, "".join(f"{json.dumps(row)}\n" for row in rows))
        write_atomically(folder.answers, to_json(answers))
        asked = [json.dumps([each.id, each.context, each.question, each.gold]) for each in records]
        return solved_of(answers, records, texts), asked

    def describe(self, folder: RunFolder) -> Learnt:
        answers = read_result(Answers, folder.answers)
        scores = {
            "validation questions": answers.all,
            "of those with an answer": answers.has_answer if answers.no_answer else None,
            "of those without one": answers.no_answer,
            **{f"guess, {name}": score for name, score in answers.guesses.items()},
        }
        with folder.predictions.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
        return Learnt(
            task="question-answering",
            data=f"{self.run.records.source}; question-answering of records",
            unit="window",
            results={
                f"{name}: exact match, F1 of words": f"{score.exact:.1%}"
                f"{_ends(score.exact_interval)}, {score.f1:.1%}{_ends(score.f1_interval)} of "
                f"{score.count:,}"
                for name, score in scores.items()
                if score is not None
            },
            usage=_usage(self.run, first["question"], first["context"]),
        )


def _usage(run: Run, question: str, context: str) -> str:
    """Return code that loads the model and has it answer a validation question."""
    imports, load = head_loading(run, "AutoModelForQuestionAnswering")
    records = run.records
    return f"""from layermem.train.learning.questions import answer_questions
{imports}

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}
question = {literal(question)}
context = {literal(context)}
(answer,) = answer_questions(
    model,
    tokenizer,
    [(question, context)],
    max_length={records.max_length},
    stride={records.stride},
    longest_answer={records.longest_answer},
    unanswerable={records.unanswerable},
)
print(answer.text)"""


def _ends(interval: Sequence[float]) -> str:
    return f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""


def answer_questions(
    model: Any,
    tokenizer: Any,
    asked: Sequence[tuple[str, str]],
    *,
    max_length: int = 384,
    stride: int = 128,
    longest_answer: int = 30,
    unanswerable: bool = False,
    batch_size: int = 8,
) -> list[GivenAnswer]:
    """Return the answer to each question, given as (question, context).

    ``model`` has a head for question answering, with memory or without. The other options are those
    of its run: tokens of a window, tokens that two windows share, most tokens of an answer, and
    whether it may give none.
    """
    encoder = window_encoder(model.config, tokenizer, max_length, stride)
    records = [
        QuestionRecord(
            id=str(number),
            context=context,
            question=question.strip(),
            answers=(),
            where=f"question {number}",
        )
        for number, (question, context) in enumerate(asked)
    ]
    data = QuestionDataset(records, encoder)
    return answer_all(model, data, batch_size, longest_answer, unanswerable=unanswerable)


def answer_all(
    model: Any, data: QuestionDataset, batch_size: int, longest: int, *, unanswerable: bool
) -> list[GivenAnswer]:
    """Return the answer that a model gives each question, in their order."""
    best = [
        row
        for outputs, labels in forward_all(model, data, batch_size)
        for row in best_spans(outputs.start_logits, outputs.end_logits, labels, longest).tolist()
    ]
    return data.given(best, unanswerable=unanswerable)


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


def _candidates(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits in float32, minus infinity where a token can be no answer."""
    return logits.float().masked_fill(labels == OUTSIDE, -torch.inf)


def _has(labels: Tensor, flag: int) -> Tensor:
    return (labels != OUTSIDE) & (labels & flag != 0)


def _read(records: Records) -> tuple[list[QuestionRecord], list[QuestionRecord], int]:
    """Return the two splits, and how many questions were left out of training."""
    given = dict(zip(("context", "question"), records.fields, strict=False))
    given |= {"answers": records.label or "", "id": records.id_field or ""}
    names = QuestionFields(**{name: value for name, value in given.items() if value})
    every, validation = (
        read_questions(path_of(path), names, unanswerable=records.unanswerable) if path else None
        for path in (records.source, records.validation)
    )
    return split_records(every or [], validation, records.validation_share)


def _check_answers(train: Sequence[QuestionRecord], unanswerable: bool) -> None:
    """Raise where the training questions do not show both that there are answers and none."""
    answered = sum(bool(record.answers) for record in train)
    if not answered:
        raise ValueError(
            f"none of the {len(train)} training questions has an answer: there is nothing to learn"
        )
    if unanswerable and answered == len(train):
        raise ValueError(
            f"--unanswerable is given, and all {len(train)} training questions have an answer, so "
            "that a model could not learn when there is none: leave it out"
        )


def _check_head(config: Any, model: str) -> None:
    if type(config) not in AutoModelForQuestionAnswering._model_mapping:
        raise ValueError(
            f"transformers has no head for question answering on {config.model_type} ({model}); "
            "it has one on BERT, RoBERTa, DeBERTa-v2, LLaMA, Mistral, Qwen2, Qwen3, SmolLM3, GPT-2 "
            "and GPT-NeoX, among others"
        )
