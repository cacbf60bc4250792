"""Test which texts and words are analyzed, at which tokens words are found, and what is refused."""

import itertools
import json
import tracemalloc
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import transformers
from recorded import record
from tiny import TINY
from tokenizers import processors

from layermem_bench import cli
from layermem_bench.analysis import analyze as analysis
from layermem_bench.analysis import texts as texts_module
from layermem_bench.analysis.checkpoints import Checkpoint
from layermem_bench.analysis.texts import (
    Occurrence,
    check_frequency,
    check_words_have_tokens,
    choose_words,
    compile_words,
    draw_problems,
    find_occurrences,
    find_words,
    read_problems,
    split_documents,
)
from layermem_bench.config.run import Task
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.analysis import AnalysisOptions
from layermem_bench.tasks import prosqa
from layermem_bench.tasks.registry import all_tasks, encode, get_task

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizer" / "gpt2"
TEXTS = ["What was is.", "This is his; it was, and they were.", "were they? was it? is it?"]
TOKENIZERS = ["bytes", *([str(GPT2)] if GPT2.exists() else [])]


def a_run_on_sums(folder, **changes):
    """Record a run on sums that has ended, without weights; return its folder."""
    options = ("operands=2", *changes.pop("options", ()))
    task = Task(name="arithmetic", examples=30, validation=5, test=60, options=options)
    path = record(folder / "run", task=replace(task, **changes))
    transformers.LlamaConfig(**TINY).save_pretrained(path / "final")
    fields = task.fields()
    own = get_task(task.name).tokenizer(**fields)
    (load_tokenizer("bytes") if changes else own).save_pretrained(path / "final")
    return path


@pytest.mark.parametrize(
    ("more", "changes", "message"),
    [
        (
            ["--words", "is", "1"],
            {},
            "'is' cannot occur in what the tokenizer of run writes",
        ),
        (["--words", "1", "201"], {}, "'201' cannot occur in what the tokenizer of run writes"),
        (
            ["--words", "is", "1"],
            {"tokenizer": "bytes"},
            "'is' cannot occur in the test problems of run: there is no token for it; give other",
        ),
        (
            ["--words", "1", "193", "--each", "9999"],
            {},
            r"'1' occurs \d+ times in the first 60 of the test problems of run, too rarely to find "
            r"9999 occurrences; ask for fewer \(--each\) or for other --words",
        ),
        (["--words", "1", "1"], {}, "words must be different and not empty"),
        (["--words", "1"], {}, "a probe needs at least two --words"),
        (
            ["--words", "1", "2", "--each", "4"],
            {},
            "for its folds, --each of at least 5; got 1, 2 and 4",
        ),
    ],
)
def test_unusable_words_are_refused_before_a_model_is_loaded(
    more, changes, message, tmp_path, monkeypatch
):
    path = a_run_on_sums(tmp_path, **changes)
    monkeypatch.setattr(analysis, "load_model", None)
    monkeypatch.setattr(analysis, "find_words", None)
    with pytest.raises(SystemExit, match=message):
        cli.main(["analyze", str(path), *more])


def test_the_words_of_every_task_are_frequent_in_its_problems():
    for name, definition in all_tasks().items():
        fields = {"operands": 6} if name == "arithmetic" else {}
        texts = next(draw_problems(Task(name=name, test=200)))
        for options in ({}, fields):
            words = definition.words(**options)
            check_words_have_tokens(words, definition.tokenizer(**options), name)
        # The 2,000 problems of a run's test set have more than 200, which is the default.
        check_frequency(words, 200, texts, name)
        counts = Counter(match for text in texts for match in compile_words(words).findall(text))
        assert len(words) == 4 and min(counts[word] for word in words) >= 20, (name, counts)
    assert get_task("arithmetic").words(value_max=2) == ("0", "1", "2")


def a_checkpoint():
    """Return a checkpoint of a model that was not trained here, whose weights are nowhere."""
    return Checkpoint(name="model", location="nowhere", tokenizer=load_tokenizer("bytes"), run=None)


