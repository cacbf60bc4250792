"""Find the tokens at which given words end in texts, whatever the tokenizer.

    "(1 + 101) * 2"   tokens ( 1 + 101 ) * 2   word "1": token 1, not the 1 in 101

A word's token is the one that holds its last letter: there a causal model has read all of the word.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """One occurrence of a word in a text."""

    text: str
    """The whole text."""
    token: int
    """Index of the token that holds the word's last letter."""
    word: int
    """Index of the word."""


def compile_words(words: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of ``words`` as a whole word."""
    if not words or len(set(words)) < len(words) or not all(words):
        raise ValueError(
            f"words must be different and not empty, got {', '.join(map(repr, words))}"
        )
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(w) for w in words)})(?!\w)")


def check_words_have_tokens(
    words: Sequence[str], tokenizer: PreTrainedTokenizerFast, where: str
) -> None:
    """Raise if a word becomes the unknown token both with a space before it and without one.

    ``where`` names in the error what the tokenizer writes.
    """
    unknown = tokenizer.unk_token_id
    for word in words if unknown is not None else ():
        spellings = tokenizer([word, f" {word}"], add_special_tokens=False)["input_ids"]
        if all(unknown in ids for ids in spellings):
            raise ValueError(
                f"{word!r} cannot occur in {where}: there is no token for it; give other words"
            )


def find_occurrences(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    words: Sequence[str],
    each: int,
    *,
    longest: int | None = None,
    where: str = "the text",
) -> list[Occurrence]:
    """Return the first ``each`` occurrences of every word as a whole word.

    Tokens of a text beyond the first ``longest`` are not searched. A text that comes again is left
    out: a probe trained on the one copy would know the other. ``texts`` is read only as far as
    needed, and only texts with an occurrence are kept. ``where`` names the texts in errors.
    """
    pattern = compile_words(words)
    indices = {word: i for i, word in enumerate(words)}
    counts, occurrences, used_texts = [0] * len(words), list[Occurrence](), set[str]()
    for text in texts:
        matches = [match for match in pattern.finditer(text) if counts[indices[match[0]]] < each]
        if not matches or text in used_texts:
            continue
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        token_of_letter = _token_by_letter(encoded["offset_mapping"][:longest])
        for match in matches:
            word, token = indices[match[0]], token_of_letter.get(match.end() - 1)
            if token is not None and counts[word] < each:
                occurrences.append(Occurrence(text=text, token=token, word=word))
                used_texts.add(text)
                counts[word] += 1
        if min(counts) == each:
            break
    for name, count in zip(words, counts, strict=True):
        if not count:
            raise ValueError(f"{name!r} never occurs in {where}; give more text or another word")
        if count < each:
            raise ValueError(
                f"{name!r} occurs {count} times in {where}, {each} were asked for; give more text "
                f"or ask for fewer (--each {count})"
            )
    return occurrences


def _token_by_letter(offsets: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the token that holds each letter; of several (bytes of one letter), the last one."""
    return {letter: i for i, (start, end) in enumerate(offsets) for letter in range(start, end)}
