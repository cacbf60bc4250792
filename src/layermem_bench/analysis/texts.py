"""The texts and words of an analysis, and the tokens at which the words end in the texts.

    "(1 + 101) * 2"   tokens ( 1 + 101 ) * 2   word "1": token 1, not the 1 in 101

The texts are the test problems of the task that a run was trained on, or else sequences of a text.
A word's token is the one that holds its last letter: there a causal model has read all of the word.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layermem_bench.analysis.checkpoints import Checkpoint
from layermem_bench.analysis.separability import FOLDS
from layermem_bench.config.run import Task
from layermem_bench.data.sources import open_source
from layermem_bench.results.analysis import AnalysisOptions
from layermem_bench.tasks.problems import Problem, Queried
from layermem_bench.tasks.registry import get_task

# Seeds of which problems are drawn in search of rare words, at most.
_SEEDS = 50
# Words of the paper's probe, which are used where a text is read.
_WORDS_OF_TEXT = ("is", "are", "was", "were")


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """One occurrence of a word in a text."""

    text: str
    """The whole text."""
    token: int
    """Index of the token that holds the word's last letter."""
    word: int
    """Index of the word."""


def choose_words(options: AnalysisOptions, checkpoint: Checkpoint) -> AnalysisOptions:
    """Return ``options`` with their words: those given, else the task's, else those for a text.

    Raise if there are too few for a probe, or one cannot occur in the texts or occurs too rarely.
    """
    task = _select_task(options, checkpoint)
    words = options.words
    if words is None:
        words = get_task(str(task.name)).words(**task.fields()) if task else _WORDS_OF_TEXT
    # Raises if they are empty or not different.
    compile_words(words)
    if len(words) < 2 or options.each < FOLDS:
        raise ValueError(
            f"a probe needs at least two --words and, for its folds, --each of at least {FOLDS}; "
            f"got {', '.join(words)} and {options.each}"
        )
    written = f"what the tokenizer of {checkpoint.name} writes"
    check_words_have_tokens(words, checkpoint.tokenizer, written)
    if task is not None:
        definition = get_task(str(task.name))
        where = f"the test problems of {checkpoint.name}"
        check_words_have_tokens(words, definition.tokenizer(**task.fields()), where)
        check_frequency(words, options.each, next(draw_problems(task)), where)
    return replace(options, words=words)


def compile_words(words: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of ``words`` as a whole word."""
    if not words:
        raise ValueError("there are no words to look for; name some: --words A B")
    if len(set(words)) < len(words) or not all(words):
        raise ValueError(
            f"words must be different and not empty, got {', '.join(map(repr, words))}"
        )
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(w) for w in words)})(?!\w)")


def check_words_have_tokens(words: Sequence[str], tokenizer: Any, where: str) -> None:
    """Raise if a word becomes the unknown token both with a space before it and without one."""
    unknown = tokenizer.unk_token_id
    for word in words if unknown is not None else ():
        spellings = tokenizer([word, f" {word}"], add_special_tokens=False)["input_ids"]
        if all(unknown in ids for ids in spellings):
            raise ValueError(
                f"{word!r} cannot occur in {where}: there is no token for it; give other words"
            )


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
    words, each = options.words or (), options.each
    return find_occurrences(texts, checkpoint.tokenizer, words, each, options.length, where)


def find_occurrences(
    texts: Iterable[str],
    tokenizer: Any,
    words: Sequence[str],
    each: int,
    longest: int | None = None,
    where: str = "the text",
) -> list[Occurrence]:
    """Return the first ``each`` occurrences of every word as a whole word.

    Tokens of a text beyond the first ``longest`` are not searched. Of texts that begin alike up to
    a word, only the first counts: a causal model has the same vector there in all of them, and a
    probe trained on one would know the others. ``texts`` is read only as far as needed. ``where``
    names the texts in errors.
    """
    pattern = compile_words(words)
    counts, occurrences = dict.fromkeys(words, 0), list[Occurrence]()
    used = set[tuple[int, ...]]()
    for text in texts:
        matches = [match for match in pattern.finditer(text) if counts[match[0]] < each]
        if not matches:
            continue
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        # Of several tokens that hold a letter (its bytes) the last one.
        token_of_letter = {
            letter: i
            for i, (start, end) in enumerate(encoded["offset_mapping"][:longest])
            for letter in range(start, end)
        }
        for match in matches:
            word, token = match[0], token_of_letter.get(match.end() - 1)
            if token is None or counts[word] == each:
                continue
            prefix = tuple(encoded["input_ids"][: token + 1])
            if prefix not in used:
                used.add(prefix)
                occurrences.append(Occurrence(text=text, token=token, word=words.index(word)))
                counts[word] += 1
        if min(counts.values()) == each:
            break
    for name, count in counts.items():
        if not count:
            raise ValueError(f"{name!r} never occurs in {where}; give more text or another word")
        if count < each:
            raise ValueError(
                f"{name!r} occurs {count} times in {where}, {each} were asked for; give more text "
                f"or ask for fewer (--each {count})"
            )
    return occurrences


def read_problems(task: Task) -> Iterator[str]:
    """Yield the texts of the test problems of all seeds, each of them once."""
    seen = set[int]()
    for texts in draw_problems(task):
        new = [text for text in texts if hash(text) not in seen]
        if not new:
            return
        seen.update(map(hash, new))
        yield from new


def draw_problems(task: Task) -> Iterator[list[str]]:
    """Yield the different test problems of one seed after the other, as rare words need many."""
    definition = get_task(str(task.name))
    for seed in range(task.seed, task.seed + _SEEDS):
        problems = definition.problems("test", task.test, seed, **task.fields())
        yield list(dict.fromkeys(map(_text_of, problems)))


def _text_of(problem: Problem) -> str:
    """Return the sequence that a model is trained on."""
    # The prompt of a problem with queries is the whole sequence; its answers are labels.
    if isinstance(problem, Queried):
        return problem.prompt
    return f"{problem.prompt}{problem.solution}"


def split_documents(documents: Iterable[str], length: int, tokenizer: Any) -> Iterator[str]:
    """Yield consecutive pieces of ``length`` tokens of each document; drop the remainder."""
    for document in documents:
        offsets = tokenizer(
            document, return_offsets_mapping=True, add_special_tokens=False, verbose=False
        )["offset_mapping"]
        for start in range(0, len(offsets) - length + 1, length):
            yield document[offsets[start][0] : offsets[start + length - 1][1]]


def _select_task(options: AnalysisOptions, checkpoint: Checkpoint) -> Task | None:
    """Return the task whose problems are the texts; None: a text is read."""
    if options.text is not None or checkpoint.run is None or checkpoint.run.task.name is None:
        return None
    return checkpoint.run.task
