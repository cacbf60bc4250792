"""What `layermem train --host --records` refuses, and the ids of runs without records."""

import pytest
from host_models import make_host, shake_routers
from labelled import SIZES, TOKENS, fill, finetuned, rows_of, write_rows

from layermem.retrofit import attach
from layermem_bench import cli
from layermem_bench.cli.train_host import TrainHost, to_run
from layermem_bench.config.run import Records, run_from_dict
from layermem_bench.data.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("refused"), ("bert", "llama"))


def test_an_adapter_whose_body_is_missing_is_refused(folder, tmp_path):
    model = shake_routers(attach(make_host("llama", **TOKENS)))
    state = {
        k: v for k, v in model.state_dict().items() if "layers.2.mlp" not in k and "rout" not in k
    }
    make_host("llama", **TOKENS).save_pretrained(tmp_path / "base", state_dict=state)
    load_tokenizer("bytes").save_pretrained(tmp_path / "base")
    with pytest.raises(SystemExit, match=r"lacks 3 weights of LlamaForSeq.* model.layers.2.mlp"):
        finetuned(folder, tmp_path / "out", base=tmp_path / "base")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "stdlib"], "got --text and --records"),
        (["--block-size", "32"], "--block-size 32 has no effect on records"),
        (["--eval-blocks", "2"], "--eval-blocks 2 has no effect on records"),
        (["--memory", "none"], "host.train=routers has nothing to train"),
        (["--from-config", "x.json"], "host.train=routers would leave the random weights"),
        (["--from-config", "x.json", "--train", "all"], "x.json is no config of a model"),
        (["--max-length", "3"], "records.max_length must be at least 4, .*got 3|at least 4"),
        (["--max-length", "301"], "max_length=301 is more than .* reads, 300 tokens"),
        (["--validation-share", "1"], "--validation-share must be in .0, 1., got 1"),
        (["--fields", "question", "question"], "one or two different fields"),
        (["--label", "sentence", "--fields", "sentence"], "is one of records.fields"),
        (["--label", "sentence"], "that is no class; name the field of the classes|does not say"),
        (["--fields", "other"], "line 1 has no field 'other'"),
    ],
)
def test_what_would_train_something_else_is_refused(options, message, folder, tmp_path):
    with pytest.raises(SystemExit, match=message):
        finetuned(folder, tmp_path / "out", *options)
    assert not list(tmp_path.glob("out/final"))


def test_options_of_records_alone_are_refused(folder):
    with pytest.raises(SystemExit, match="--label x has no effect on text, it is for --records"):
        cli.main(["train", "--host", str(folder / "llama"), "--text", "stdlib", "--label", "x"])
    with pytest.raises(SystemExit, match="give one of --text SOURCE, --task NAME, --records FILE"):
        cli.main(["train", "--host", str(folder / "llama")])


def test_an_unknown_label_is_refused_with_its_line(folder, tmp_path):
    rows = [{"question": "q", "sentence": "s", "label": "z"}]
    path = write_rows(tmp_path / "v.jsonl", [*rows_of(3, seed=5), *rows])
    with pytest.raises(SystemExit, match=r"v.jsonl, line 4: the label 'z' is none of .* n, y"):
        finetuned(folder, tmp_path / "out", "--validation", str(path))


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    for name, fields, message in (
        ("pad", {**SIZES, "pad_token_id": 0}, "takes token 0 for padding, and its tokenizer 256"),
        ("ids", {**SIZES, "vocab_size": 99, "pad_token_id": None}, "has 99 token ids, and .* 257"),
    ):
        make_host("bert", **fields).save_pretrained(tmp_path / name)
        load_tokenizer("bytes").save_pretrained(tmp_path / name)
        with pytest.raises(SystemExit, match=message):
            finetuned(folder, tmp_path / "out", base=tmp_path / name)
    make_host("bert", **{**SIZES, "pad_token_id": None}).save_pretrained(tmp_path / "none")
    with pytest.raises(SystemExit, match="none knows 0 of .* tokens of the training records"):
        finetuned(folder, tmp_path / "out", base=tmp_path / "none")


@pytest.mark.slow
def test_positions_after_the_padding_are_counted(folder, tmp_path):
    make_host("roberta", **{**SIZES, "max_position_embeddings": 270}).save_pretrained(
        tmp_path / "r"
    )
    load_tokenizer("bytes").save_pretrained(tmp_path / "r")
    with pytest.raises(SystemExit, match="max_length=16 is more than .* reads, 13 tokens"):
        finetuned(folder, tmp_path / "out", base=tmp_path / "r")
    finetuned(folder, tmp_path / "out", "--max-length", "13", base=tmp_path / "r", steps=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"records": {"source": "x"}}, "records.source=x is for a model of transformers"),
        ({"records": {"label": "x"}}, "records.label=x is for a run that is trained on records"),
        (
            {
                "variant": "host",
                "host": {"model": "m"},
                "records": {"source": "x"},
                "task": {"name": "prosqa"},
            },
            "task has options, and this run is trained on records",
        ),
        (
            {
                "variant": "host",
                "host": {"model": "m"},
                "records": {"source": "x"},
                "eval_blocks": 2,
            },
            "eval_blocks has options",
        ),
    ],
)
def test_a_config_with_fields_without_effect_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        run_from_dict(values)


def test_a_run_on_records_is_begun_by_finetune():
    ours = to_run(TrainHost(host="x", records="r.tsv"))
    assert ours.records == Records(source="r.tsv")
