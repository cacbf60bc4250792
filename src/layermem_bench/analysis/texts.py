"""The texts and words of an analysis, and the tokens at which the words end in the texts.

    "(1 + 101) * 2"   tokens ( 1 + 101 ) * 2   word "1": token 1, not the 1 in 101

The texts are the test problems of the task that a run was trained on, or else sequences of a text.
A word's token is the one that holds its last letter: there a causal model has read all of the word.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from layermem_bench.analysis.result import FOLDS, AnalysisOptions
from layermem_bench.config.run import Data, Task
from layermem_bench.run.trained_models import Checkpoint
from layermem_bench.tasks.problems import Queried
from layermem_bench.tasks.registry import get_task
from layermem_bench.text.sources import open_source

# Seeds of which problems are drawn in search of rare words, at most.
_SEEDS = 50
# Documents of a text that are searched for the words, at most.
_DOCUMENTS = 100_000
# Words of the paper's probe, which are used where a text is read.
_WORDS_OF_TEXT = ("is", "are", "was", "were")


class Occurrence(NamedTuple):
    """One occurrence of a word in a text."""

    text: str
    token: int
    """Index of the token that holds the word's last letter."""
    word: int
    """Index of the word."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What is analyzed: texts, each of which is one sequence, and the words that occur in them."""

    sequences: Sequence[str]
    words: tuple[str, ...]
    occurrences: Sequence[Occurrence]


def choose_texts(options: AnalysisOptions, checkpoint: Checkpoint) -> Texts:
    """Return the texts of the options, with their words: those given, else the task's, else those
    for a text."""
    task = checkpoint.run.task if checkpoint.run and options.text is None else Task()
    source, words, tokenizer = options.text or "stdlib", options.words, checkpoint.tokenizer
    if words is None:
        words = get_task(task.name).words(**task.fields()) if task.name else _WORDS_OF_TEXT
    if len(set(words)) < max(2, len(words)) or not all(words) or options.each < FOLDS:
        raise ValueError(
            "a probe needs at least two --words, which differ, and, for its folds, --each of at "
            f"least {FOLDS}; got {', '.join(map(repr, words))} and {options.each}"
        )
    if task.name:
        where, pieces = f"the test problems of {checkpoint.name}", read_problems(task)
    else:
        where = f"the first {_DOCUMENTS:,} documents of {source}"
        documents = itertools.islice(open_source(source, Data(streaming=True)), _DOCUMENTS)
        pieces = split_documents(documents, options.length, tokenizer)
    texts = list(itertools.islice(pieces, options.sequences))
    if not texts:
        raise ValueError(
            f"there is no sequence of {options.length} tokens in {where}; lower --length"
        )
    read = itertools.chain(texts, pieces)
    occurrences = find_occurrences(read, tokenizer, words, options.each, options.length, where)
    return Texts(sequences=texts, words=words, occurrences=occurrences)


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
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)")
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
            return occurrences
    rarest = min(counts, key=lambda word: counts[word])
    raise ValueError(
        f"{rarest!r} occurs {counts[rarest]} times in {where}, {each} were asked for; give more "
        "text, ask for fewer (--each), or for other --words"
    )


def read_problems(task: Task) -> Iterator[str]:
    """Yield the texts of the test problems of all seeds, each of them once."""
    definition, seen = get_task(str(task.name)), set[int]()
    for seed in range(task.seed, task.seed + _SEEDS):
        problems = definition.problems("test", task.test, seed, **task.fields())
        # The prompt of a problem with queries is the whole sequence; its answers are labels.
        texts = (
            problem.prompt
            if isinstance(problem, Queried)
            else f"{problem.prompt}{problem.solution}"
            for problem in problems
        )
        new = {hash(text): text for text in texts if hash(text) not in seen}
        if not new:
            return
        seen.update(new)
        yield from new.values()


def split_documents(documents: Iterable[str], length: int, tokenizer: Any) -> Iterator[str]:
    """Yield consecutive pieces of ``length`` tokens of each document; drop the remainder."""
    for document in documents:
        offsets = tokenizer(
            document, return_offsets_mapping=True, add_special_tokens=False, verbose=False
        )["offset_mapping"]
        for start in range(0, len(offsets) - length + 1, length):
            yield document[offsets[start][0] : offsets[start + length - 1][1]]
