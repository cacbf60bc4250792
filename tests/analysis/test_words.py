"""Places of words, with every kind of tokenizer."""

import itertools
from pathlib import Path

import pytest

from layermem.analysis.words import Place, check_known, places
from layermem.data.tokenizers import load_tokenizer
from layermem.tasks import arithmetic, prosqa

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizer" / "gpt2"
TEXTS = ["What was is.", "This is his; it was, and they were.", "were they? was it? is it?"]


TOKENIZERS = ["bytes", *([str(GPT2)] if GPT2.exists() else [])]


@pytest.mark.parametrize("name", TOKENIZERS, ids=lambda name: Path(name).name)
def test_the_token_ends_the_word(name):
    tokenizer = load_tokenizer(name)
    found = places(TEXTS, tokenizer, ["is", "was"], 3)
    stands = [(TEXTS.index(place.text), place.word) for place in found]
    assert stands == [(0, 1), (0, 0), (1, 0), (1, 1), (2, 1), (2, 0)]
    for place in found:
        ids = tokenizer(place.text)["input_ids"]
        read = tokenizer.decode(ids[: place.token + 1])
        assert read.endswith(["is", "was"][place.word])


def test_letters_of_several_bytes_do_not_shift_places():
    tokenizer = load_tokenizer("bytes")
    (place,) = places(["naïve, was is"], tokenizer, ["is"], 1)
    assert place.token == len("naïve, was is".encode()) - 1


def test_numbers_are_whole_and_what_is_too_far_is_not_looked_at():
    tokenizer = arithmetic.tokenizer()
    texts = ["(1 + 101) * 2 = 102 * 2", "11 - 1 = 10"]
    found = places(texts, tokenizer, ["1", "2"], 1)
    assert found == [Place(text=texts[0], token=1, word=0), Place(text=texts[0], token=6, word=1)]
    with pytest.raises(ValueError, match="'10' never occurs"):
        places(texts, tokenizer, ["10"], 1, longest=4)


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
def test_what_is_not_there(words, each, message):
    with pytest.raises(ValueError, match=message):
        places(TEXTS, load_tokenizer("bytes"), words, each)


def test_texts_are_read_as_far_as_needed():
    endless = (f"it is {i}" for i in itertools.count())
    assert len(places(endless, load_tokenizer("bytes"), ["is"], 5)) == 5


def test_a_text_that_comes_again_is_left_out():
    tokenizer = load_tokenizer("bytes")
    again = [text for text in TEXTS for _ in range(3)]
    found = places(again, tokenizer, ["is", "was"], 3)
    assert [place.text for place in found] == [text for text in TEXTS for _ in range(2)]
    with pytest.raises(ValueError, match="'were' occurs 2 times in songs, 3 were asked for"):
        places(again, tokenizer, ["were"], 3, where="songs")


def test_a_word_without_a_token_is_refused_and_one_that_has_it_after_a_space_is_not():
    # ProsQA's tokenizer has " lempus" and no "lempus".
    check_known(["lempus", "Tom", "is"], prosqa.tokenizer(), "problems")
    check_known(["anything"], load_tokenizer("bytes"), "a text")
    with pytest.raises(ValueError, match="'was' cannot occur in problems: there is no token for"):
        check_known(["Tom", "was"], prosqa.tokenizer(), "problems")
