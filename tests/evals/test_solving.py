"""Solving problems: greedy generation in batches; shares, intervals and faults of attempts."""

from dataclasses import replace

import pytest
import torch
from tiny import TINY, make
from tokenizers import normalizers

from layermem.models.registry import lookup
from layermem_bench.config.run import Task
from layermem_bench.evals import solving
from layermem_bench.run.learning import ProblemDataset, build_problem_datasets
from layermem_bench.tasks.registry import all_tasks, check_tokenizer, get_task
from layermem_bench.text.tokenizers import load_tokenizer

SETTINGS = {"end": 1, "padding": 0, "max_new_tokens": 12, "batch_size": 4}
SMALL = {"arithmetic": ("operands=3",), "prosqa": (), "mqar": (), "chains": ()}
# Their answers are read inside the sequence, and every word is one token.
QUERIED = ("mqar", "chains")
GENERATED = ("arithmetic", "prosqa")


def a_model(name):
    """Return a model with an end that comes now and then."""
    variant = lookup(name)
    model = make(variant.causal_lm, variant.config(**TINY)).eval()
    with torch.no_grad():
        model.lm_head.weight[1] *= 3
    return model


def one_at_a_time(model, prompt):
    """Without cache, padding or batches."""
    ids = list(prompt)
    for _ in range(SETTINGS["max_new_tokens"]):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] == SETTINGS["end"]:
            return ids[len(prompt) : -1]
    return ids[len(prompt) :]


@pytest.mark.parametrize("variant", ["plain", "lime"])
@torch.no_grad()
def test_batches_generate_what_prompts_alone_do(variant):
    model, draw = a_model(variant), torch.Generator().manual_seed(0)
    lengths = [3, 9, 1, 5, 5, 2, 7, 9, 4, 6, 3]
    prompts = [torch.randint(2, TINY["vocab_size"], (n,), generator=draw).tolist() for n in lengths]
    expected = [one_at_a_time(model, prompt) for prompt in prompts]
    assert solving.greedy(model, prompts, **SETTINGS) == expected
    assert len({len(row) for row in expected}) > 1, "some end early"


@pytest.mark.parametrize(
    "fields",
    [
        {"suppress_tokens": list(range(2, 30)), "min_new_tokens": 12},
        {"num_beams": 3, "repetition_penalty": 1.7},
    ],
    ids=["suppressed", "beams"],
)
def test_what_the_models_own_generation_config_says_has_no_effect(fields):
    model, prompts = a_model("plain"), [[5, 6, 7], [8], [9, 10]]
    expected, own = solving.greedy(model, prompts, **SETTINGS), model.generation_config
    for name, value in fields.items():
        setattr(own, name, value)
    assert solving.greedy(model, prompts, **SETTINGS) == expected
    assert model.generation_config is own


@pytest.fixture
def answered(monkeypatch):
    """Return a function that has a task's problems answered by texts, without a model.

    ``texts`` returns them, given the problems and the tokenizer.
    """

    def solve(name, count, texts):
        task, asked = get_task(name), Task(name=name, test=count, options=SMALL[name])
        tokenizer = task.tokenizer(**asked.fields())
        given = texts(task.problems("test", count, 0, **asked.fields()), tokenizer)
        ids = [tokenizer(each)["input_ids"] if isinstance(each, str) else each for each in given]
        for function in ("greedy", "read_answers"):
            monkeypatch.setattr(solving, function, lambda *_, **__: ids)
        return solving.evaluate(None, tokenizer, asked, "test")

    return solve


def test_a_special_token_in_a_solution_is_no_right_solution(answered):
    solved, _ = answered("arithmetic", 4, lambda ps, _: [f"{p.solution} <unknown>" for p in ps])
    assert solved.steps == 0


@pytest.mark.parametrize("name", all_tasks())
def test_right_and_wrong_solutions_are_told_apart(name, answered):
    def texts(problems, _):
        return [problem.solution if i % 4 else "" for i, problem in enumerate(problems)]

    solved, attempts = answered(name, 40, texts)
    assert (solved.accuracy, solved.steps, solved.count) == (0.75, 0.75, 40)
    low, high = solved.interval
    assert 0.55 < low < 0.75 < high < 0.9
    assert sum(solved.faults.values()) == 10 and solved.chance <= 0.5
    (levels,) = solved.by.values()
    if name not in QUERIED:
        assert sum(level.count for level in levels.values()) == 40
    rows = [attempt.row() for attempt in attempts]
    assert [row["answer"] for row in rows] == [bool(i % 4) for i in range(40)]
    columns = {"prompt", "solution", "text", "level", "answer", "steps", "fault", "at"}
    assert columns | ({"right"} if name in QUERIED else set()) == set(rows[0])


