"""What a run on questions starts with, and what it leaves: data, config, predictions and scores.

It does not know: the model, the training loop.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForQuestionAnswering

from layermem.config import Records, Run
from layermem.data.question_records import QuestionFields, QuestionRecord, read_questions
from layermem.data.record_splits import leave_out, split_by_hash
from layermem.results.answers import Answers, QuestionCounts
from layermem.results.files import to_json
from layermem.runs import RunFolder, write_atomically
from layermem.train.data_digest import prompts_digest
from layermem.train.host_inputs import (
    check_fits,
    check_known,
    load_host_config,
    load_host_tokenizer,
    padding_of,
)
from layermem.train.prepared_records import PreparedRecords
from layermem.train.question_answering import window_encoder
from layermem.train.question_dataset import QuestionDataset
from layermem.train.question_results import (
    guesses,
    prediction_rows,
    questions_text,
    score,
    score_by_answer,
    solved_of,
)
from layermem.train.question_trainer import QuestionTrainer, answer_all
from layermem.train.record_trainer import RecordTrainer

logger = logging.getLogger(__name__)
# Training windows by which a tokenizer is checked to know the texts.
_CHECKED_WINDOWS = 1000


def prepare_questions(run: Run) -> PreparedRecords:
    """Read, split and encode the questions of a run."""
    tokenizer, config = load_host_tokenizer(run), load_host_config(run)
    _check_head(config, str(run.host.model))
    train, validation, left_out = _read(run.records)
    check_fits(run, config, tokenizer)
    length, stride = run.records.max_length, run.records.stride
    encoder = window_encoder(config, tokenizer, length, stride)
    train_data, validation_data = (QuestionDataset(side, encoder) for side in (train, validation))
    ids = (window.input_ids.tolist() for window in train_data.windows[:_CHECKED_WINDOWS])
    check_known(ids, tokenizer, str(run.host.model))
    config.pad_token_id = padding_of(tokenizer)
    if config.num_labels != 2:
        # Of a classifier that is gone on with; some heads have an output for each.
        config.num_labels = 2
    longest = run.records.longest_answer
    counts = QuestionCounts(
        training=len(train),
        validation=len(validation),
        left_out=left_out,
        training_windows=len(train_data),
        validation_windows=len(validation_data),
        training_out_of_reach=train_data.out_of_reach(longest),
        validation_out_of_reach=validation_data.out_of_reach(longest),
        separator=encoder.separator,
        null_is_first=encoder.has_null_first,
    )
    _log(counts, run.records)
    return PreparedRecords(
        tokenizer=tokenizer,
        train_data=train_data,
        validation_data=validation_data,
        config=config,
        auto_class=AutoModelForQuestionAnswering,
        trainer=QuestionTrainer,
        save_results=partial(_save_answers, counts, train, validation_data),
    )


def _read(records: Records) -> tuple[list[QuestionRecord], list[QuestionRecord], int]:
    """Return the two splits, and how many questions were left out of training."""
    defaults = QuestionFields()
    context, question = records.fields or (defaults.context, defaults.question)
    names = QuestionFields(
        context=context,
        question=question,
        answers=records.label or defaults.answers,
        id=records.id_field or defaults.id,
    )
    read = partial(read_questions, names=names, unanswerable=records.unanswerable)
    every = read(Path(str(records.source)).expanduser())
    if records.validation is None:
        train, validation = split_by_hash(every, records.validation_share)
    else:
        validation = read(Path(records.validation).expanduser())
        train = leave_out(every, validation)
    _check_answers(train, records.unanswerable)
    # Of a share that is held out, none are left out.
    left_out = len(every) - len(train) if records.validation is not None else 0
    return train, validation, left_out


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


def _log(counts: QuestionCounts, records: Records) -> None:
    logger.info(
        "questions: %d for training, %d for validation (%d left out, since their contexts are in "
        "both); windows of %d tokens: %d and %d; answers that no window holds whole, or of more "
        "than %d tokens: %d and %d",
        counts.training,
        counts.validation,
        counts.left_out,
        records.max_length,
        counts.training_windows,
        counts.validation_windows,
        records.longest_answer,
        counts.training_out_of_reach,
        counts.validation_out_of_reach,
    )


def _save_answers(
    counts: QuestionCounts,
    training: Sequence[QuestionRecord],
    data: QuestionDataset,
    trainer: RecordTrainer,
    folder: RunFolder,
) -> None:
    """Save what the trained model answers to the validation questions, and the scores."""
    run, records = trainer.run, data.records
    given = answer_all(
        trainer.model,
        data,
        trainer.args.eval_batch_size,
        run.records.longest_answer,
        unanswerable=run.records.unanswerable,
    )
    texts = [answer.text for answer in given]
    guessed, total = guesses(records, training), score(records, texts)
    has_answer, no_answer = score_by_answer(records, texts)
    if total is None:
        raise ValueError("there are no validation questions")
    answers = Answers(
        run_id=run.id,
        counts=counts,
        all=total,
        has_answer=has_answer,
        no_answer=no_answer,
        guesses=guessed,
    )
    solved = replace(
        solved_of(records, texts, guessed),
        run_id=run.id,
        steps_taken=trainer.state.global_step,
        problems=prompts_digest(questions_text(records)),
    )
    rows = prediction_rows(records, given)
    write_atomically(folder.predictions, "".join(f"{json.dumps(row)}\n" for row in rows))
    write_atomically(folder.answers, to_json(answers))
    write_atomically(folder.result, solved.to_json())
