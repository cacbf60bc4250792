"""Questions as windows of tokens: where answers are, what two windows share, what is refused."""

import random

import pytest
from asked import pieces_tokenizer, words_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from layermem_bench.data.question_records import Answer, QuestionRecord
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.train.learning.question_windows import END, NULL, OUTSIDE, START, WindowEncoder

BOTH = START + END


def record(context, answer="", *, question="which city ?", start=None):
    begin = context.index(answer) if start is None else start
    answers = (Answer(text=answer, start=begin),) if answer else ()
    return QuestionRecord(
        id="1", context=context, question=question, answers=answers, where="f, line 2"
    )


def encoder(tokenizer, max_length=32, stride=4, *, has_segments=True, reads_both_ways=True):
    return WindowEncoder(
        tokenizer,
        max_length,
        stride,
        has_segments=has_segments,
        reads_both_ways=reads_both_ways,
    )


def tokens(tokenizer, window):
    return tokenizer.convert_ids_to_tokens(window.input_ids.tolist())


def test_a_pair_is_joined_as_the_tokenizer_joins_it():
    tokenizer = pieces_tokenizer()
    (window,) = encoder(tokenizer).encode(record("near oslo then red", "oslo then"))
    expected = "[CLS] which city ? [SEP] near oslo then red [SEP]"
    assert tokens(tokenizer, window) == expected.split()
    assert window.token_type_ids.tolist() == [0] * 5 + [1] * 5
    outside = [OUTSIDE] * 4
    assert window.labels.tolist() == [NULL, *outside, 0, START, END, 0, OUTSIDE]
    assert window.spans.tolist() == [[0, 4], [5, 9], [10, 14], [15, 18]] and window.first == 5
    (none,) = encoder(tokenizer).encode(record("near oslo"))
    assert none.labels.tolist() == [NULL + BOTH, *outside, 0, 0, OUTSIDE]


def test_a_decoder_has_its_null_token_at_the_end():
    tokenizer = words_tokenizer()
    (window,) = encoder(tokenizer).encode(record("near oslo", "oslo"))
    assert tokens(tokenizer, window) == ["which", "city", "?", "<end>", "near", "oslo", "<end>"]
    assert window.labels.tolist() == [*[OUTSIDE] * 4, 0, BOTH, NULL]
    # A tokenizer that has [CLS] at the beginning, where a decoder has read nothing.
    pieces = pieces_tokenizer()
    (window,) = encoder(pieces, reads_both_ways=False).encode(record("near oslo"))
    assert tokens(pieces, window)[-1] == "[SEP]" and window.labels.tolist()[-1] == NULL + BOTH
    assert window.labels.tolist()[0] == OUTSIDE


