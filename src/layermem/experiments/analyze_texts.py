"""Choose the texts and words of an analysis, and find the words in the texts.

The texts are the test problems of the task that a run was trained on, or else sequences of a text.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from layermem.analysis.occurrences import (
    Occurrence,
    check_words_have_tokens,
    compile_words,
    find_occurrences,
)
from layermem.analysis.separability import FOLDS
from layermem.config import Task
from layermem.data.sources import open_source
from layermem.experiments.analyze_checkpoints import Checkpoint
from layermem.results.analysis import AnalysisOptions
from layermem.tasks.registry import get_task

# Seeds of which problems are drawn in search of rare words, at most.
_SEEDS = 50
# Words of the paper's probe, which are used where a text is read.
_WORDS_OF_TEXT = ("is", "are", "was", "were")


def choose_words(options: AnalysisOptions, checkpoint: Checkpoint) -> AnalysisOptions:
    """Return ``options`` with their words: those given, else the task's, else those for a text.

    Raise if a probe could not be fitted to them: there are too few of them, or one cannot occur in
    the texts or occurs too rarely.
    """
    task = _select_task(options, checkpoint)
    words = _get_default_words(task) if options.words is None else options.words
    # Raises if they are empty or not different.
    compile_words(words)
    if len(words) < 2 or options.each < FOLDS:
        raise ValueError(
            f"a probe needs at least two --words and, for its folds, --each of at least {FOLDS}; "
            f"got {', '.join(words)} and {options.each}"
        )
    what_is_written = f"what the tokenizer of {checkpoint.name} writes"
    check_words_have_tokens(words, checkpoint.tokenizer, what_is_written)
    if task is not None:
        definition = get_task(str(task.name))
        where = f"the test problems of {checkpoint.name}"
        check_words_have_tokens(words, definition.tokenizer(**task.fields()), where)
        check_frequency(words, options.each, next(draw_problems(task)), where)
    return replace(options, words=words)


def check_frequency(words: Sequence[str], each: int, texts: Sequence[str], where: str) -> None:
    """Raise if a word is so rare in one seed's problems that all seeds would have too few of it."""
    pattern = compile_words(words)
    counts = Counter(match for text in texts for match in pattern.findall(text))
    for word in words:
        # An upper limit of the expected count: with more than this, counts as low as the one seen
        # have a probability below 0.001 (Poisson).
        limit = counts[word] + 3 * math.sqrt(counts[word]) + 7
        if _SEEDS * limit < each:
            raise ValueError(
                f"{word!r} occurs {counts[word]} times in the first {len(texts):,} of {where}, too "
                f"rarely to find {each} occurrences; ask for fewer (--each) or for other --words"
            )


def read_texts(options: AnalysisOptions, checkpoint: Checkpoint) -> tuple[str, Iterator[str]]:
    """Return a name for the texts in errors, and the texts, each of which is one sequence."""
    task = _select_task(options, checkpoint)
    if task is not None:
        return f"the different test problems of {checkpoint.name}", read_problems(task)
    source = options.text or "stdlib"
    where = f"{source} (read up to --documents {options.documents})"
    documents = itertools.islice(open_source(source, streaming=True), options.documents)
    return where, split_documents(documents, options.length, checkpoint.tokenizer)


def find_words(options: AnalysisOptions, checkpoint: Checkpoint) -> list[Occurrence]:
    """Return the occurrences of the words in the texts."""
    where, texts = read_texts(options, checkpoint)
    return find_occurrences(
        texts,
        checkpoint.tokenizer,
        options.words or (),
        options.each,
        longest=options.length,
        where=where,
    )


def read_problems(task: Task) -> Iterator[str]:
    """Yield the test problems of all seeds with their solutions, each of them once."""
    seen = set[int]()
    for texts in draw_problems(task):
        new = [text for text in texts if hash(text) not in seen]
        if not new:
            return
        seen.update(map(hash, new))
        yield from new


def draw_problems(task: Task) -> Iterator[list[str]]:
    """Yield the different test problems of one seed after the other.

    More seeds give more problems of the same split, which rare words need.
    """
    definition = get_task(str(task.name))
    for seed in range(task.seed, task.seed + _SEEDS):
        problems = definition.problems("test", task.test, seed, **task.fields())
        yield list(dict.fromkeys(f"{problem.prompt} {problem.solution}" for problem in problems))


def split_documents(documents: Iterable[str], length: int, tokenizer: Any) -> Iterator[str]:
    """Yield consecutive pieces of ``length`` tokens of each document; drop the remainder."""
    for document in documents:
        encoded = tokenizer(
            document, return_offsets_mapping=True, add_special_tokens=False, verbose=False
        )
        offsets = encoded["offset_mapping"]
        for start in range(0, len(offsets) - length + 1, length):
            yield document[offsets[start][0] : offsets[start + length - 1][1]]


def _get_default_words(task: Task | None) -> tuple[str, ...]:
    if task is None:
        return _WORDS_OF_TEXT
    return get_task(str(task.name)).words(**task.fields())


def _select_task(options: AnalysisOptions, checkpoint: Checkpoint) -> Task | None:
    """Return the task whose problems are the texts; None: a text is read."""
    if options.text is not None or checkpoint.run is None or checkpoint.run.task.name is None:
        return None
    return checkpoint.run.task
