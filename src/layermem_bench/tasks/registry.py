"""Tasks by name: how their problems are generated, encoded as tokens, and graded."""

import functools
import inspect
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from layermem_base.plugins import load_plugins, unknown_name
from layermem_bench.config.run import Task
from layermem_bench.config.typed_dicts import checked
from layermem_bench.tasks import arithmetic, chains, mqar, prosqa
from layermem_bench.tasks.problems import (
    SPLITS,
    Grade,
    Problem,
    Queried,
    commonest_solution,
    grade_answers,
    grade_words,
    require,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# How many solutions are encoded and decoded to check that a tokenizer keeps what is graded.
_CHECKED_SOLUTIONS = 50
# Problems that are encoded to estimate the mean length of all.
_MEASURED_PROBLEMS = 200


@dataclass(frozen=True, kw_only=True)
class TaskDefinition:
    """What there is to know of a task; ``config.parts.Task`` is a run's choice of one."""

    generate: Callable[..., Sequence[Problem]]
    """Returns problems of ``split``, ``count``, ``seed`` and the task's own options. No problem may
    be in two splits: a test problem that was trained on is no test."""
    word_tokenizer: Callable[..., Tokenizer]
    """Returns the task's own tokenizer, given its options, without importing transformers; special
    tokens are <pad>, <end> and <unknown>."""
    grade: Callable[[Any, str], Grade] = grade_words
    """Grades a generated solution of a problem; by default it is right word for word, or not."""
    level: Callable[[Any], int] = lambda problem: len(problem.solution.split())
    """Returns the difficulty of a problem, as a number of operands or steps; of a problem with
    queries, each of whose answers has its own, that of the most difficult one."""
    level_name: str = "words"
    """What ``level`` counts."""
    extra_tokens: int = 8
    """Tokens that a solution may have beyond the longest right one before it is cut."""
    chance: Callable[[Sequence[Any]], float] = commonest_solution
    """Returns the share of right answers of a guess that ignores the question."""
    words: Callable[..., tuple[str, ...]] = lambda **options: ()
    """Returns frequent words of its problems, given its options: the classes of a probe."""

    def tokenizer(self, **options: Any) -> "PreTrainedTokenizerFast":
        # Imported here, so that tasks are listed and described without it.
        from transformers import PreTrainedTokenizerFast

        words = self.word_tokenizer(**options)
        return PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
        )

    def problems(self, split: str, count: int, seed: int, **options: Any) -> Sequence[Problem]:
        """Return problems; an unknown option, or one of the wrong type, is an error."""
        require(split in SPLITS, f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        require(count >= 0, f"count must be at least 0, got {count}")
        parameters = self._parameters()
        if unknown := sorted(set(options) - set(parameters)):
            raise ValueError(f"no option {', '.join(unknown)}; there are {', '.join(parameters)}")
        values = {
            name: checked(parameters[name].annotation, value, name)
            for name, value in options.items()
        }
        return self.generate(split=split, count=count, seed=seed, **values)

    def describe(self, problems: Sequence[Problem]) -> dict[str, Any]:
        """Return statistics of problems."""
        words = [len(f"{problem.prompt} {problem.solution}".split()) for problem in problems]
        levels = Counter(
            level
            for problem in problems
            for level in getattr(problem, "levels", None) or [self.level(problem)]
        )
        return {
            "problems": len(problems),
            "different prompts": len({problem.prompt for problem in problems}),
            "words: fewest, mean, most": [min(words), statistics.fmean(words), max(words)],
            self.level_name: {n: levels[n] / levels.total() for n in sorted(levels)},
            "commonest solution": commonest_solution(problems),
            "a guess": self.chance(problems),
        }

    def options(self) -> dict[str, Any]:
        return {name: option.default for name, option in self._parameters().items()}

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.generate, eval_str=True).parameters.values()
        return {p.name: p for p in parameters if p.name not in ("split", "count", "seed")}


