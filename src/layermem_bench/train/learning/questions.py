"""Learning questions: the first and the last token of the answer in a text are two classes.

Both are among the tokens of a window's context and its null token; the logits of others do not
count. The loss of a window is the mean of the two cross-entropies. The answer given is the piece of
at most ``longest_answer`` tokens with the largest sum of both logits, in any window.

    answer_questions(model, tokenizer, [(question, context)]) -> the pieces of the contexts

Letters: B windows.
"""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from layermem_base.files import write_atomically
from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.config.run import Records, Run
from layermem_bench.data.labelled_records import split_records
from layermem_bench.data.question_records import (
    QuestionFields,
    QuestionRecord,
    exact_match,
    f1,
    read_questions,
)
from layermem_bench.results.files import read_result, to_json
from layermem_bench.results.intervals import proportion
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import Answers, AnswerScore, QuestionCounts, Solved
from layermem_bench.train.learning.question_windows import (
    GivenAnswer,
    QuestionDataset,
    best_spans,
    window_encoder,
    window_losses,
)
from layermem_bench.train.learning.record_inputs import (
    RecordLearning,
    forward_all,
    path_of,
    shares_without_steps,
)
from layermem_bench.train.model_card import Learnt, literal

# Training windows by which a tokenizer is checked to know the texts.
_CHECKED_WINDOWS = 1000


@final
class QuestionLearning(RecordLearning):
    """What a run on questions learns."""

    auto_class = AutoModelForQuestionAnswering

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        records = run.records
        _check_head(self.config, run.host.model)
        self.training, validation, left_out = _read(records)
        _check_answers(self.training, records.unanswerable)
        encoder = window_encoder(self.config, self.tokenizer, records.max_length, records.stride)
        self.train_data = QuestionDataset(self.training, encoder)
        self.validation_data = QuestionDataset(validation, encoder)
        self.collate = self.train_data.collate
        self.check_known(self.train_data.items[:_CHECKED_WINDOWS])
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
            separator=encoder.separator(),
            null_is_first=encoder.has_null_first,
        )
        self.log_counts(self.counts)

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return window_losses(outputs.start_logits, outputs.end_logits, labels)

    def numbers(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return what ``best_spans`` finds [B, 4]."""
        longest = self.run.records.longest_answer
        return best_spans(outputs.start_logits, outputs.end_logits, labels, longest)

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
        if not trainer.is_world_process_zero():
            return None
        data, options, size = self.validation_data, self.run.records, trainer.args.eval_batch_size
        longest, unanswerable = options.longest_answer, options.unanswerable
        given = answer_all(trainer.model, data, size, longest, unanswerable=unanswerable)
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

        def shown(share: float, interval: Sequence[float]) -> str:
            ends = f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
            return f"{share:.1%}{ends}"

        return Learnt(
            task="question-answering",
            data=f"{self.run.records.source}; question-answering of records",
            unit="window",
            results={
                f"{name}: exact match, F1 of words": f"{shown(each.exact, each.exact_interval)}, "
                f"{shown(each.f1, each.f1_interval)} of {each.count:,}"
                for name, each in scores.items()
                if each is not None
            },
            usage=self._usage(first["question"], first["context"]),
        )

    def _usage(self, question: str, context: str) -> str:
        """Return code that loads the model and has it answer a validation question."""
        records = self.run.records
        call = f"""\
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
        first = "from layermem_bench.train.learning.questions import answer_questions"
        return f"{first}\n{self.usage(call)}"


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
    records = []
    for number, (question, context) in enumerate(asked):
        names = {"id": str(number), "where": f"question {number}"}
        question = question.strip()
        records.append(QuestionRecord(**names, context=context, question=question, answers=()))
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


def score(
    records: Sequence[QuestionRecord], texts: Sequence[str], *, is_guess: bool = False
) -> AnswerScore:
    """Return the mean scores of answers, with intervals unless they are guesses."""
    count, gold = len(records), [record.gold for record in records]
    exact, overlap = (math.fsum(map(of, texts, gold)) for of in (exact_match, f1))
    return AnswerScore(
        count=count,
        exact=exact / count,
        exact_interval=() if is_guess else proportion(exact, count),
        f1=overlap / count,
        f1_interval=() if is_guess else proportion(overlap, count),
    )


def score_all(
    records: Sequence[QuestionRecord],
    texts: Sequence[str],
    training: Sequence[QuestionRecord],
    *,
    run_id: str,
    counts: QuestionCounts,
) -> Answers:
    """Return the scores of a run's answers, and of guesses from what it was trained on."""
    has_answer, no_answer = (
        [pair for pair in zip(records, texts, strict=True) if bool(pair[0].answers) is is_answered]
        for is_answered in (True, False)
    )
    return Answers(
        run_id=run_id,
        counts=counts,
        all=score(records, texts),
        has_answer=score(*zip(*has_answer, strict=True)) if has_answer else None,
        no_answer=score(*zip(*no_answer, strict=True)) if no_answer else None,
        guesses=guesses(records, training),
    )


def guesses(
    records: Sequence[QuestionRecord], training: Sequence[QuestionRecord]
) -> dict[str, AnswerScore]:
    """Return the scores of guesses that need no model, by name."""
    lengths = [len(record.gold[0].split()) for record in training if record.answers]
    words = round(statistics.median(lengths)) if lengths else 1
    texts = {
        "none": ["" for _ in records],
        "first words": [_piece(each, words, 0.0) for each in records],
        "random words": [_piece(each, words, hash_to_unit_interval(each.id)) for each in records],
    }
    return {name: score(records, each, is_guess=True) for name, each in texts.items()}


def solved_of(answers: Answers, records: Sequence[QuestionRecord], texts: Sequence[str]) -> Solved:
    """Return the exact matches as shares, for result.json, in SQuAD 2.0's names of levels."""
    levels = {"HasAns": answers.has_answer, "NoAns": answers.no_answer}
    shares = {
        name: shares_without_steps(of.count, of.exact, of.exact_interval)
        for name, of in {"": answers.all, **levels}.items()
        if of is not None
    }
    faults = Counter(map(_fault, records, texts))
    faults.pop("", None)
    return Solved(
        **vars(shares.pop("")),
        split="validation",
        chance=max(each.exact for each in answers.guesses.values()),
        by={"answer": shares},
        faults=dict(faults.most_common()),
    )


def _piece(record: QuestionRecord, words: int, where: float) -> str:
    """Return some words in a row of a context; ``where``: 0 for the first, below 1 for the last."""
    found = [match.span() for match in re.finditer(r"\S+", record.context)]
    count = min(words, len(found))
    begin = int(where * (len(found) - count + 1))
    return record.context[found[begin][0] : found[begin + count - 1][1]]


def _fault(record: QuestionRecord, text: str) -> str:
    """Return what is wrong with an answer; empty: nothing is."""
    if exact_match(text, record.gold):
        return ""
    if not record.answers:
        return "an answer where there is none"
    if not text:
        return "no answer where there is one"
    return "a part of the answer, or more" if f1(text, record.gold) else "elsewhere"


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


def _check_head(config: Any, model: str | None) -> None:
    if type(config) not in AutoModelForQuestionAnswering._model_mapping:
        raise ValueError(
            f"transformers has no head for question answering on {config.model_type} ({model}); "
            "it has one on BERT, RoBERTa, DeBERTa-v2, LLaMA, Mistral, Qwen2, Qwen3, SmolLM3, GPT-2 "
            "and GPT-NeoX, among others"
        )
