"""Draws the sequences of MAD's six tasks, each with the place of every answer.

recall          k3 v1 k5 v0 k3 v1          the value of a key that stood before
noisy-recall    k3 v1 n4 n9 k3 v1          the same between pairs of noise
fuzzy-recall    k3 k1 v1 k5 v0 v2 k3 k1 v1 the same, keys and values of several words
copying         w3 _ _ w5 _ copy _ _       the words between blanks, in their order
compression     w3 w5 w0 compress p0 p1 p2 the word at each place
memorization    k3 insert k7 insert        values that stand nowhere, the same in all problems
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

from layermem_bench.tasks.problems import BLANK

COPY, COMPRESS, INSERT = "copy", "compress", "insert"
# Selects the values that are memorized.
_FACTS_SEED = "facts"


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
        for word in value:
            if asked:
                self.answers[len(self.words) - 1] = word
            self.words.append(word)


def keys_and_values(sizes: Sizes, special: int) -> tuple[list[str], list[str]]:
    """Return the words of keys and of values; ``special`` words of the vocabulary are neither."""
    count = sizes.vocabulary - sizes.noise_words - special
    keys = [f"k{number}" for number in range(count // 2)]
    return keys, [f"v{number}" for number in range(count - count // 2)]


def plain_words(sizes: Sizes, special: int) -> list[str]:
    """Return the words that are copied or compressed."""
    return [f"w{number}" for number in range(sizes.vocabulary - special)]


def noise(sizes: Sizes) -> list[str]:
    """Return the words of noise."""
    return [f"n{number}" for number in range(sizes.noise_words)]


@cache
def facts(sizes: Sizes) -> dict[str, str]:
    """Return the value of each key that is memorized."""
    keys, values = keys_and_values(sizes, special=1)
    return dict(zip(keys, random.Random(_FACTS_SEED).sample(values, len(keys)), strict=True))


def draw_recall(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Pairs of random keys, each with the same value every time; the last key stood before."""
    keys, values = keys_and_values(sizes, special=0)
    told, drawn = dict[str, str](), Drawn()
    pairs = sizes.length // 2 - 1
    kept = draw.randrange(pairs)
    for number in range(pairs):
        if number != kept and draw.random() < sizes.noise_share:
            drawn.words += draw.choices(noise(sizes), k=2)
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
    keys, values = keys_and_values(sizes, special=1)
    least = sizes.key_words if test else 1

    def draw_key() -> tuple[str, ...]:
        return tuple(draw.sample(keys, draw.randint(least, sizes.key_words)))

    def draw_value() -> list[str]:
        return draw.sample(values, draw.randint(1, sizes.value_words))

    told, drawn, pairs = dict[tuple[str, ...], list[str]](), Drawn(), list[tuple[str, ...]]()
    room, used = sizes.length - sizes.key_words - sizes.value_words, 0
    while used <= room - sizes.key_words - sizes.value_words or not told:
        key = draw_key()
        told.setdefault(key, draw_value())
        pairs.append(key)
        used += len(key) + len(told[key])
    pairs.append(draw.choice(pairs))
    total = sum(len(key) + len(told[key]) for key in pairs)
    drawn.words += [BLANK] * (sizes.length - total)
    seen = set[tuple[str, ...]]()
    for key in pairs:
        drawn.words += key
        drawn.add_value(told[key], asked=key in seen)
        seen.add(key)
    return drawn


def draw_copying(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Words with blanks in front of each, a sign to copy, and a blank for each word."""
    copied = draw.choices(plain_words(sizes, special=2), k=sizes.copied)
    blanks = sizes.length - 2 * sizes.copied - 1
    before = sorted(draw.choices(range(sizes.copied), k=blanks))
    counts = {place: len(list(group)) for place, group in groupby(before)}
    drawn = Drawn()
    for place, word in enumerate(copied):
        drawn.words += [*[BLANK] * counts.get(place, 0), word]
    drawn.words.append(COPY)
    for word in copied:
        drawn.answers[len(drawn.words)] = word
        drawn.words.append(BLANK)
    return drawn


def draw_compression(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Words, a sign, and the number of each place, after which its word is predicted."""
    words = draw.choices(plain_words(sizes, special=1), k=sizes.length - 1)
    drawn = Drawn(words=[*words, COMPRESS])
    for place, word in enumerate(words):
        drawn.answers[len(drawn.words)] = word
        drawn.words.append(f"p{place}")
    return drawn


def draw_memorization(draw: random.Random, sizes: Sizes, *, test: bool) -> Drawn:
    """Keys, each followed by a sign after which its value is predicted."""
    values, drawn = facts(sizes), Drawn()
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
    """Return every word that sequences of a kind may have."""
    if kind == "copying":
        return [BLANK, COPY, *plain_words(sizes, special=2)]
    if kind == "compression":
        places = [f"p{place}" for place in range(sizes.length - 1)]
        return [COMPRESS, *plain_words(sizes, special=1), *places]
    special = {"fuzzy-recall": [BLANK], "memorization": [INSERT]}.get(kind, [])
    keys, values = keys_and_values(sizes, special=len(special))
    return [*special, *keys, *values, *noise(sizes)]