def test_an_end_is_added_where_the_tokenizer_has_none():
    """LLaMA's tokenizer begins each of two texts with a token, and ends none."""
    words = {word: i for i, word in enumerate(["<s>", "<end>", "which", "city", "?", "oslo"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="<end>")
    (window,) = encoder(tokenizer, reads_both_ways=False).encode(record("oslo", "oslo"))
    assert tokens(tokenizer, window) == ["<s>", "which", "city", "?", "<s>", "oslo", "<end>"]
    assert window.labels.tolist() == [*[OUTSIDE] * 5, BOTH, NULL]
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end token to put after a context"):
        list(encoder(tokenizer, reads_both_ways=False).encode(record("oslo")))


@pytest.mark.parametrize("make", [pieces_tokenizer, words_tokenizer])
def test_windows_overlap_and_leave_nothing_out(make):
    draw, tokenizer = random.Random(0), make()
    for count in range(1, 40, 3):
        words = [draw.choice(["oslo", "near", "red", "then"]) for _ in range(count)]
        context, room = " ".join(words), draw.randrange(4, 12)
        others = 6 if make is pieces_tokenizer else 5
        windows = list(encoder(tokenizer, others + room, 3).encode(record(context)))
        seen = [[context[a:b] for a, b in window.spans.tolist()] for window in windows]
        assert all(len(each) <= room for each in seen)
        joined = seen[0]
        for each in seen[1:]:
            assert len(each) > 3 and joined[-3:] == each[:3]
            joined = joined + each[3:]
        assert joined == words
        for window, each in zip(windows, seen, strict=True):
            first = window.first
            assert tokens(tokenizer, window)[first : first + len(each)] == each
            assert len(window.input_ids) == others + len(each)


@pytest.mark.parametrize(("max_length", "stride"), [(10, 0), (10, 3), (13, 6), (60, 20)])
def test_windows_are_those_of_the_tokenizer(max_length, stride):
    tokenizer, asked = pieces_tokenizer(), record(" ".join(["oslo", "near", "red"] * 9))
    theirs = tokenizer(
        asked.question,
        asked.context,
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
    )
    ours = list(encoder(tokenizer, max_length, stride).encode(asked))
    assert [window.input_ids.tolist() for window in ours] == theirs["input_ids"]
    assert [window.token_type_ids.tolist() for window in ours] == theirs["token_type_ids"]


def test_an_answer_outside_a_window_is_none_there():
    tokenizer = words_tokenizer()
    context = "near red then oslo rome with two six"
    found = record(context, "oslo rome")
    windows = list(encoder(tokenizer, 9, 1).encode(found))
    assert [tokens(tokenizer, w)[4:-1] for w in windows] == [
        ["near", "red", "then", "oslo"],
        ["oslo", "rome", "with", "two"],
        ["two", "six"],
    ]
    ends = [window.labels.tolist()[-1] for window in windows]
    # The first window has half of the answer, which is no answer.
    assert ends == [NULL + BOTH, NULL, NULL + BOTH]
    assert windows[1].labels.tolist()[4:-1] == [START, END, 0, 0]


def test_tokens_of_an_answer_hold_its_characters():
    """Bytes: a letter outside of ASCII is several tokens of one character."""
    tokenizer = load_tokenizer("bytes")
    (window,) = encoder(tokenizer, 64).encode(record("un été là", "été", question="?"))
    labels = window.labels.tolist()[window.first : -1]
    # "un " is three tokens, "é" two, "t" one.
    assert [i for i, label in enumerate(labels) if label] == [3, 7]
    begin, end = window.spans[3, 0], window.spans[7, 1]
    assert "un été là"[begin:end] == "été"
    # A part of a token is found in the whole token.
    (window,) = encoder(words_tokenizer()).encode(record("near oslo", "slo"))
    assert window.labels.tolist()[4:6] == [0, BOTH]


def test_a_special_token_in_a_text_is_text():
    tokenizer = load_tokenizer("bytes")
    (window,) = encoder(tokenizer, 90).encode(record("a<|endoftext|>b", "b"))
    assert window.input_ids.tolist().count(256) == 2


def test_what_cannot_be_read_is_refused_with_its_line():
    pieces, words = pieces_tokenizer(), words_tokenizer()
    far = record(" ".join(["near"] * 30), "near")
    with pytest.raises(ValueError, match=r"f, line 2: .*6 tokens .* room for 4 .*stride=4: raise"):
        list(encoder(pieces, 10, 4).encode(far))
    assert len(list(encoder(pieces, 10, 3).encode(far))) == 27
    # It fits as a whole, so that windows need not get on.
    assert len(list(encoder(pieces, 10, 99).encode(record("near oslo", "oslo")))) == 1
    with pytest.raises(ValueError, match="has room for 0 of the context"):
        list(encoder(pieces, 6, 0).encode(far))
    blank = record("\u200b\u200b near", "\u200b\u200b", start=0)
    with pytest.raises(ValueError, match="f, line 2: the tokenizer makes no token of the answer"):
        list(encoder(pieces).encode(blank))
    with pytest.raises(ValueError, match="line 2: the tokenizer has tokens for 4 of 14 characters"):
        list(encoder(pieces).encode(record("\u200b" * 10 + " near")))
    with pytest.raises(ValueError, match="has tokens for 0 of 2 .*: it leaves words out"):
        list(encoder(pieces).encode(record("\u200b\u200b")))
    words.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        list(encoder(words).encode(record("near")))

    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match=r"a fast tokenizer is needed"):
        encoder(Slow())
