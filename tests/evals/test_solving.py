"""Solving problems: shares, intervals and faults of attempts."""

from dataclasses import replace

import pytest
from tokenizers import normalizers

from layermem_bench.config.run import Task
from layermem_bench.evals import solving
from layermem_bench.run.learning import ProblemDataset, build_problem_datasets
from layermem_bench.tasks.registry import all_tasks, check_tokenizer, get_task
from layermem_bench.text.tokenizers import load_tokenizer

SMALL = {"arithmetic": ("operands=3",), "prosqa": (), "mqar": (), "chains": ()}
# Their answers are read inside the sequence, and every word is one token.
QUERIED = ("mqar", "chains")


class Parrot:
    """Stands for the generation: writes what a function of the problem's number says."""

    def __init__(self, monkeypatch, tokenizer, texts):
        ids = [tokenizer(text)["input_ids"] for text in texts]
        for name in ("greedy", "read_answers"):
            monkeypatch.setattr(solving, name, lambda *_, **__: ids)


def test_a_special_token_in_a_solution_is_no_right_solution(monkeypatch):
    task, asked = get_task("arithmetic"), Task(name="arithmetic", test=4, options=("operands=2",))
    tokenizer = task.tokenizer(**asked.fields())
    problems = task.problems("test", 4, 0, **asked.fields())
    Parrot(monkeypatch, tokenizer, [f"{problem.solution} <unknown>" for problem in problems])
    solved, _ = solving.evaluate(None, tokenizer, asked, "test")
    assert solved.steps == 0


@pytest.mark.parametrize("name", all_tasks())
def test_right_and_wrong_solutions_are_told_apart(name, monkeypatch):
    task, asked = get_task(name), Task(name=name, test=40, options=SMALL[name])
    tokenizer = task.tokenizer(**asked.fields())
    problems = task.problems("test", 40, 0, **asked.fields())
    texts = [p.solution if i % 4 else "" for i, p in enumerate(problems)]
    Parrot(monkeypatch, tokenizer, texts)
    solved, attempts = solving.evaluate(None, tokenizer, asked, "test")
    assert (solved.accuracy, solved.steps, solved.count) == (0.75, 0.75, 40)
    low, high = solved.interval
    assert 0.55 < low < 0.75 < high < 0.9
    assert sum(solved.faults.values()) == 10
    (levels,) = solved.by.values()
    if name not in QUERIED:
        assert sum(level.count for level in levels.values()) == 40
    assert solved.chance <= 0.5
    rows = [attempt.row() for attempt in attempts]
    assert [row["answer"] for row in rows] == [bool(i % 4) for i in range(40)]
    columns = {"prompt", "solution", "text", "level", "answer", "steps", "fault", "at"}
    assert columns | ({"right"} if name in QUERIED else set()) == set(rows[0])


@pytest.mark.parametrize("name", ["arithmetic", "prosqa"])
def test_an_answer_without_its_steps_is_no_right_step_of_its_level(name, monkeypatch):
    task, asked = get_task(name), Task(name=name, test=20, options=SMALL[name])
    tokenizer = task.tokenizer(**asked.fields())
    texts = [p.solution for p in task.problems("test", 20, 0, **asked.fields())]
    # The last line alone, or the last value of the calculation: no step leads to it.
    texts[:8] = [text.splitlines()[-1] for text in texts[:8]]
    if name == "arithmetic":
        texts[:8] = ["=" + text.rpartition("=")[2] for text in texts[:8]]
    Parrot(monkeypatch, tokenizer, texts)
    solved, attempts = solving.evaluate(None, tokenizer, asked, "test")
    assert solved.accuracy == 1 and solved.steps == 12 / 20
    (levels,) = solved.by.values()
    assert sum(shares.steps * shares.count for shares in levels.values()) == pytest.approx(12)
    assert sum(shares.accuracy * shares.count for shares in levels.values()) == pytest.approx(20)


