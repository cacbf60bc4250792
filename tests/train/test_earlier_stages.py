"""What a run holds out must not be what the stages before it were trained on."""

from dataclasses import replace

import pytest
from recorded import record

from layermem.config import Data, Model, Run, Task
from layermem.host_config import VARIANT, Host
from layermem.records_config import Records
from layermem.train.earlier_stages import check_earlier_stages

TEXT = Run(preset="p", data=Data(source="books.jsonl", validation_share=0.1))
SUMS = Run(preset="p", task=Task(name="arithmetic", options=("operands=3", "held_out=strict")))


def after(run, folder):
    """Return a run that starts from the final model of one that was recorded in a folder."""
    return replace(run, model=Model(pretrained=str(folder / "final")))


def with_options(run, *options):
    return replace(run, task=replace(run.task, options=options))


@pytest.mark.parametrize(
    ("earlier", "run", "message"),
    [
        (with_options(SUMS, "held_out=expression"), SUMS, "problems of held_out=expression"),
        # Problems are drawn strictly unless an option says otherwise.
        (with_options(SUMS, "operands=3"), SUMS, None),
        (
            with_options(SUMS, "operands=3"),
            with_options(SUMS, "held_out=expression"),
            "problems of held_out=strict",
        ),
        (SUMS, with_options(SUMS, "held_out=expression"), ".*--task.options held_out=strict"),
        (
            with_options(SUMS, "held_out=expression", "parentheses=superfluous"),
            with_options(SUMS, "held_out=expression"),
            "problems of parentheses=superfluous",
        ),
        # Others decide about no split.
        (SUMS, with_options(SUMS, "operands=5", "held_out=strict"), None),
        (replace(SUMS, task=Task(name="mqar")), SUMS, None),
        (TEXT, SUMS, None),
        (
            replace(TEXT, data=replace(TEXT.data, validation_share=0.02)),
            TEXT,
            "held out a share of 0.02",
        ),
        (
            replace(TEXT, data=replace(TEXT.data, validation="other")),
            TEXT,
            "held out a share of 0 of",
        ),
        (TEXT, TEXT, None),
        (replace(TEXT, data=replace(TEXT.data, validation_share=0.5)), TEXT, None),
        (TEXT, replace(TEXT, data=replace(TEXT.data, validation="other")), None),
        (TEXT, replace(TEXT, data=replace(TEXT.data, source="more.jsonl")), None),
        (SUMS, TEXT, None),
    ],
)
def test_what_was_trained_on_is_not_held_out(earlier, run, message, tmp_path):
    record(tmp_path / "first", run=earlier)
    stage = after(run, tmp_path / "first")
    if message is None:
        check_earlier_stages(stage)
        # Two stages before it, too.
        record(tmp_path / "second", run=replace(stage, seed=5))
        return check_earlier_stages(after(run, tmp_path / "second"))
    with pytest.raises(ValueError, match=f"first, which this run starts from, .*{message}"):
        check_earlier_stages(stage)
    # With another stage between them.
    between = after(replace(SUMS, task=Task(name="chains")), tmp_path / "first")
    record(tmp_path / "between", run=between)
    with pytest.raises(ValueError, match="first, which this run starts from"):
        check_earlier_stages(after(run, tmp_path / "between"))


def test_records_of_finetuned_hosts(tmp_path):
    host = Host(model="tokenizer", memory="none", train="all")
    of_records = {"variant": VARIANT, "model": Model(), "host": host}
    earlier = Run(
        preset="p", records=Records(source="r.jsonl", validation_share=0.01), **of_records
    )
    record(tmp_path / "first", run=earlier)
    host = replace(host, model=str(tmp_path / "first" / "final"))
    run = replace(earlier, host=host, records=Records(source="r.jsonl", validation_share=0.2))
    with pytest.raises(ValueError, match="records.validation_share=0.2 holds out here"):
        check_earlier_stages(run)
    check_earlier_stages(replace(run, records=earlier.records))


def test_a_model_that_is_no_runs_is_not_asked(tmp_path, caplog):
    check_earlier_stages(after(TEXT, tmp_path / "llama"))
    record(tmp_path / "first", run=TEXT)
    check_earlier_stages(after(TEXT, tmp_path / "first"))
    assert not caplog.messages
    (tmp_path / "first" / "config.yaml").write_text("architecture: llama\n")
    check_earlier_stages(after(TEXT, tmp_path / "first"))
    assert "trained on before is not known" in caplog.text
    # Damage that leads in a circle.
    record(tmp_path / "circle", run=after(TEXT, tmp_path / "circle"))
    check_earlier_stages(after(TEXT, tmp_path / "circle"))