def test_a_text_is_read_for_the_words_of_the_paper():
    options = choose_words(AnalysisOptions(text="stdlib"), a_checkpoint())
    assert options.words == ("is", "are", "was", "were")


@pytest.mark.parametrize("name", ["arithmetic", "prosqa"])
@pytest.mark.parametrize("tokenizer", ["own", "bytes"])
def test_a_problem_is_read_as_it_is_trained_on(name, tokenizer):
    definition = get_task(name)
    tokenizer = definition.tokenizer() if tokenizer == "own" else load_tokenizer("bytes")
    problems = definition.problems("test", 20, 0)
    read = next(draw_problems(Task(name=name, test=20)))
    for text, prompt, solution in zip(read, *encode(tokenizer, problems), strict=True):
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == [*prompt, *solution]


def test_a_problem_is_read_once(tmp_path):
    few = prosqa.generate(3, 0)
    file = tmp_path / "few.json"
    file.write_text(json.dumps([asdict(record) for record in [*few, *few]]))
    task = Task(name="prosqa", test=6, options=(f"test={file}",))
    texts = list(read_problems(task))
    assert texts == [f"{record.prompt}{record.solution}" for record in few]
    # Other seeds give other problems, until there are no more.
    texts = list(read_problems(Task(name="arithmetic", test=60, options=("operands=2",))))
    assert len(texts) == len(set(texts)) > 60


@pytest.mark.parametrize("name", ["mqar", "chains"])
def test_answers_to_queries_are_not_part_of_a_text(name):
    # They are labels, which no model reads.
    task = Task(name=name, test=3)
    problems = get_task(name).problems("test", 3, task.seed)
    assert next(draw_problems(task)) == [problem.prompt for problem in problems]


def test_no_more_documents_are_read_than_the_options_say(monkeypatch):
    read = 0

    def documents(_, *, streaming):
        # A dataset on the hub is fetched only as far as it is read.
        assert streaming
        nonlocal read
        for read in range(1, 10**9):
            yield f"w1 {read:09} " * 3

    monkeypatch.setattr(texts_module, "open_source", documents)
    options = AnalysisOptions(text="x", words=("w1", "w2"), each=5, documents=300, length=24)
    with pytest.raises(
        ValueError, match=r"'w2' never occurs in x \(read up to --documents 300\); give"
    ):
        find_words(options, a_checkpoint())
    assert read == 300


def test_texts_without_a_word_are_not_kept(monkeypatch):
    texts = itertools.chain((f"{i} {'x' * 10_000}" for i in range(1000)), ["it is"])
    monkeypatch.setattr(texts_module, "read_texts", lambda *_: ("x", texts))
    checkpoint = a_checkpoint()
    tracemalloc.start()
    occurrences = find_words(AnalysisOptions(words=("is",), each=1), checkpoint)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [occurrence.text for occurrence in occurrences] == ["it is"] and peak < 10**6


def test_documents_are_split_without_the_tokens_that_a_tokenizer_adds():
    tokenizer = load_tokenizer("bytes")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 256)]
    )
    assert len(tokenizer("abcdef")["input_ids"]) == 8
    assert list(split_documents(["abcdef", "g"], 2, tokenizer)) == ["ab", "cd", "ef"]


@pytest.mark.parametrize("name", TOKENIZERS, ids=lambda name: Path(name).name)
def test_the_token_ends_the_word(name):
    tokenizer = load_tokenizer(name)
    occurrences = find_occurrences(TEXTS, tokenizer, ["is", "was"], 3)
    at = [(TEXTS.index(occurrence.text), occurrence.word) for occurrence in occurrences]
    assert at == [(0, 1), (0, 0), (1, 0), (1, 1), (2, 1), (2, 0)]
    for occurrence in occurrences:
        ids = tokenizer(occurrence.text)["input_ids"]
        read = tokenizer.decode(ids[: occurrence.token + 1])
        assert read.endswith(["is", "was"][occurrence.word])