@pytest.mark.parametrize("name", QUERIED)
def test_a_special_token_at_a_query_leaves_the_other_answers_in_place(name, monkeypatch):
    task, asked = get_task(name), Task(name=name, test=8, options=SMALL[name])
    tokenizer = task.tokenizer(**asked.fields())
    problems = task.problems("test", 8, 0, **asked.fields())
    beyond = len(tokenizer)
    first = [tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id, beyond]
    answered = [tokenizer(problem.solution)["input_ids"] for problem in problems]
    for number, ids in enumerate(answered):
        ids[0] = first[number % len(first)]
    monkeypatch.setattr(solving, "read_answers", lambda *args, **_: answered)
    _, attempts = solving.evaluate(None, tokenizer, asked, "test")
    for attempt in attempts:
        assert attempt.grade.right == (False, *[True] * (len(attempt.answers) - 1))
        assert (attempt.grade.fault, attempt.grade.at) == ("foreign", 1)
    words = [attempt.text.split()[0] for attempt in attempts[:4]]
    assert words == ["<end>", "<pad>", "<unknown>", f"<{beyond}>"]


def test_no_problems():
    with pytest.raises(ValueError, match="no problems to solve"):
        solving.attempt(None, None, get_task("arithmetic"), [])


def test_words_without_a_token_are_named():
    task = get_task("prosqa")
    (record,) = task.problems("test", 1, 0)
    concept = record.idx_to_symbol[record.target]
    foreign = replace(record, question=record.question.replace(f" {concept}", " foobus"))
    ProblemDataset([record], task.tokenizer())
    for use in (
        lambda: ProblemDataset([record, foreign], task.tokenizer()),
        lambda: solving.attempt(None, task.tokenizer(), task, [record, foreign]),
    ):
        with pytest.raises(ValueError, match="has no token for ' foobus' in .*--task.tokenizer"):
            use()


@pytest.mark.parametrize("name", [name for name in all_tasks() if name not in QUERIED])
def test_a_tokenizer_that_changes_solutions_is_refused(name):
    """Under it every model would have no answer right."""
    kind, options = get_task(name), Task(name=name, options=SMALL[name]).fields()
    tokenizer, some = kind.tokenizer(**options), kind.problems("test", 60, 0, **options)
    check_tokenizer(kind, tokenizer, some)
    check_tokenizer(kind, load_tokenizer("bytes"), some)
    lossy = {"arithmetic": normalizers.Replace("1", "2"), "prosqa": normalizers.Lowercase()}
    broken = load_tokenizer("bytes")
    broken.backend_tokenizer.normalizer = lossy[name]
    with pytest.raises(ValueError, match="decodes .* as .* graded as wrong"):
        check_tokenizer(kind, broken, some)
    asked = Task(name=name, examples=5, validation=30, options=SMALL[name])
    with pytest.raises(ValueError, match=r"is graded as wrong"):
        build_problem_datasets(asked, broken)


@pytest.mark.parametrize("name", QUERIED)
def test_a_tokenizer_of_parts_of_words_is_refused(name):
    """Queries are counted in words."""
    asked = Task(name=name, examples=5, validation=5, options=SMALL[name])
    with pytest.raises(
        ValueError, match=r"makes \d+ tokens of the \d+ words of .*--task.tokenizer"
    ):
        build_problem_datasets(asked, load_tokenizer("bytes"))


def test_shares_of_problems_with_several_answers():
    task = get_task("mqar")
    problems = task.problems("test", 30, 0)
    attempts = []
    for number, problem in enumerate(problems):
        # Half of the answers of every second problem are right.
        words = problem.answers if number % 2 else [*problem.answers[:4], *["v0"] * 4]
        text = " ".join(words)
        level = task.level(problem)
        grade = task.grade(problem, text)
        attempts.append(solving.Attempt(problem=problem, text=text, grade=grade, level=level))
    right = [sum(a.grade.right) for a in attempts]
    solved = solving.score_attempts(attempts, task, name="mqar", split="test")
    assert solved.count == 30
    assert solved.accuracy == pytest.approx(sum(right) / (8 * 30), rel=1e-12)
    assert solved.steps == sum(n == 8 for n in right) / 30
    assert solved.chance == 1 / 8
    low, high = solved.interval
    assert low < solved.accuracy < high
    for level, shares in solved.by["words back, up to"].items():
        of_level = [
            [ok for own, ok in zip(a.problem.levels, a.grade.right, strict=True) if own == level]
            for level in [int(level)]
            for a in attempts
        ]
        of_level = [oks for oks in of_level if oks]
        assert shares.count == len(of_level)
        assert shares.accuracy == pytest.approx(
            sum(sum(oks) / len(oks) for oks in of_level) / len(of_level), rel=1e-12
        )
        assert shares.steps == sum(all(oks) for oks in of_level) / len(of_level)
