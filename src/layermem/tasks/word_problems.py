"""Problems of words without more to them: what a task has that says no more of itself."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from layermem.tasks.grading import Grade


@dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A prompt and the one solution that is right."""

    prompt: str
    """The text that the model is given."""
    solution: str
    """The text that the model should generate."""


def word_tokenizer(words: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with a token for each word, without transformers' interface."""
    vocabulary = ["<pad>", "<end>", "<unknown>", *words]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unknown>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


def grade_words(problem: Any, text: str) -> Grade:
    """Return whether a generated text is the solution, word for word."""
    is_right = text.split() == problem.solution.split()
    return Grade(answer=is_right, steps=is_right, fault="" if is_right else "other words")


def describe_words(problems: Sequence[Any]) -> dict[str, Any]:
    """Return how many problems there are, how many differ, and how long they are."""
    if not problems:
        raise ValueError("there are no problems to describe")
    words = [len(f"{problem.prompt} {problem.solution}".split()) for problem in problems]
    return {
        "problems": len(problems),
        "different prompts": len({problem.prompt for problem in problems}),
        "words: fewest, mean, most": [min(words), sum(words) / len(words), max(words)],
        "commonest solution": commonest_solution(problems),
    }


def commonest_solution(problems: Sequence[Any]) -> float:
    """Return the share of the commonest solution, which is what a constant guess scores."""
    counts = Counter(problem.solution for problem in problems)
    return max(counts.values()) / len(problems)