def test_letters_of_several_bytes_do_not_shift_tokens():
    tokenizer = load_tokenizer("bytes")
    (occurrence,) = find_occurrences(["naïve, was is"], tokenizer, ["is"], 1)
    assert occurrence.token == len("naïve, was is".encode()) - 1


def test_numbers_are_whole_words_and_tokens_beyond_the_longest_are_not_searched():
    tokenizer = get_task("arithmetic").tokenizer()
    texts = ["(1 + 101) * 2 = 102 * 2", "11 - 1 = 10"]
    occurrences = find_occurrences(texts, tokenizer, ["1", "2"], 1)
    assert occurrences == [
        Occurrence(text=texts[0], token=1, word=0),
        Occurrence(text=texts[0], token=6, word=1),
    ]
    with pytest.raises(ValueError, match="'10' never occurs"):
        find_occurrences(texts, tokenizer, ["10"], 1, longest=4)


@pytest.mark.parametrize(
    ("words", "each", "message"),
    [
        (["were"], 3, "'were' occurs 2 times in the text, 3 were asked for; give more text or ask"),
        (["are", "is"], 1, "'are' never occurs in the text"),
        (["is", "is"], 1, "words must be different and not empty, got 'is', 'is'"),
        ([], 1, "there are no words"),
        ([""], 1, "words must be different and not empty"),
    ],
)
def test_words_that_do_not_occur_often_enough_are_refused(words, each, message):
    with pytest.raises(ValueError, match=message):
        find_occurrences(TEXTS, load_tokenizer("bytes"), words, each)


def test_texts_are_read_as_far_as_needed():
    endless = (f"{i} it is" for i in itertools.count())
    assert len(find_occurrences(endless, load_tokenizer("bytes"), ["is"], 5)) == 5


def test_a_repeated_text_is_left_out():
    tokenizer = load_tokenizer("bytes")
    again = [text for text in TEXTS for _ in range(3)]
    occurrences = find_occurrences(again, tokenizer, ["is", "was"], 3)
    assert [occurrence.text for occurrence in occurrences] == [
        text for text in TEXTS for _ in range(2)
    ]
    with pytest.raises(ValueError, match="'were' occurs 2 times in songs, 3 were asked for"):
        find_occurrences(again, tokenizer, ["were"], 3, where="songs")


def test_texts_that_begin_alike_count_once():
    """A causal model computes the same vector at a word, whatever follows."""
    tokenizer = load_tokenizer("bytes")
    texts = ["it is here", "it is there, it was", "it is there, it is", "so it is"]
    occurrences = find_occurrences(texts, tokenizer, ["is", "was"], 1)
    assert [(texts.index(each.text), each.token) for each in occurrences] == [(0, 4), (1, 18)]
    occurrences = find_occurrences(texts, tokenizer, ["is"], 3)
    assert [(texts.index(each.text), each.token) for each in occurrences] == [
        (0, 4),
        (2, 17),
        (3, 7),
    ]
    with pytest.raises(ValueError, match="'is' occurs 3 times in the text, 4 were asked for"):
        find_occurrences(texts, tokenizer, ["is"], 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(all_tasks()))
def test_a_run_on_a_task_has_enough_of_its_words(name):
    task, definition = Task(name=name), get_task(name)
    words, each = definition.words(**task.fields()), AnalysisOptions().each
    tokenizer = definition.tokenizer(**task.fields())
    occurrences = find_occurrences(read_problems(task), tokenizer, words, each, 128)
    assert len(occurrences) == len(words) * each


def test_a_word_without_a_token_is_refused_but_not_one_with_a_token_after_a_space():
    # ProsQA's tokenizer has " lempus" and no "lempus".
    check_words_have_tokens(["lempus", "Tom", "is"], get_task("prosqa").tokenizer(), "problems")
    check_words_have_tokens(["anything"], load_tokenizer("bytes"), "a text")
    with pytest.raises(ValueError, match="'was' cannot occur in problems: there is no token for"):
        check_words_have_tokens(["Tom", "was"], get_task("prosqa").tokenizer(), "problems")
