"""What `layermem eval` wrote stands on the page about runs."""

import pytest
from recorded import record

from layermem import cli
from layermem.evals.task_catalog import TASKS
from layermem.results.eval import Accuracy, EvalOptions, EvalResult, TaskFacts, TaskScore
from layermem.results.files import to_json
from layermem.results.minimal_pairs import (
    JudgedPairs,
    MinimalPairsOptions,
    MinimalPairsResult,
    PairShare,
)
from layermem.results.perplexity import (
    DocumentLosses,
    Perplexity,
    PerplexityOptions,
    PerplexityResult,
    PositionLoss,
)
from layermem.results.solved import Solved, SolvedOptions, SolvedTasks


def a_perplexity(loss=1.25):
    return PerplexityResult(
        command="layermem eval made-up",
        options=PerplexityOptions(texts=("book.txt",), context=8, stride=4),
        models={
            "lime": Perplexity(
                loss=loss,
                bits_per_byte=1.5,
                tokens=10,
                bytes=40,
                context=8,
                stride=4,
                predecessor=None,
                unknown_tokens=0,
                positions=(PositionLoss(first=0, last=7, tokens=10, loss=loss),),
                documents=DocumentLosses(nats=(12.5,), tokens=(10,), bytes=(40,)),
            )
        },
        differences={},
    )


def a_judgement():
    share = PairShare(count=20, right=13, ties=0, interval=(0.4, 0.8))
    judged = JudgedPairs(
        all=share, fields={"syntax": share}, phenomena={"islands": share}, paradigms={"wh": share}
    )
    return MinimalPairsResult(
        command="layermem eval made-up",
        options=MinimalPairsOptions(records=("blimp.jsonl",)),
        models={"lime": judged},
        comparisons={},
        probes={},
    )


def solved_problems():
    solved = Solved(
        count=8,
        accuracy=0.375,
        interval=(0.1, 0.7),
        steps=0.25,
        steps_interval=(0.1, 0.6),
        chance=0.1,
        by={"operands": {}},
    )
    return SolvedTasks(
        command="layermem eval made-up",
        options=SolvedOptions(tasks=("arithmetic",)),
        models={"made-up": {"arithmetic": solved}},
    )


def an_evaluation():
    accuracy = Accuracy(mean=0.625, by_seed=(0.625,), over_seeds=(), over_items=(0.5, 0.7))
    score = TaskScore(
        accuracy=accuracy, accuracy_norm=None, requests=40, truncated=0, unknown_tokens=0, ties=0
    )
    task = TASKS["qnli"]
    facts = TaskFacts(
        version="1",
        source="qnli.jsonl",
        few_shot_source="qnli.jsonl",
        items=20,
        chance=0.5,
        majority=0.55,
        tables=task.tables,
        paper=dict(task.paper),
    )
    return EvalResult(
        command="layermem eval made-up",
        options=EvalOptions(tasks=("qnli",)),
        lm_eval="0",
        tasks={"qnli": facts},
        models={"lime": {"qnli": score}},
        differences={},
    )


@pytest.fixture
def run(tmp_path):
    return record(tmp_path / "lime", variant="lime")


def save(folder, *results):
    folder.mkdir()
    for result in results:
        (folder / f"{result.KIND}.json").write_text(to_json(result), encoding="utf-8")
    return folder


def test_each_has_its_section(tmp_path, run, capsys):
    folders = [
        save(tmp_path / "measured", a_perplexity(), a_judgement()),
        save(tmp_path / "other", a_perplexity(1.75)),
        save(tmp_path / "asked", solved_problems(), an_evaluation()),
    ]
    out = tmp_path / "report"
    cli.main(["report", str(run), "--out", str(out), "--evaluation", *map(str, folders)])
    page = (out / "index.html").read_text(encoding="utf-8")
    for shown in ("Perplexity (1)", "Perplexity (2)", "1.7500", "Grammar (BLiMP)", "65.0%"):
        assert shown in page
    assert "Evaluation tasks" in page and "62.5%" in page
    assert "Problems of their tasks" in page and "37.5%" in page


def test_a_folder_of_something_else_is_refused(tmp_path, run):
    save(tmp_path / "asked", an_evaluation())
    (tmp_path / "empty").mkdir()
    folders = [str(tmp_path / name) for name in ("asked", "empty")]
    with pytest.raises(SystemExit, match=r"empty holds none of perplexity.json, blimp.json"):
        cli.main(["report", str(run), "--out", str(tmp_path / "r"), "--evaluation", *folders])
