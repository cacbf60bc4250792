"""Test at which tokens words are found, with every kind of tokenizer."""

import itertools
from pathlib import Path

import pytest

from layermem.analysis.occurrences import Occurrence, check_words_have_tokens, find_occurrences
from layermem.data.tokenizers import load_tokenizer
from layermem.tasks.registry import get_task

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizer" / "gpt2"
TEXTS = ["What was is.", "This is his; it was, and they were.", "were they? was it? is it?"]


TOKENIZERS = ["bytes", *([str(GPT2)] if GPT2.exists() else [])]


@pytest.mark.parametrize("name", TOKENIZERS, ids=lambda name: Path(name).name)
def test_the_token_ends_the_word(name):
    tokenizer = load_tokenizer(name)
    occurrences = find_occurrences(TEXTS, tokenizer, ["is", "was"], 3)
    at = [(TEXTS.index(occurrence.text), occurrence.word) for occurrence in occurrences]
    assert at == [(0, 1), (0, 0), (1, 0), (1, 1), (2, 1), (2, 0)]
    for occurrence in occurrences:
        ids = tokenizer(occurrence.text)["input_ids"]
        read = tokenizer.decode(ids[: occurrence.token + 1])
        assert read.endswith(["is", "was"][occurrence.word])


def test_letters_of_several_bytes_do_not_shift_tokens():
    tokenizer = load_tokenizer("bytes")
    (occurrence,) = find_occurrences(["naïve, was is"], tokenizer, ["is"], 1)
    assert occurrence.token == len("naïve, was is".encode()) - 1


def test_numbers_are_whole_words_and_tokens_beyond_the_longest_are_not_searched():
    tokenizer = get_task("arithmetic").tokenizer()
    texts = ["(1 + 101) * 2 = 102 * 2", "11 - 1 = 10"]
    occurrences = find_occurrences(texts, tokenizer, ["1", "2"], 1)
    assert occurrences == [
        Occurrence(text=texts[0], token=1, word=0),
        Occurrence(text=texts[0], token=6, word=1),
    ]
    with pytest.raises(ValueError, match="'10' never occurs"):
        find_occurrences(texts, tokenizer, ["10"], 1, longest=4)


@pytest.mark.parametrize(
    ("words", "each", "message"),
    [
        (["were"], 3, "'were' occurs 2 times in the text, 3 were asked for; give more text or ask"),
        (["are", "is"], 1, "'are' never occurs in the text"),
        (["is", "is"], 1, "words must be different and not empty, got 'is', 'is'"),
        ([], 1, "words must be different and not empty"),
        ([""], 1, "words must be different and not empty"),
    ],
)
def test_words_that_do_not_occur_often_enough_are_refused(words, each, message):
    with pytest.raises(ValueError, match=message):
        find_occurrences(TEXTS, load_tokenizer("bytes"), words, each)


def test_texts_are_read_as_far_as_needed():
    endless = (f"it is {i}" for i in itertools.count())
    assert len(find_occurrences(endless, load_tokenizer("bytes"), ["is"], 5)) == 5


def test_a_repeated_text_is_left_out():
    tokenizer = load_tokenizer("bytes")
    again = [text for text in TEXTS for _ in range(3)]
    occurrences = find_occurrences(again, tokenizer, ["is", "was"], 3)
    assert [occurrence.text for occurrence in occurrences] == [
        text for text in TEXTS for _ in range(2)
    ]
    with pytest.raises(ValueError, match="'were' occurs 2 times in songs, 3 were asked for"):
        find_occurrences(again, tokenizer, ["were"], 3, where="songs")


def test_a_word_without_a_token_is_refused_but_not_one_with_a_token_after_a_space():
    # ProsQA's tokenizer has " lempus" and no "lempus".
    check_words_have_tokens(["lempus", "Tom", "is"], get_task("prosqa").tokenizer(), "problems")
    check_words_have_tokens(["anything"], load_tokenizer("bytes"), "a text")
    with pytest.raises(ValueError, match="'was' cannot occur in problems: there is no token for"):
        check_words_have_tokens(["Tom", "was"], get_task("prosqa").tokenizer(), "problems")
