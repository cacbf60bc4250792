"""Problems with queries inside a sequence: every answer is read in one forward, none is generated.

    prompt      k3 v9 k7 v2 _ _ k7 _ k3 _
    queries     6 and 8, counted from 0: the words after which answers are predicted
    solution    v2 v9

An answer is computed from the words up to its query; a causal model does not see what follows. A
task of this kind needs a token for each word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from layermem.tasks.grading import Grade

BLANK = "_"
"""The word where nothing is said."""


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
        counts = len(self.solution.split()), len(self.queries), len(self.levels)
        if not counts[0] == counts[1] == counts[2] > 0:
            raise ValueError(
                "a problem needs an answer and a level for each of its queries, got "
                f"{counts[1]} queries, {counts[0]} answers and {counts[2]} levels"
            )

    @property
    def answers(self) -> list[str]:
        """The answers, one for each query."""
        return self.solution.split()

    @property
    def highest_level(self) -> int:
        """Difficulty of the most difficult answer."""
        return max(self.levels)


def grade_answers(problem: Queried, text: str, plausible: Iterable[str]) -> Grade:
    """Grade answers, separated by spaces.

    A fault is "missing" (there are fewer answers than queries), "other" (wrong, and one of the
    ``plausible`` answers to this problem), or "foreign" (none of them).
    """
    given, answers = text.split(), problem.answers
    right = tuple(
        position < len(given) and given[position] == answer
        for position, answer in enumerate(answers)
    )
    if all(right) and len(given) == len(answers):
        return Grade(answer=True, steps=True, right=right)
    # More answers than queries: the first that is too many is at fault.
    at = right.index(False) if False in right else len(answers)
    fault = "missing"
    if at < len(given):
        fault = "other" if given[at] in plausible else "foreign"
    return Grade(answer=False, steps=False, fault=fault, at=at + 1, right=right)


def check_one_token_a_word(
    problems: Sequence[Queried], prompts: Sequence[list[int]], solutions: Sequence[list[int]]
) -> None:
    """Raise if a tokenizer has not made one token of each word of the prompts and solutions."""
    for problem, prompt, solution in zip(problems, prompts, solutions, strict=True):
        for text, ids in ((problem.prompt, prompt), (problem.solution, solution)):
            if len(ids) != len(text.split()):
                raise ValueError(
                    f"the tokenizer makes {len(ids)} tokens of the {len(text.split())} words of "
                    f"{text!r:.60}; this task needs one for each: leave --task.tokenizer out"
                )


def count_answers(problems: Sequence[Queried]) -> dict[str, Any]:
    """Return statistics that problems of all tasks of this kind have."""
    if not problems:
        raise ValueError("there are no problems to describe")
    words = [len(problem.prompt.split()) for problem in problems]
    answers = [len(problem.queries) for problem in problems]
    return {
        "problems": len(problems),
        "words: fewest, mean, most": [min(words), sum(words) / len(words), max(words)],
        "queries: fewest, mean, most": [min(answers), sum(answers) / len(answers), max(answers)],
    }
