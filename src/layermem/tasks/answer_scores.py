"""Exact match and F1 of an answer's words, as SQuAD scores what is extracted from a text.

    gold "the Eiffel Tower", answer "Eiffel tower!"   exact match 1, F1 1
    gold "in 1889",          answer "1889"            exact match 0, F1 2/3

Both are of normalised texts: in lower case, without ASCII punctuation, without the words a, an and
the, and with single spaces. Of several gold answers the best counts. No answer is the empty text,
which is right where there is none. As in SQuAD 2.0's rules, gold answers that normalise to nothing
are left out, and where that is all of them the right answer is none.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Return a text as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """Return 1 if an answer is one of the gold answers, else 0; no gold answers: there is none."""
    return float(normalized(answer) in _normalized_gold(gold))


def f1(answer: str, gold: Sequence[str]) -> float:
    """Return the largest F1 of an answer's words with those of a gold answer."""
    words = normalized(answer).split()
    return max(_f1_of_words(words, each.split()) for each in _normalized_gold(gold))


def _normalized_gold(gold: Sequence[str]) -> list[str]:
    return list(filter(None, map(normalized, gold))) or [""]


def _f1_of_words(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Return the harmonic mean of the shares of words that both have, a repeated word counted."""
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))