def encode(tokenizer: Any, problems: Sequence[Problem]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of prompts and of solutions; of problems with queries, one for each word."""
    one_a_word = bool(select_queried(problems))
    prompts = _encode_texts(tokenizer, [p.prompt for p in problems], one_a_word)
    return prompts, _encode_texts(tokenizer, [p.solution for p in problems], one_a_word)


def _encode_texts(tokenizer: Any, texts: list[str], one_a_word: bool) -> list[list[int]]:
    encoded: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    for text, ids in zip(texts, encoded, strict=True):
        if unknown is not None and unknown in ids:
            detailed = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            start, end = detailed["offset_mapping"][ids.index(unknown)]
            raise ValueError(
                f"the tokenizer has no token for {text[start:end]!r} in {text!r:.60}; choose "
                "problems within its vocabulary, or another --task.tokenizer"
            )
        if one_a_word and len(ids) != len(text.split()):
            raise ValueError(
                f"the tokenizer makes {len(ids)} tokens of the {len(text.split())} words of "
                f"{text!r:.60}; this task needs one for each: leave --task.tokenizer out"
            )
    return encoded


def select_queried(problems: Sequence[Problem]) -> list[Queried]:
    """Return the problems if they have queries, and else an empty list."""
    return [problem for problem in problems if isinstance(problem, Queried)]


def check_tokenizer(task: TaskDefinition, tokenizer: Any, problems: Sequence[Problem]) -> None:
    """Raise where right solutions, encoded and decoded by a tokenizer, would be graded as wrong."""
    sample = problems[:_CHECKED_SOLUTIONS]
    _, solutions = encode(tokenizer, sample)
    texts = tokenizer.batch_decode(solutions, skip_special_tokens=True)
    for problem, text in zip(sample, texts, strict=True):
        if not task.grade(problem, text).steps:
            raise ValueError(
                f"the tokenizer decodes {problem.solution!r:.60} as {text!r:.60}, which is graded "
                "as wrong; choose a --task.tokenizer that keeps letters, digits and punctuation"
            )


# The splits of a run, and those that a study's other runs have.
@functools.lru_cache(maxsize=8)
def problems_of(task: Task, split: str) -> Sequence[Problem]:
    """Return the problems of a split of a run's task."""
    count = {"train": task.examples, "validation": task.validation, "test": task.test}[split]
    return get_task(str(task.name)).problems(split, count, task.seed, **task.fields())


def vocabulary_and_length(task: Task, tokenizer: Any = None) -> tuple[int, float]:
    """Return the size of the vocabulary and an estimate of the mean tokens of a problem.

    ``tokenizer`` None: the task's own, and transformers is not imported.
    """
    few = min(_MEASURED_PROBLEMS, task.examples)
    problems = problems_of(replace(task, examples=few, repeated=0, repeats=1), "train")
    solutions = [] if select_queried(problems) else [problem.solution for problem in problems]
    texts = [*(problem.prompt for problem in problems), *solutions]
    if tokenizer is None:
        words = get_task(str(task.name)).word_tokenizer(**task.fields())
        size, tokens = words.get_vocab_size(), sum(map(len, words.encode_batch(texts)))
    else:
        ids = _encode_texts(tokenizer, texts, one_a_word=False)
        size, tokens = len(tokenizer), sum(map(len, ids))
    # The end token follows every solution, or every sequence whose answers stand beside it.
    return size, tokens / len(problems) + 1


def get_task(name: str) -> TaskDefinition:
    tasks = _TASKS if name in _TASKS else all_tasks()
    if name not in tasks:
        raise unknown_name("task", name, tasks)
    return tasks[name]


def all_tasks() -> dict[str, TaskDefinition]:
    """Return all tasks by name, those of plugins last."""
    load_plugins()
    return dict(_TASKS)


def add_task(name: str, definition: TaskDefinition) -> None:
    """Make a task known by a name, which configs and commands then take."""
    if name in _TASKS:
        raise ValueError(f"a task named {name!r} is known already; choose another name")
    _TASKS[name] = definition


def _with_queries(possible_answers: Callable[[Queried], set[str]], **fields: Any) -> TaskDefinition:
    """Return a task whose answers are read at queries, each among those that are possible."""
    return TaskDefinition(
        **fields,
        grade=lambda problem, text: grade_answers(problem, text, possible_answers(problem)),
        level=lambda problem: max(problem.levels),
        extra_tokens=0,
        chance=lambda problems: statistics.fmean(1 / len(possible_answers(p)) for p in problems),
    )


_TASKS: dict[str, TaskDefinition] = {
    "arithmetic": TaskDefinition(
        generate=partial(arithmetic.generate, operands=4),
        word_tokenizer=arithmetic.word_tokenizer,
        grade=arithmetic.grade,
        level=lambda example: example.operands,
        level_name="operands",
        chance=arithmetic.chance,
        words=lambda **_: ("1", "2", "3", "4"),
    ),
    "prosqa": TaskDefinition(
        generate=prosqa.generate,
        word_tokenizer=prosqa.word_tokenizer,
        grade=prosqa.grade,
        level=lambda record: len(record.steps),
        level_name="steps",
        extra_tokens=64,
        chance=lambda records: 0.5,
        words=lambda **_: tuple(prosqa.NAMES[:4]),
    ),
    "mqar": _with_queries(
        mqar.possible_answers,
        generate=mqar.generate,
        word_tokenizer=mqar.word_tokenizer,
        level_name="words back, up to",
        words=lambda **_: ("k0", "k1", "k2", "k3"),
    ),
    "chains": _with_queries(
        chains.possible_answers,
        generate=chains.generate,
        word_tokenizer=chains.word_tokenizer,
        level_name="statements",
        words=lambda **_: tuple(chains.VARIABLES[:4]),
    ),
}
