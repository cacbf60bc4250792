"""What all evaluations keep: rows of every model, one result of all kinds, options that count."""

import json
from dataclasses import replace

import pytest
from eval_fixtures import docs, our_model
from scipy import stats
from small_run import a_run

from layermem_bench.config.run import Task
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.evals.evaluating import evaluate_checkpoints
from layermem_bench.evals.losses import _rows
from layermem_bench.evals.perplexity import perplexity
from layermem_bench.evals.result import EvalOptions, EvalResult, compare_right, share_right
from layermem_bench.run.training import train
from layermem_bench.text.tokenizers import load_tokenizer

TASK = Task(name="arithmetic", options=("operands=2",), examples=60, validation=10, test=10)
TEXTS = ["one text", "another, a longer text", "x", "a fourth of them"]
PAIRS = [
    {
        "sentence_good": f"{i} sleeps.",
        "sentence_bad": f"{i} sleep.",
        "linguistics_term": "agreement",
        "UID": f"verbs {i % 2}",
    }
    for i in range(12)
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file for each kind of evaluation that asks for one."""
    folder = tmp_path_factory.mktemp("evals")
    write(folder / "texts.jsonl", [{"text": text} for text in [*TEXTS, TEXTS[0], ""]])
    write(folder / "pairs.jsonl", PAIRS)
    write(folder / "copa_validation.jsonl", docs("copa")["validation"])
    return folder


ASKED = {
    "losses": {"tasks": ("ppl=texts.jsonl",), "context": 16},
    "losses without weights": {"tasks": ("ppl=texts.jsonl",), "context": 8, "ablate": True},
    "grammar": {"tasks": ("blimp=pairs.jsonl",)},
    "benchmarks": {"tasks": ("copa",), "limit": 4, "seeds": 2, "records": (".",)},
}


@pytest.mark.parametrize("kind", ASKED)
def test_every_evaluation_keeps_the_contract(kind, saved, folder, tmp_path, monkeypatch):
    """Every row has each model's score, differences are of values, and all can be read back."""
    if kind == "benchmarks":
        pytest.importorskip("lm_eval")
    monkeypatch.chdir(folder)
    said = []
    result = evaluate_checkpoints(
        saved, EvalOptions(**ASKED[kind]), tmp_path, command="again", tell=lambda *a: said.append(a)
    )
    assert read_result(EvalResult, tmp_path) == result and said
    assert result.models == ("plain", "lime") and result.command == "again"
    assert {row.table for part in result.parts for row in part.rows} == {*result.tables}
    for part in result.parts:
        for row in part.rows:
            kind_of = result.tables[row.table]
            assert set(row.scores) == {"plain", "lime"}
            for score in row.scores.values():
                assert not kind_of.is_share or 0 <= score.value <= 1
                assert not score.interval or score.interval[0] <= score.value <= score.interval[1]
            for model, difference in row.differences.items():
                expected = row.scores[model].value - row.scores["plain"].value
                assert difference.value == pytest.approx(expected)
                assert 0 <= difference.p <= 1
    first = next(iter(result.tables))
    assert any(row.differences for row in result.of(first).values())


def test_losses_are_those_of_documents_that_are_read_once(saved, folder, tmp_path):
    options = EvalOptions(tasks=(f"ppl={folder / 'texts.jsonl'}",), context=8, stride=4)
    result = evaluate_checkpoints(saved, options, tmp_path)
    rows = result.of("loss")
    assert rows["bits per byte"].scores["lime"].count == sum(map(len, TEXTS))
    placed = [row for name, row in rows.items() if name.startswith("after")]
    assert [row.name for row in placed] == [
        *("after 1 token", "after 2 to 3 tokens", "after 4 to 7 tokens", "after 8 tokens"),
    ]
    assert sum(row.scores["lime"].count for row in placed) == sum(map(len, TEXTS))
    assert "4 different documents" in result.parts[0].how
    two = EvalOptions(tasks=options.tasks, context=8, limit=2)
    of_two = evaluate_checkpoints(saved[:1], two, tmp_path).of("loss")["nats per token"]
    assert of_two.scores["plain"].count == sum(map(len, TEXTS[:2])) and not of_two.differences


def test_weights_left_out_change_the_loss_of_models_that_have_them(saved, folder, tmp_path):
    options = EvalOptions(tasks=(f"ppl={folder / 'texts.jsonl'}",), context=8, ablate=True)
    rows = evaluate_checkpoints(saved, options, tmp_path).of("loss without weights")
    assert list(rows) == [
        "nothing left out",
        *("keys and values of the first layer", "keys and values of the other earlier layers"),
    ]
    assert len({row.scores["plain"].value for row in rows.values()}) == 1
    assert len({row.scores["lime"].value for row in rows.values()}) == 3
    alone = evaluate_checkpoints(saved[:1], options, tmp_path)
    assert "loss without weights" not in alone.tables


def test_models_of_other_tokens_or_bytes_are_not_compared():
    def read(texts, unknown=0):
        measured = perplexity(our_model(), load_tokenizer("bytes"), texts)
        measured.unknown_tokens = unknown
        return measured

    one, other = read(["ab", "cde"]), read(["ab", "cdx"])
    bits, nats, *_ = _rows({"one": one, "other": other})
    assert bits.is_comparable and bits.differences and not nats.is_comparable
    bits, *_ = _rows({"one": one, "other": read(["ab", "cdx"], unknown=1)})
    assert not bits.is_comparable and not bits.differences
    assert bits.scores["other"].counts == {"unknown tokens": 1}


def test_shares_have_an_interval_over_items_and_repeats():
    score = share_right([[1, 1, 0, 0], [1, 1, 1, 0]])
    assert score.repeats == (0.5, 0.75) and (score.value, score.count) == (0.625, 4)
    # 2.5 of 4: between Wilson's of 2 and of 3 of 4.
    low, high = score.interval
    two, three = (stats.binomtest(k, 4).proportion_ci(method="wilson") for k in (2, 3))
    assert two.low < low < three.low and two.high < high < three.high


def test_differences_are_paired_and_the_p_value_is_of_the_first_repeat():
    found = compare_right([[1] * 8 + [0] * 2, [0] * 10], [[0] * 10, [0] * 10])
    assert found.p == pytest.approx(stats.binomtest(8, 8).pvalue)
    assert found.value == pytest.approx(0.4)
    agreed = compare_right([[1, 0, 1]], [[1, 0, 1]])
    assert (agreed.value, agreed.interval, agreed.p) == (0, (0.0, 0.0), 1)


@pytest.mark.parametrize(("task", "named"), [("", "--tasks"), ("copa_", "copa"), ("mqar", "mqar")])
def test_tasks_that_cannot_be_asked_are_refused(task, named, saved, tmp_path):
    with pytest.raises(ValueError, match=named):
        evaluate_checkpoints(saved, EvalOptions(tasks=(task,) if task else ()), tmp_path / "out")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of two steps on arithmetic."""
    folder = tmp_path_factory.mktemp("solving")
    return str(train(replace(a_run(folder, max_steps=2), task=TASK), folder / "lime").path)


def test_kinds_are_parts_of_one_result_and_a_failure_takes_no_other_with_it(run, folder, tmp_path):
    tasks = ("arithmetic", f"ppl={folder / 'texts.jsonl'}")
    result = evaluate_checkpoints([run], EvalOptions(tasks=tasks, context=8, limit=5), tmp_path)
    assert [next(iter(part.tables)) for part in result.parts] == [
        *("loss", "arithmetic, right answers"),
    ]
    with pytest.raises(ValueError, match="prosqa"):
        evaluate_checkpoints([run], EvalOptions(tasks=("prosqa", tasks[1]), context=8), tmp_path)
    assert [part.title for part in read_result(EvalResult, tmp_path).parts] == ["Loss on documents"]


def test_a_run_solves_problems_of_its_task(run, tmp_path):
    asked = EvalOptions(tasks=("arithmetic",), limit=12, task_options=("operands=3",))
    result = evaluate_checkpoints([run], asked, tmp_path, group=lambda runs: {"arm": tuple(runs)})
    assert result.arms == {"arm": ("lime",)}
    rows = result.of("arithmetic, right answers")
    assert list(rows) == ["all", "operands: 3"] and rows["all"].scores["lime"].count == 12
    assert 0 < rows["all"].chance < 1 and rows["all"].scores["lime"].counts


def test_runs_of_other_problems_are_not_compared(run, tmp_path):
    """Each is asked those of its own run."""
    for seed, is_same in ((7, False), (TASK.seed, True)):
        config = replace(a_run(tmp_path, seed=3, max_steps=2), task=replace(TASK, seed=seed))
        other = str(train(config, tmp_path / f"other-{seed}").path)
        asked = EvalOptions(tasks=("arithmetic",), limit=4)
        result = evaluate_checkpoints([run, other], asked, tmp_path / "out")
        rows = result.of("arithmetic, right answers").values()
        assert all(row.is_comparable == is_same for row in rows)
