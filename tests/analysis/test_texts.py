"""Which texts and words are analyzed, at which tokens words are found, and what is refused."""

import itertools
import json
from collections import Counter
from dataclasses import asdict

import pytest

from layermem_bench.analysis import texts as texts_module
from layermem_bench.analysis.result import AnalysisOptions
from layermem_bench.analysis.texts import (
    Occurrence,
    choose_texts,
    find_occurrences,
    read_problems,
)
from layermem_bench.config.run import Run, Task
from layermem_bench.run.trained_models import Checkpoint
from layermem_bench.tasks import prosqa
from layermem_bench.tasks.registry import all_tasks, encode, get_task
from layermem_bench.text.tokenizers import load_tokenizer

TEXTS = ["What was is.", "This is his; it was, and they were.", "were they? was it? is it?"]


def a_checkpoint(task=None):
    """Return a checkpoint whose weights are nowhere."""
    run = None if task is None else Run(preset="p", task=task)
    return Checkpoint(name="model", location="", tokenizer=load_tokenizer("bytes"), run=run)


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        (None, {}, ("is", "are", "was", "were")),
        (None, {"words": ("a", "in")}, ("a", "in")),
        (Task(name="arithmetic"), {}, ("1", "2", "3", "4")),
        (Task(name="arithmetic"), {"text": "stdlib"}, ("is", "are", "was", "were")),
        (None, {"words": ("is", "is")}, None),
        (None, {"each": 4}, None),
    ],
)
def test_words_are_those_given_or_of_the_task_or_of_the_paper(task, options, words, monkeypatch):
    documents = (f"{i:02} is a {i:02} are in {i:02} was a {i:02} were in " for i in range(99))
    monkeypatch.setattr(texts_module, "open_source", lambda *_, **__: documents)
    options = AnalysisOptions(**{"each": 5, "length": 38, "sequences": 2, **options})
    if words is None:
        with pytest.raises(ValueError, match="--words.*--each"):
            choose_texts(options, a_checkpoint(task))
        return
    texts = choose_texts(options, a_checkpoint(task))
    assert texts.words == words and len(texts.sequences) == 2
    assert Counter(each.word for each in texts.occurrences) == dict.fromkeys(range(len(words)), 5)


def test_the_words_of_every_task_are_frequent_in_its_problems():
    for name, definition in all_tasks().items():
        task, tokenizer = Task(name=name, test=200), definition.tokenizer()
        found = find_occurrences(read_problems(task), tokenizer, definition.words(), 20)
        assert len(found) == 4 * 20, name


@pytest.mark.parametrize("name", ["arithmetic", "prosqa", "mqar", "chains"])
@pytest.mark.parametrize("tokenizer", ["own", "bytes"])
def test_a_problem_is_read_as_it_is_trained_on(name, tokenizer):
    definition = get_task(name)
    tokenizer = definition.tokenizer() if tokenizer == "own" else load_tokenizer("bytes")
    problems = definition.problems("test", 20, 0)
    read = itertools.islice(read_problems(Task(name=name, test=20)), 20)
    if hasattr(problems[0], "queries"):
        # Answers to queries are labels, which no model reads.
        assert list(read) == [problem.prompt for problem in problems]
        return
    for text, prompt, solution in zip(read, *encode(tokenizer, problems), strict=True):
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == [*prompt, *solution]


def test_a_problem_is_read_once(tmp_path):
    few, file = prosqa.generate(3, 0), tmp_path / "few.json"
    file.write_text(json.dumps([asdict(record) for record in [*few, *few]]))
    task = Task(name="prosqa", test=6, options=(f"test={file}",))
    assert list(read_problems(task)) == [f"{record.prompt}{record.solution}" for record in few]
    # Other seeds give other problems, until there are no more.
    texts = list(read_problems(Task(name="arithmetic", test=60, options=("operands=2",))))
    assert len(texts) == len(set(texts)) > 60


def test_a_text_is_read_no_further_than_its_first_documents(monkeypatch):
    read = 0

    def documents(_, how):
        # A dataset on the hub is fetched only as far as it is read.
        assert how.streaming
        nonlocal read
        for read in range(1, 10**9):
            yield f"w1 {read:09} " * 3

    monkeypatch.setattr(texts_module, "open_source", documents)
    monkeypatch.setattr(texts_module, "_DOCUMENTS", 300)
    options = AnalysisOptions(text="x", words=("w1", "w2"), length=24, each=5)
    with pytest.raises(ValueError, match="'w2' occurs 0 times in the first 300 documents of x"):
        choose_texts(options, a_checkpoint())
    assert read == 300


def test_the_token_ends_the_word():
    tokenizer = load_tokenizer("bytes")
    occurrences = find_occurrences(TEXTS, tokenizer, ["is", "was"], 3)
    at = [(TEXTS.index(occurrence.text), occurrence.word) for occurrence in occurrences]
    assert at == [(0, 1), (0, 0), (1, 0), (1, 1), (2, 1), (2, 0)]
    for occurrence in occurrences:
        read = tokenizer.decode(tokenizer(occurrence.text)["input_ids"][: occurrence.token + 1])
        assert read.endswith(["is", "was"][occurrence.word])
    # Letters of several bytes shift nothing.
    (occurrence,) = find_occurrences(["naïve, was is"], tokenizer, ["is"], 1)
    assert occurrence.token == len("naïve, was is".encode()) - 1


def test_numbers_are_whole_words_and_tokens_beyond_the_longest_are_not_searched():
    tokenizer = get_task("arithmetic").tokenizer()
    texts = ["(1 + 101) * 2 = 102 * 2", "11 - 1 = 10"]
    assert find_occurrences(texts, tokenizer, ["1", "2"], 1) == [
        Occurrence(text=texts[0], token=1, word=0),
        Occurrence(text=texts[0], token=6, word=1),
    ]
    with pytest.raises(ValueError, match="'10' occurs 0 times"):
        find_occurrences(texts, tokenizer, ["10"], 1, longest=4)


def test_texts_that_begin_alike_count_once():
    """A causal model computes the same vector at a word, whatever follows."""
    tokenizer = load_tokenizer("bytes")
    texts = ["it is here", "it is there, it was", "it is there, it is", "so it is"]
    occurrences = find_occurrences(texts, tokenizer, ["is", "was"], 1)
    assert [(texts.index(each.text), each.token) for each in occurrences] == [(0, 4), (1, 18)]
    occurrences = find_occurrences([*texts, *texts], tokenizer, ["is"], 3)
    at = [(texts.index(each.text), each.token) for each in occurrences]
    assert at == [(0, 4), (2, 17), (3, 7)]
    with pytest.raises(ValueError, match="'is' occurs 3 times in the text, 4 were asked for"):
        find_occurrences([*texts, *texts], tokenizer, ["is"], 4)
