"""Draws the sequences of MAD's six tasks, each with the place of every answer.

recall          k3 v1 k5 v0 k3 v1          the value of a key that stood before
noisy-recall    k3 v1 n4 n9 k3 v1          the same between pairs of noise
fuzzy-recall    k3 k1 v1 k5 v0 v2 k3 k1 v1 the same, keys and values of several words
copying         w3 _ _ w5 _ copy _ _       the words between blanks, in their order
compression     w3 w5 w0 compress p0 p1 p2 the word at each place
memorization    k3 insert k7 insert        values that stand nowhere, the same in all problems
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from layermem_bench.tasks.problems import BLANK

COPY, COMPRESS, INSERT = "copy", "compress", "insert"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of a task's sequences."""

    vocabulary: int = 16
    """Words, those of noise and the task's special ones among them."""
    length: int = 128
    """Words of a sequence."""
    noise_words: int = 0
    """Words that are noise."""
    noise_share: float = 0.0
    """Share of pairs that are noise."""
    copied: int = 0
    """Words to copy."""
    key_words: int = 1
    """Most words of a key."""
    value_words: int = 1
    """Most words of a value."""


@dataclass(slots=True)
class Drawn:
    """A sequence while it is drawn."""

    words: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    """Index of a word to what is predicted after it."""

    def add_value(self, value: Sequence[str], *, asked: bool) -> None:
        """Add the words of a value; ``asked``: each is predicted after the word before it."""
        if asked:
            self.answers |= enumerate(value, len(self.words) - 1)
        self.words += value


def _keys_and_values(sizes: Sizes, special: int) -> tuple[list[str], list[str]]:
    """Return the words of keys and of values; ``special`` words of the vocabulary are neither."""
    count = sizes.vocabulary - sizes.noise_words - special
    return _words("k", count // 2), _words("v", count - count // 2)


def _words(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


@cache
def _facts(sizes: Sizes) -> dict[str, str]:
    """Return the value of each key that is memorized, the same in all problems."""
    keys, values = _keys_and_values(sizes, special=1)
    return dict(zip(keys, random.Random("facts").sample(values, len(keys)), strict=True))


def draw_recall(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Pairs of random keys, each with the same value every time; the last key stood before."""
    keys, values = _keys_and_values(sizes, special=0)
    noise = _words("n", sizes.noise_words)
    told, drawn = dict[str, str](), Drawn()
    pairs = sizes.length // 2 - 1
    kept = draw.randrange(pairs)
    for number in range(pairs):
        if number != kept and draw.random() < sizes.noise_share:
            drawn.words += draw.choices(noise, k=2)
            continue
        key = draw.choice(keys)
        asked = key in told
        value = told.setdefault(key, draw.choice(values))
        drawn.words.append(key)
        drawn.add_value([value], asked=asked)
    key = draw.choice(list(told))
    drawn.words.append(key)
    drawn.add_value([told[key]], asked=True)
    return drawn


def draw_fuzzy_recall(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """The same with keys and values of several different words; tested with keys of the most.

    Blanks in front fill the sequence up.
    """
    keys, values = _keys_and_values(sizes, special=1)
    least = sizes.key_words if test else 1
    told, pairs = dict[tuple[str, ...], list[str]](), list[tuple[str, ...]]()
    # Room is left for one more pair, the last, after the one that is drawn now.
    room, used = sizes.length - 2 * (sizes.key_words + sizes.value_words), 0
    while used <= room or not told:
        key = tuple(draw.sample(keys, draw.randint(least, sizes.key_words)))
        value = draw.sample(values, draw.randint(1, sizes.value_words))
        pairs.append(key)
        used += len(key) + len(told.setdefault(key, value))
    pairs.append(draw.choice(pairs))
    used += len(pairs[-1]) + len(told[pairs[-1]])
    drawn = Drawn(words=[BLANK] * (sizes.length - used))
    for number, key in enumerate(pairs):
        drawn.words += key
        drawn.add_value(told[key], asked=key in pairs[:number])
    return drawn


def draw_copying(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Words with blanks in front of each, a sign to copy, and a blank for each word."""
    copied = draw.choices(_words("w", sizes.vocabulary - 2), k=sizes.copied)
    blanks = sizes.length - 2 * sizes.copied - 1
    before = Counter(draw.choices(range(sizes.copied), k=blanks))
    drawn = Drawn()
    for place, word in enumerate(copied):
        drawn.words += [*[BLANK] * before[place], word]
    drawn.words.append(COPY)
    drawn.answers |= enumerate(copied, len(drawn.words))
    drawn.words += [BLANK] * sizes.copied
    return drawn


def draw_compression(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Words, a sign, and the number of each place, after which its word is predicted."""
    words = draw.choices(_words("w", sizes.vocabulary - 1), k=sizes.length - 1)
    places = _words("p", sizes.length - 1)
    answers = dict(enumerate(words, sizes.length))
    return Drawn(words=[*words, COMPRESS, *places], answers=answers)


def draw_memorization(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Keys, each followed by a sign after which its value is predicted."""
    values, drawn = _facts(sizes), Drawn()
    for key in draw.choices(list(values), k=sizes.length // 2):
        drawn.words += [key, INSERT]
        drawn.answers[len(drawn.words) - 1] = values[key]
    return drawn


DRAW: dict[str, Callable[..., Drawn]] = {
    "recall": draw_recall,
    "noisy-recall": draw_recall,
    "fuzzy-recall": draw_fuzzy_recall,
    "copying": draw_copying,
    "compression": draw_compression,
    "memorization": draw_memorization,
}


def all_words(kind: str, sizes: Sizes) -> list[str]:
    if kind == "copying":
        return [BLANK, COPY, *_words("w", sizes.vocabulary - 2)]
    if kind == "compression":
        return [COMPRESS, *_words("w", sizes.vocabulary - 1), *_words("p", sizes.length - 1)]
    special = {"fuzzy-recall": [BLANK], "memorization": [INSERT]}.get(kind, [])
    keys, values = _keys_and_values(sizes, special=len(special))
    return [*special, *keys, *values, *_words("n", sizes.noise_words)]
