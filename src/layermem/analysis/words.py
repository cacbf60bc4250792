"""Where words stand among tokens, whatever the tokenizer.

A word's place is the token that holds its last letter: there a causal model has read all of it.

It does not know: models, what is done at the places.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One occurrence of a word."""

    text: str
    """The text it stands in."""
    token: int
    """Index of the token in it."""
    word: int
    """Index of the word."""


def pattern(words: Sequence[str]) -> re.Pattern[str]:
    """Return what finds any of the words as a whole word."""
    if not words or len(set(words)) < len(words) or not all(words):
        raise ValueError(
            f"words must be different and not empty, got {', '.join(map(repr, words))}"
        )
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(w) for w in words)})(?!\w)")


def check_known(words: Sequence[str], tokenizer: PreTrainedTokenizerFast, where: str) -> None:
    """Raise about a word that a tokenizer has no token for, whether a space is before it or not.

    ``where``: what the tokenizer writes.
    """
    unknown = tokenizer.unk_token_id
    for word in words if unknown is not None else ():
        ways = tokenizer([word, f" {word}"], add_special_tokens=False)["input_ids"]
        if all(unknown in ids for ids in ways):
            raise ValueError(
                f"{word!r} cannot occur in {where}: there is no token for it; give other words"
            )


def places(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    words: Sequence[str],
    each: int,
    *,
    longest: int | None = None,
    where: str = "the text",
) -> list[Place]:
    """Return the first ``each`` places of every word, as a whole word, in texts that are sequences.

    What lies beyond ``longest`` tokens of a text is not looked at. A text that comes again is left
    out: a probe that learnt from one would know the other. Texts are read only as far as needed,
    and held only where there is a place. ``where``: what they are called in an error.
    """
    wanted = pattern(words)
    number = {word: i for i, word in enumerate(words)}
    counts, found, held = [0] * len(words), list[Place](), set[str]()
    for text in texts:
        matches = [match for match in wanted.finditer(text) if counts[number[match[0]]] < each]
        if not matches or text in held:
            continue
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        holder = _holders(encoded["offset_mapping"][:longest])
        for match in matches:
            word, token = number[match[0]], holder.get(match.end() - 1)
            if token is not None and counts[word] < each:
                found.append(Place(text=text, token=token, word=word))
                held.add(text)
                counts[word] += 1
        if min(counts) == each:
            break
    for name, count in zip(words, counts, strict=True):
        if not count:
            raise ValueError(f"{name!r} never occurs in {where}; give more text or another word")
        if count < each:
            raise ValueError(
                f"{name!r} occurs {count} times in {where}, {each} were asked for; give more text "
                "or ask for fewer"
            )
    return found


def _holders(offsets: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the token that holds each letter; of several (bytes of one letter), the last."""
    return {letter: i for i, (start, end) in enumerate(offsets) for letter in range(start, end)}
