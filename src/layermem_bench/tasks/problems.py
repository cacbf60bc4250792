"""What all tasks share: problems, the splits they are drawn for, tokenizers of words, and grades.

A problem has a prompt and a solution. One with queries (``Queried``) is a sequence in which every
answer is read in one forward, and none is generated:

    prompt      k3 v9 k7 v2 _ _ k7 _ k3 _
    queries     6 and 8, counted from 0: the words after which answers are predicted
    solution    v2 v9

An answer is computed from the words up to its query; a causal model does not see what follows. A
task with queries needs a token for each word.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, Protocol, TypeVar

from tokenizers import Tokenizer, models, pre_tokenizers

from layermem_bench.config.hashing import hash_to_unit_interval

BLANK = "_"
"""The word where nothing is said."""
Split = Literal["train", "validation", "test"]
# Where the number that decides a problem's split must lie.
SPLITS: dict[str, tuple[float, float]] = {
    "test": (0.0, 0.2),
    "validation": (0.2, 0.3),
    "train": (0.3, 1.0),
}
# The first words of every task's own vocabulary.
_SPECIAL = ("<pad>", "<end>", "<unknown>")


class Problem(Protocol):
    """What the problems of every task have: what a model is given, and what it should generate."""

    @property
    def prompt(self) -> str: ...

    @property
    def solution(self) -> str: ...


_P = TypeVar("_P", bound=Problem)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """What is right in an attempt, and the first thing that is wrong."""

    answer: bool
    """Whether the final answer is right."""
    steps: bool
    """Whether every step is valid, the first follows from the question, and the last is the
    answer."""
    fault: str = ""
    """What is wrong with the first invalid step, as one of the task's faults; empty if none is."""
    at: int = 0
    """The number of that step, from 1; 0 if all steps are valid."""
    right: tuple[bool, ...] = ()
    """Which answers to queries are right; ``answer`` and ``steps`` then say whether all are. Empty
    for a problem without queries."""


@dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A prompt and the one solution that is right."""

    prompt: str
    solution: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Queried:
    """A sequence of words and what is to be predicted after some of them."""

    prompt: str
    """The sequence; words are separated by spaces."""
    solution: str
    """The answers, in the order of the queries."""
    queries: tuple[int, ...]
    """Index of the word after which each answer is predicted, in ascending order."""
    levels: tuple[int, ...]
    """Difficulty of each answer."""

    def __post_init__(self) -> None:
        queries, answers, levels = map(len, (self.queries, self.answers, self.levels))
        require(
            answers == queries == levels > 0,
            "a problem needs an answer and a level for each of its queries, got "
            f"{queries} queries, {answers} answers and {levels} levels",
        )

    @property
    def answers(self) -> list[str]:
        """The answers, one for each query."""
        return self.solution.split()


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def is_in_split(text: str, split: str) -> bool:
    """Return whether the hash of ``text`` lies in a split: "k3 v9, k7 v2" -> 0.41 -> train."""
    low, high = SPLITS[split]
    return low <= hash_to_unit_interval(text) < high


def draw_different(
    draw: Callable[[], _P | None], count: int, sizes: str, *, patience: int = 2_000
) -> list[_P]:
    """Return ``count`` problems with different prompts.

    ``draw`` returns a problem, or None where it drew one of another split. After ``patience`` draws
    in a row without a new problem, there are taken to be no more of these ``sizes``.
    """
    problems, fruitless = dict[str, _P](), 0
    while len(problems) < count:
        fruitless += 1
        if fruitless > patience:
            raise ValueError(
                f"only {len(problems)} of {count} problems were found with {sizes}; choose sizes "
                "of which there are more, or ask for fewer"
            )
        problem = draw()
        if problem is not None and problem.prompt not in problems:
            problems[problem.prompt] = problem
            fruitless = 0
    return list(problems.values())


def tokenizer_of_words(words: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with a token for each word, without transformers' interface."""
    vocabulary = {word: i for i, word in enumerate((*_SPECIAL, *words))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


def grade_words(problem: Problem, text: str) -> Grade:
    """Return whether a generated text is the solution, word for word."""
    is_right = text.split() == problem.solution.split()
    return Grade(answer=is_right, steps=is_right, fault="" if is_right else "other words")


def grade_answers(problem: Queried, text: str, plausible: Iterable[str]) -> Grade:
    """Grade answers to queries, in their order, separated by spaces.

    A fault is "missing" (there are fewer answers than queries), "other" (wrong, and one of the
    ``plausible`` answers to this problem), or "foreign" (none of them).
    """
    given, answers = text.split(), problem.answers
    pairs = zip_longest(given[: len(answers)], answers)
    right = tuple(word == answer for word, answer in pairs)
    if all(right) and len(given) == len(answers):
        return Grade(answer=True, steps=True, right=right)
    # More answers than queries: the first that is too many is at fault.
    at = right.index(False) if False in right else len(answers)
    fault = "missing"
    if at < len(given):
        fault = "other" if given[at] in plausible else "foreign"
    return Grade(answer=False, steps=False, fault=fault, at=at + 1, right=right)


def commonest_solution(problems: Sequence[Problem]) -> float:
    """Return the share of the commonest solution, which is what a constant guess scores."""
    return max(Counter(problem.solution for problem in problems).values()) / len(problems)
