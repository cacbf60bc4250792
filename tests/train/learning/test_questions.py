"""Losses and best spans of windows against loops, and answers over all windows of a question."""

import math
import random

import pytest
import torch
from asked import KINDS, pieces_tokenizer, question_rows, words_tokenizer

from layermem_bench.data.question_records import Answer, QuestionRecord
from layermem_bench.train.learning.question_windows import (
    NULL,
    OUTSIDE,
    QuestionDataset,
    WindowEncoder,
    best_spans,
    window_losses,
)


def records(count=12, **options):
    return [
        QuestionRecord(
            id=row["id"],
            context=row["context"],
            question=row["question"],
            answers=tuple(
                Answer(text=text, start=start)
                for text, start in zip(*row["answers"].values(), strict=True)
            ),
            where=row["id"],
        )
        for row in question_rows(count, **options)
    ]


def dataset(tokenizer, max_length=10, stride=2, both_ways=True, **options):
    encoder = WindowEncoder(
        tokenizer, max_length, stride, has_segments=True, reads_both_ways=both_ways
    )
    return QuestionDataset(records(**options), encoder)


@pytest.fixture(scope="module")
def data():
    made = dataset(pieces_tokenizer(), unanswerable=0.3)
    assert len(made) > 1.5 * len(made.records)
    return made


@pytest.fixture(scope="module")
def batch(data):
    return data.collate([data[i] for i in range(len(data))])


def logits_like(batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, *batch["input_ids"].shape, generator=generator)


def test_losses_are_those_of_a_loop(data, batch):
    starts, ends = logits_like(batch)
    losses = window_losses(starts, ends, batch["labels"])
    for i, window in enumerate(data.windows):
        labels = window.labels.tolist()
        candidates = [t for t, label in enumerate(labels) if label != OUTSIDE]
        total = 0.0
        for logits, flag in ((starts[i], 1), (ends[i], 2)):
            (gold,) = [t for t in candidates if labels[t] & flag]
            total -= float(logits[gold]) - math.log(sum(math.exp(logits[t]) for t in candidates))
        assert float(losses[i]) == pytest.approx(total / 2, rel=1e-5)


def test_losses_ignore_padding_and_half_precision_sums(data, batch):
    starts, ends = logits_like(batch)
    length = len(data.windows[0].input_ids)
    whole = window_losses(starts[:1], ends[:1], batch["labels"][:1])
    cut = window_losses(starts[:1, :length], ends[:1, :length], batch["labels"][:1, :length])
    assert torch.equal(whole, cut)
    assert window_losses(starts.bfloat16(), ends.bfloat16(), batch["labels"]).dtype == torch.float32


@pytest.mark.parametrize("longest", [1, 2, 30])
def test_best_spans_are_those_of_a_loop(longest, data, batch):
    starts, ends = logits_like(batch, seed=longest)
    best = best_spans(starts, ends, batch["labels"], longest)
    for i, window in enumerate(data.windows):
        context = range(window.first, window.first + len(window.spans))
        pairs = [(a, b) for a in context for b in context if a <= b < a + longest]
        first, last = max(pairs, key=lambda pair: float(starts[i][pair[0]] + ends[i][pair[1]]))
        score, null = starts[i][first] + ends[i][last], starts[i][0] + ends[i][0]
        assert best[i].tolist() == pytest.approx([float(score), first, last, float(null)])


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_gold_logits_give_gold_answers(kind):
    """The whole way there and back: characters to labels, spans of tokens to characters."""
    tokenizer = pieces_tokenizer() if kind == "encoder" else words_tokenizer()
    made = dataset(tokenizer, both_ways=kind == "encoder", count=60, unanswerable=0.3)
    labels = made.collate([made[i] for i in range(len(made))])["labels"]
    starts, ends = (((labels > 0) & (labels & flag > 0)) * 9.0 for flag in (1, 2))
    given = made.given(best_spans(starts, ends, labels, 30).tolist(), unanswerable=True)
    answered = 0
    for answer, record in zip(given, made.records, strict=True):
        if record.answers:
            answered += 1
            assert (answer.text, answer.start) == (record.gold[0], record.answers[0].start)
        else:
            assert (answer.text, answer.start) == ("", None)
    assert 30 < answered < 55


def row(score, window, null, at=0):
    first = window.first + at
    return [score, first, first, null]


def test_the_best_window_answers_and_the_least_null_decides(data):
    record = next(i for i in range(len(data.records)) if data.record_of.count(i) == 3)
    numbers = [i for i, of in enumerate(data.record_of) if of == record]
    windows = [data.windows[i] for i in numbers]

    def answer(scores, nulls, *, unanswerable=True):
        best = [row(0.0, window, 1.0) for window in data.windows]
        for i, score, null in zip(numbers, scores, nulls, strict=True):
            best[i] = row(score, data.windows[i], null, at=1)
        return data.given(best, unanswerable=unanswerable)[record]

    context = data.records[record].context
    begin, end = windows[1].spans[1]
    found = answer([1.0, 5.0, 2.0], [9.0, 4.0, 9.0])
    assert (found.text, found.start) == (context[begin:end], begin)
    assert (found.score, found.null_score) == (5.0, 4.0)
    # None only where every window says so.
    assert answer([1.0, 5.0, 2.0], [9.0, 5.5, 9.0]).text == ""
    assert answer([1.0, 5.0, 2.0], [9.0, 5.0, 9.0]).text != ""
    assert answer([1.0, 5.0, 2.0], [9.0, 5.5, 9.0], unanswerable=False).text != ""
    with pytest.raises(ValueError, match="shorter"):
        data.given([[0.0, 5, 5, 0.0]], unanswerable=True)


def test_answers_out_of_reach_are_counted():
    pieces = pieces_tokenizer()
    words = "oslo rome lima bern oslo rome lima"
    long = QuestionRecord(
        id="a",
        context=f"near {words}",
        question="which city ?",
        answers=(Answer(text=words, start=5),),
        where="a",
    )
    for max_length, longest, expected in ((20, 30, 0), (20, 7, 0), (20, 6, 1), (12, 30, 1)):
        encoder = WindowEncoder(pieces, max_length, 2, has_segments=True, reads_both_ways=True)
        made = QuestionDataset([long, *records(5, unanswerable=0.5)], encoder)
        assert made.out_of_reach(longest) == expected
    assert not made.has_segments or "token_type_ids" in made[0]


def test_a_batch_is_padded_on_the_right_with_a_mask(data, batch):
    draw = random.Random(0)
    for i in draw.sample(range(len(data)), 5):
        length = len(data.windows[i].input_ids)
        assert batch["attention_mask"][i].tolist() == [
            int(t < length) for t in range(batch["input_ids"].shape[1])
        ]
        assert (batch["labels"][i, length:] == OUTSIDE).all()
        assert (batch["input_ids"][i, length:] == data.padding).all()
    assert set(batch) == {"input_ids", "token_type_ids", "labels", "attention_mask"}
    ids, labels = data.identity()[0]
    assert len(data.identity()) == len(data) and ids[0] == 2 and labels[0] & NULL
    assert len(KINDS) == 4
