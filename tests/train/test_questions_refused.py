"""What `layermem train --host --kind question-answering` refuses, and the ids of its runs."""

import pytest
from asked import asked, put_base, put_questions, question_rows
from labelled import write_rows
from safetensors.torch import load_file, save_file

from layermem_bench import cli
from layermem_bench.cli.train_host import TrainHost, to_run
from layermem_bench.config.run import run_from_dict

QUESTIONS = ["--kind", "question-answering"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("refused")
    put_base(path / "bert", "bert")
    put_base(path / "phi3", "phi3")
    put_questions(path / "answered.jsonl", 40)
    put_questions(path / "unanswered.jsonl", 40, unanswerable=1.0)
    put_questions(path / "some.jsonl", 40, unanswerable=0.5)
    return path


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("some", [], r"some.jsonl, line \d+ has no answer: .* --unanswerable"),
        ("answered", ["--unanswerable"], r"all \d+ training questions have an answer.* leave it"),
        ("unanswered", ["--unanswerable"], r"none of the \d+ training questions has an answer"),
        ("answered", ["--max-length", "6", "--stride", "0"], "line 1: beside 6 .*room for 0 of"),
        ("answered", ["--max-length", "9"], r"line 1: .*stride=4: raise --max-length or lower"),
        ("answered", ["--max-length", "65"], "max_length=65 is more than .* reads, 64 tokens"),
        ("answered", ["--stride", "-1"], "--stride must be at least 0, got -1"),
        ("answered", ["--longest-answer", "0"], "--longest-answer must be at least 1, got 0"),
        ("answered", ["--fields", "context"], "records.fields=context must name two fields"),
        ("answered", ["--fields", "question", "context"], "line 1: .* does not stand at character"),
        ("answered", ["--fields", "text", "question"], "line 1 has no field 'text'"),
        ("answered", ["--label", "spans"], "line 1 has no field 'spans'"),
        ("answered", ["--id-field", "number"], "line 1 has no field 'number'"),
        ("answered", ["--label", "i", "--id-field", "i"], "records.id_field=i is another field"),
        ("answered", ["--eval-blocks", "2"], "--eval-blocks 2 has no effect on records"),
        ("answered", ["--kind", "classification"], "stride=4 is for questions.*add kind=question"),
    ],
)
def test_what_would_learn_something_else_is_refused(source, options, message, folder, tmp_path):
    with pytest.raises(SystemExit, match=message):
        asked(folder / "bert", folder / f"{source}.jsonl", tmp_path / "out", *options)
    assert not list(tmp_path.glob("out/final"))


def test_a_model_without_such_a_head_is_refused(folder, tmp_path):
    with pytest.raises(SystemExit, match="no head for question answering on phi3 .*; it has one"):
        asked(folder / "phi3", folder / "answered.jsonl", tmp_path / "out")


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_body_that_is_not_whole_is_refused(name, folder, tmp_path):
    """Both where the base is loaded with its head, and where it is loaded by itself."""
    base = put_base(tmp_path / name, name)
    weights = load_file(base / "model.safetensors")
    kept = {key: tensor for key, tensor in weights.items() if ".2." not in key}
    save_file(kept, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit, match=r"lacks \d+ weights of \w+ForQuestionAnswering, such"):
        asked(base, folder / "answered.jsonl", tmp_path / "out")


def test_a_damaged_validation_file_is_refused_with_its_line(folder, tmp_path):
    rows = question_rows(3, seed=9)
    rows[2]["answers"]["answer_start"] = [0]
    path = write_rows(tmp_path / "v.jsonl", rows)
    with pytest.raises(SystemExit, match=r"v.jsonl, line 3: answers: '\w+' does not stand at"):
        asked(
            folder / "bert",
            folder / "answered.jsonl",
            tmp_path / "out",
            "--validation",
            str(path),
        )


def test_options_of_questions_are_for_records():
    for option, value in (("--stride", "4"), ("--longest-answer", "4"), ("--id-field", "x")):
        with pytest.raises(
            SystemExit, match=f"{option} {value} has no effect on .*, it is for --records"
        ):
            cli.main(["train", "--host", "m", "--text", "stdlib", option, value])
    with pytest.raises(
        SystemExit, match="--unanswerable True has no effect on .*, it is for --records"
    ):
        cli.main(["train", "--host", "m", "--text", "stdlib", "--unanswerable"])


def test_every_option_of_questions_is_in_the_run_id():
    base = {"host": "m", "records": "q.jsonl", "kind": "question-answering"}
    run = to_run(TrainHost(**base))
    assert (run.records.max_length, run.records.stride, run.records.longest_answer) == (
        384,
        128,
        30,
    )
    others = (
        {"stride": 64},
        {"longest_answer": 10},
        {"unanswerable": True},
        {"id_field": "number"},
        {"max_length": 256},
        {"label": "spans"},
        {"kind": "classification"},
    )
    ids = {to_run(TrainHost(**{**base, **other})).id for other in others}
    assert len(ids | {run.id}) == len(others) + 1
    with pytest.raises(ValueError, match="records.unanswerable=True is for a run that is trained"):
        run_from_dict({"records": {"unanswerable": True}})
