"""Answers of a model that was trained on questions, read as it was trained to read.

    model, tokenizer, [(question, context)] -> the pieces of the contexts that answer

It does not know: files, how the model was trained.
"""

from collections.abc import Sequence
from typing import Any

from transformers import MODEL_FOR_MASKED_LM_MAPPING

from layermem.data.question_records import QuestionRecord
from layermem.train.question_dataset import GivenAnswer, QuestionDataset
from layermem.train.question_trainer import answer_all
from layermem.train.question_windows import WindowEncoder


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
    return list(answer_all(model, data, batch_size, longest_answer, unanswerable=unanswerable))


def window_encoder(config: Any, tokenizer: Any, max_length: int, stride: int) -> WindowEncoder:
    """Return what encodes questions for a model of this config."""
    return WindowEncoder(
        tokenizer,
        max_length,
        stride,
        has_segments=getattr(config, "type_vocab_size", 0) > 1,
        reads_both_ways=_reads_both_ways(config),
    )


def _reads_both_ways(config: Any) -> bool:
    """Return whether a token sees those after it, as in models that fill in masked tokens."""
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
