"""What every source of documents has in common: its texts, their longest length, its fingerprint.

A source yields one text at a time. No text is longer than ``MAX_CHARACTERS``: a longer document is
cut into several parts, at ends of lines where it has any. The fingerprint depends on the documents
alone, not on where they are stored.

It does not know: where documents come from, tokens, blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

# Characters of a text: a tokenizer's own bookkeeping takes some hundred bytes for each.
MAX_CHARACTERS = 1_000_000


class Source(ABC):
    """Documents, and a fingerprint that distinguishes them from others."""

    single_document = False
    """Whether the source is one document, so that only its parts can be divided into splits."""

    def __iter__(self) -> Iterator[str]:
        """Yield one text after the other, none longer than ``MAX_CHARACTERS``."""
        return (text for text, _ in self.parts())

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield each text with the first part of its document, by which parts stay together.

        A document of the parts A, B and C yields (A, A), (B, A) and (C, A). The parts of a single
        document need not stay together and yield (A, A), (B, B) and (C, C).
        """
        for document in self._documents():
            first: str | None = None
            for text in document:
                first = text if first is None or self.single_document else first
                yield text, first

    @abstractmethod
    def _documents(self) -> Iterator[Iterable[str]]:
        """Yield the parts of each document."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes when a text does."""


def cut_document(text: str) -> Iterator[str]:
    """Yield the parts of a text, each of at most ``MAX_CHARACTERS``; all but the last end a line.

    Where the second half of a part has no end of a line, the part ends before a space, and without
    a space anywhere. Where a part ends depends only on the text up to there, so that a file can be
    cut while it is read.
    """
    start = 0
    while len(text) - start > MAX_CHARACTERS:
        window = start + MAX_CHARACTERS // 2, start + MAX_CHARACTERS
        after_line = text.rfind("\n", *window) + 1
        before_space = max(text.rfind(" ", *window), 0)
        end = after_line or before_space or window[1]
        yield text[start:end]
        start = end
    yield text[start:]


def check_text(text: str, name: str) -> None:
    """Raise, calling the text ``name``, if it has no UTF-8: tokenizers read nothing else.

    JSON can hold half a surrogate pair; in an argument one stands for a byte that is not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} holds half a surrogate pair, {text[error.start]!a}, at character "
            f"{error.start}, which is not valid text; correct it or leave it out"
        ) from error