@pytest.mark.parametrize("name", GENERATED)
def test_an_answer_without_its_steps_is_no_right_step_of_its_level(name, answered):
    def without_steps(solution):
        """The last line alone, or the last value of the calculation."""
        last = solution.splitlines()[-1]
        return "=" + last.rpartition("=")[2] if name == "arithmetic" else last

    def texts(problems, _):
        solutions = [problem.solution for problem in problems]
        return [*map(without_steps, solutions[:8]), *solutions[8:]]

    solved, _ = answered(name, 20, texts)
    assert solved.accuracy == 1 and solved.steps == 12 / 20
    (levels,) = solved.by.values()
    assert sum(shares.steps * shares.count for shares in levels.values()) == pytest.approx(12)
    assert sum(shares.accuracy * shares.count for shares in levels.values()) == pytest.approx(20)


@pytest.mark.parametrize("name", QUERIED)
def test_a_special_token_at_a_query_leaves_the_other_answers_in_place(name, answered):
    def texts(problems, tokenizer):
        special = [tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id]
        first = [*special, len(tokenizer)] * 2
        solutions = [tokenizer(problem.solution)["input_ids"] for problem in problems]
        return [[wrong, *ids[1:]] for wrong, ids in zip(first, solutions, strict=True)]

    _, attempts = answered(name, 8, texts)
    for attempt in attempts:
        assert attempt.grade.right == (False, *[True] * (len(attempt.answers) - 1))
        assert (attempt.grade.fault, attempt.grade.at) == ("foreign", 1)
    words = [attempt.text.split()[0] for attempt in attempts[:3]]
    assert words == ["<end>", "<pad>", "<unknown>"]


def test_shares_of_problems_with_several_answers(answered):
    def texts(problems, _):
        """Half of the answers of every second problem are right."""
        given = [p.answers if i % 2 else p.answers[:4] + ["v0"] * 4 for i, p in enumerate(problems)]
        return list(map(" ".join, given))

    solved, attempts = answered("mqar", 30, texts)
    right = [sum(a.grade.right) for a in attempts]
    assert solved.count == 30 and solved.chance == 1 / 8
    assert solved.accuracy == pytest.approx(sum(right) / (8 * 30), rel=1e-12)
    assert solved.steps == sum(n == 8 for n in right) / 30
    for level, shares in solved.by["words back, up to"].items():
        of_level = [[ok for own, ok in a.answers if own == int(level)] for a in attempts]
        of_level = [oks for oks in of_level if oks]
        assert shares.count == len(of_level)
        mean = sum(sum(oks) / len(oks) for oks in of_level) / len(of_level)
        assert shares.accuracy == pytest.approx(mean, rel=1e-12)
        assert shares.steps == sum(all(oks) for oks in of_level) / len(of_level)


def test_words_without_a_token_are_named():
    task = get_task("prosqa")
    (record,) = task.problems("test", 1, 0)
    concept = record.idx_to_symbol[record.target]
    foreign = replace(record, question=record.question.replace(f" {concept}", " foobus"))
    with pytest.raises(ValueError, match="has no token for ' foobus' in .*--task.tokenizer"):
        ProblemDataset([record, foreign], task.tokenizer())


@pytest.mark.parametrize("name", GENERATED)
def test_a_tokenizer_that_changes_solutions_is_refused(name):
    """Under it every model would have no answer right."""
    kind, asked = get_task(name), Task(name=name, examples=5, validation=30, options=SMALL[name])
    some = kind.problems("test", 60, 0, **asked.fields())
    check_tokenizer(kind, load_tokenizer("bytes"), some)
    lossy = {"arithmetic": normalizers.Replace("1", "2"), "prosqa": normalizers.Lowercase()}
    broken = load_tokenizer("bytes")
    broken.backend_tokenizer.normalizer = lossy[name]
    with pytest.raises(ValueError, match="decodes .* as .* graded as wrong"):
        build_problem_datasets(asked, broken)


@pytest.mark.parametrize("name", QUERIED)
def test_a_tokenizer_of_parts_of_words_is_refused(name):
    """Queries are counted in words."""
    asked = Task(name=name, examples=5, validation=5, options=SMALL[name])
    with pytest.raises(ValueError, match=r"makes \d+ tokens of the \d+ words"):
        build_problem_datasets(asked, load_tokenizer("bytes"))
