"""What a run holds out must not be what the stages before it were trained on."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml
from recorded import record
from small_run import a_run
from transformers import AutoModelForCausalLM, LlamaConfig

from layermem.convert.converting import convert
from layermem.models.lineage import FIELD
from layermem.retrofit import attach, load_attached, save_routers
from layermem_bench.analysis.earlier_stages import (
    Lineage,
    check_earlier_stages,
    content_of,
    read_lineage,
    stage_of,
    write_lineage,
)
from layermem_bench.config.host import VARIANT, Host
from layermem_bench.config.records import Records
from layermem_bench.config.run import Data, Model, Run, Task
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train

TEXT = Run(preset="p", data=Data(source="books.jsonl", validation_share=0.1))
SUMS = Run(preset="p", task=Task(name="arithmetic", options=("operands=3", "held_out=strict")))


def saved(folder, *runs, before=None):
    """Write the config of a model that these runs have trained, and return its folder."""
    config, lineage = LlamaConfig(), Lineage(before=before)
    for run in runs:
        lineage = lineage.followed_by(stage_of(run, content_of(run)))
    write_lineage(config, lineage)
    config.save_pretrained(folder)
    return folder


def after(run, start):
    """Return a run that starts from a saved model."""
    return replace(run, model=Model(pretrained=str(start)))


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
        (
            replace(TEXT, data=replace(TEXT.data, source="other", validation_share=0.5)),
            replace(TEXT, data=replace(TEXT.data, validation="other")),
            "on other, which data.validation=other holds out",
        ),
        # Another revision of a data set of the hub has most of the same documents.
        (
            replace(TEXT, data=replace(TEXT.data, revision="a" * 40, validation_share=0.02)),
            TEXT,
            "held out a share of 0.02",
        ),
        (
            replace(TEXT, data=replace(TEXT.data, subset="en", validation_share=0.02)),
            TEXT,
            "held out a share of 0.02",
        ),
        (
            replace(TEXT, data=replace(TEXT.data, subset="en", validation_share=0.02)),
            replace(TEXT, data=replace(TEXT.data, subset="de")),
            None,
        ),
        # Of a mixture every source counts.
        (
            replace(TEXT, data=replace(TEXT.data, mixture=("other=0.5",))),
            replace(TEXT, data=replace(TEXT.data, source="new", validation="other")),
            "on books.jsonl, other, which data.validation=other holds out",
        ),
        (
            replace(TEXT, data=replace(TEXT.data, source="other", validation_share=0.02)),
            replace(TEXT, data=replace(TEXT.data, mixture=("other=0.5",))),
            "held out a share of 0.02 of other",
        ),
        (TEXT, TEXT, None),
        (replace(TEXT, data=replace(TEXT.data, validation_share=0.5)), TEXT, None),
        (TEXT, replace(TEXT, data=replace(TEXT.data, validation="other")), None),
        (TEXT, replace(TEXT, data=replace(TEXT.data, source="more.jsonl")), None),
        (SUMS, TEXT, None),
    ],
)
def test_what_was_trained_on_is_not_held_out(earlier, run, message, tmp_path):
    stage = after(run, saved(tmp_path / "first", earlier))
    between = replace(SUMS, task=Task(name="chains"))
    two = after(run, saved(tmp_path / "second", earlier, between))
    if message is None:
        assert check_earlier_stages(stage).stages == (stage_of(earlier, ()),)
        check_earlier_stages(two)
        return
    by = f"first, which this run starts from, was trained by run {earlier.id}.*{message}"
    with pytest.raises(ValueError, match=by):
        check_earlier_stages(stage)
    with pytest.raises(ValueError, match=f"second, .* trained by run {earlier.id}"):
        check_earlier_stages(two)


def test_a_text_is_known_under_another_name(tmp_path):
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    (tmp_path / "other.jsonl").write_text('{"text": "b"}\n')
    part = Data(source=str(tmp_path / "one.jsonl"), validation_share=0.1)
    start = saved(tmp_path / "first", replace(TEXT, data=part))
    more = replace(part, source=str(tmp_path / "two.jsonl"), validation_share=0.2)
    with pytest.raises(ValueError, match="held out a share of 0.1 of .*one.jsonl"):
        check_earlier_stages(after(replace(TEXT, data=more), start))
    other = replace(more, source=str(tmp_path / "other.jsonl"))
    check_earlier_stages(after(replace(TEXT, data=other), start))
    with pytest.raises(ValueError, match="data.validation=.*two.jsonl holds out"):
        held = replace(other, validation=str(tmp_path / "two.jsonl"))
        check_earlier_stages(after(replace(TEXT, data=held), start))


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({"source": "two"}, {"source": "renamed", "validation_share": 0.2}, "a share of 0.1"),
        ({"source": "two"}, {"source": "three", "validation_share": 0.2}, "a share of 0.1"),
        ({"source": "two"}, {"source": "other", "validation": "two/b.txt"}, "validation=.*b.txt"),
        ({"source": "two/b.txt"}, {"source": "other", "validation": "two"}, "validation=.*two"),
    ],
    ids=["renamed", "added", "of a folder", "in a folder"],
)
def test_each_file_of_a_text_is_known(before, now, message, tmp_path):
    folders = {"two": "ab", "renamed": "ba", "three": "abc", "other": "z"}
    for name, texts in folders.items():
        (tmp_path / name).mkdir()
        for at, text in enumerate(texts):
            file = tmp_path / name / f"{'ba'[at] if name == 'renamed' else 'abc'[at]}.txt"
            file.write_text(f"the text {text}")

    def data(fields):
        paths = {n: str(tmp_path / v) if isinstance(v, str) else v for n, v in fields.items()}
        return replace(TEXT, data=Data(**{"validation_share": 0.1, **paths}))

    start = saved(tmp_path / "first", data(before))
    with pytest.raises(ValueError, match=message):
        check_earlier_stages(after(data(now), start))


@pytest.mark.parametrize(("before", "now"), [("books", "books/b.txt"), ("books/b.txt", "books")])
def test_a_file_is_split_by_itself_as_it_is_not_among_others(before, now, tmp_path):
    (tmp_path / "books").mkdir()
    for name in ("a.txt", "b.txt", "c.jsonl"):
        (tmp_path / "books" / name).write_text(json.dumps({"text": name}) + "\n")
    (tmp_path / "books" / "b.txt").write_text("the text b")

    def data(source):
        return replace(TEXT, data=Data(source=str(tmp_path / source), validation_share=0.1))

    start = saved(tmp_path / "first", data(before))
    with pytest.raises(ValueError, match=r"where .* was split otherwise.* a --validation of other"):
        check_earlier_stages(after(data(now), start))
    check_earlier_stages(after(data(before), start))
    # Of several sources too.
    both = Data(
        source=str(tmp_path / "books/b.txt"),
        mixture=(f"{tmp_path / 'more'}=0.5",),
        validation_share=0.1,
    )
    (tmp_path / "more").mkdir()
    for name in ("x.txt", "y.txt"):
        (tmp_path / "more" / name).write_text(f"the text {name}")
    start = saved(tmp_path / "other", replace(TEXT, data=both))
    check_earlier_stages(after(replace(TEXT, data=both), start))
    check_earlier_stages(after(data("books/b.txt"), start))


def test_records_of_finetuned_hosts(tmp_path):
    host = Host(model="tokenizer", memory="none", train="all")
    of_records = {"variant": VARIANT, "model": Model(), "host": host}
    earlier = Run(
        preset="p", records=Records(source="r.jsonl", validation_share=0.01), **of_records
    )
    host = replace(host, model=str(saved(tmp_path / "first", earlier)))
    run = replace(earlier, host=host, records=Records(source="r.jsonl", validation_share=0.2))
    with pytest.raises(ValueError, match="records.validation_share=0.2 holds out here"):
        check_earlier_stages(run)
    check_earlier_stages(replace(run, records=earlier.records))
    # Random weights have seen nothing; the folder is that of a tokenizer.
    random = replace(run, records=replace(run.records, from_config="sizes.json"))
    assert check_earlier_stages(random) == Lineage()


def test_records_that_were_split_by_other_fields(tmp_path):
    """A record is held out by a hash of its texts, so that other fields hold out others."""
    host = Host(model="tokenizer", memory="none", train="all")
    of_records = {"variant": VARIANT, "model": Model(), "host": host}
    records = Records(source="r.jsonl", fields=("a", "b"))
    earlier = Run(preset="p", records=records, **of_records)
    host = replace(host, model=str(saved(tmp_path / "first", earlier)))
    run = replace(earlier, host=host)
    check_earlier_stages(run)
    for fields in (("b", "a"), ("a",), ()):
        with pytest.raises(ValueError, match="r.jsonl with records.fields=a b, by whose texts"):
            check_earlier_stages(replace(run, records=replace(records, fields=fields)))
    other = replace(records, fields=("a",), validation="other.jsonl")
    check_earlier_stages(replace(run, records=other))
    # Questions are held out by their context.
    records = Records(source="r.jsonl", kind="question-answering")
    host = replace(host, model=str(saved(tmp_path / "second", replace(earlier, records=records))))
    run = replace(run, host=host, records=replace(records, fields=("context", "query")))
    check_earlier_stages(run)
    with pytest.raises(ValueError, match="with records.fields=None, by whose texts"):
        check_earlier_stages(replace(run, records=replace(records, fields=("text", "query"))))


def test_of_a_model_of_others_it_is_unknown_what_it_has_seen(tmp_path):
    LlamaConfig().save_pretrained(tmp_path / "llama")
    unknown = Lineage(before=str(tmp_path / "llama"))
    assert check_earlier_stages(after(TEXT, tmp_path / "llama")) == unknown
    assert "whose training data are unknown" in str(unknown)
    assert check_earlier_stages(TEXT) == Lineage() and str(Lineage()) == ""
    start = saved(tmp_path / "first", TEXT, before="llama")
    assert str(read_lineage(start)).startswith("llama, whose")


def changed(folder, change):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update({FIELD: None}),
        lambda c: c.update({FIELD: {}}),
        lambda c: c[FIELD].update(stages=[]),
        lambda c: c[FIELD]["stages"][0]["data"].update(validation_share=0.9),
        lambda c: c[FIELD]["stages"][0].update(data=None),
        lambda c: c[FIELD]["stages"][0].update(surprise=1),
        lambda c: c[FIELD].pop("digest"),
    ],
)
def test_a_damaged_lineage_is_no_clean_slate(change, tmp_path):
    start = saved(tmp_path / "first", TEXT)
    changed(start, change)
    with pytest.raises(ValueError, match=f"config.json of .*first has a damaged {FIELD}"):
        check_earlier_stages(after(TEXT, start))
    with pytest.raises(ValueError, match="has a damaged"):
        convert(str(start), tmp_path / "new")


def test_a_lineage_that_a_run_wrote_and_that_is_lost(tmp_path):
    final = record(tmp_path / "run", run=TEXT) / "final"
    LlamaConfig().save_pretrained(final)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    LlamaConfig().save_pretrained(checkpoint)
    (checkpoint / "origin.json").write_text("{}")
    for start in (final, checkpoint):
        with pytest.raises(ValueError, match="was written by a run, but its config.json does not"):
            check_earlier_stages(after(TEXT, start))
        with pytest.raises(ValueError, match="was written by a run"):
            convert(str(start), tmp_path / "new")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the plain decoder on text of which a tenth was held out."""
    folder = tmp_path_factory.mktemp("stages")
    changes = {"max_steps": 2, "save_every": 1, "keep": 9, "eval_every": 2, "variant": "plain"}
    run = a_run(folder, data={"validation_share": 0.1}, **changes)
    return run, train(run, folder / "run")


def moved(folder, tmp_path):
    return shutil.copytree(folder.final, tmp_path / "elsewhere" / "model")


def converted_to(variant):
    def convert_final(folder, tmp_path):
        return convert(str(folder.final), tmp_path / variant, variant=variant).folder

    return convert_final


def converted_checkpoint(folder, tmp_path):
    return convert(str(folder.checkpoints / "checkpoint-1"), tmp_path / "new").folder


def converted_twice(folder, tmp_path):
    first = converted_to("llama")(folder, tmp_path)
    return convert(str(first), tmp_path / "twice", variant="lime").folder


def saved_in_python(folder, tmp_path):
    AutoModelForCausalLM.from_pretrained(folder.final).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def attached(folder, tmp_path):
    llama = converted_to("llama")(folder, tmp_path)
    attach(AutoModelForCausalLM.from_pretrained(llama)).save_pretrained(tmp_path / "attached")
    return tmp_path / "attached"


def routers_alone(folder, tmp_path):
    """Of routers that were trained, on a base that was not."""
    llama = AutoModelForCausalLM.from_pretrained(converted_to("llama")(folder, tmp_path))
    lineage = getattr(llama.config, FIELD)
    delattr(llama.config, FIELD)
    llama.save_pretrained(tmp_path / "base")
    setattr(llama.config, FIELD, lineage)
    save_routers(attach(llama), tmp_path / "routers")
    model = load_attached(tmp_path / "routers", base=tmp_path / "base")
    model.save_pretrained(tmp_path / "both")
    return tmp_path / "both"


def routers_beside_a_config(folder, tmp_path):
    """What can be finetuned: the config is that of the base."""
    routers_alone(folder, tmp_path)
    shutil.copy(tmp_path / "base" / "config.json", tmp_path / "routers")
    return tmp_path / "routers"


ROUTES = {
    "final": lambda folder, tmp_path: folder.final,
    "checkpoint": lambda folder, tmp_path: folder.checkpoints / "checkpoint-1",
    "moved": moved,
    "converted to lime": converted_to("lime"),
    "converted to llama": converted_to("llama"),
    "a converted checkpoint": converted_checkpoint,
    "converted twice": converted_twice,
    "saved in Python": saved_in_python,
    "attached": attached,
    "routers alone": routers_alone,
    "routers beside a config": routers_beside_a_config,
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_run_holds_out_nothing_that_its_model_has_seen(route, trained, tmp_path):
    run, folder = trained
    start = ROUTES[route](folder, tmp_path)
    assert [stage.run_id for stage in read_lineage(start).stages] == [run.id]
    hosts = {"variant": VARIANT, "model": Model(), "host": Host(model=str(start))}
    for asked in (after(run, start), replace(run, **hosts)):
        check_earlier_stages(asked)
        more = replace(asked, data=replace(asked.data, validation_share=0.3))
        with pytest.raises(ValueError, match=f"trained by run {run.id}, which held out a share of"):
            check_earlier_stages(more)


def test_a_chain_of_stages_is_known_to_its_end(trained, tmp_path):
    """Plain on words, converted to LLaMA, retrofitted on other words, from a checkpoint of that."""
    run, first = trained
    llama = converted_to("llama")(first, tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"x{i} y{i}" * 20}) + "\n" for i in range(60)))
    data = replace(run.data, source=str(other), validation_share=0.5)
    host = Host(model=str(llama))
    second = replace(run, variant=VARIANT, model=Model(), host=host, data=data)
    folder = train(second, tmp_path / "second")
    about = yaml.safe_load(folder.config.read_text())["about"]
    assert about["trained_before_by"] == run.id
    assert f"| trained before by | {run.id} |" in (folder.final / "README.md").read_text()
    assert "trained_before_by" not in yaml.safe_load(first.config.read_text())["about"]
    start = shutil.copytree(folder.checkpoints / "checkpoint-1", tmp_path / "copied")
    assert [stage.run_id for stage in read_lineage(start).stages] == [run.id, second.id]
    for source, share in ((run.data.source, 0.3), (str(other), 0.6)):
        asked = replace(second, host=Host(model=str(start)))
        asked = replace(asked, data=replace(data, source=source, validation_share=share))
        with pytest.raises(ValueError, match="held out a share of"):
            train(asked, tmp_path / "third")
    assert not RunFolder(tmp_path / "third").final.exists()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_of_problems_that_an_earlier_stage_learnt(split, tmp_path):
    learnt, copy, other = (tmp_path / f"{name}.json" for name in ("learnt", "copy", "other"))
    for path in (learnt, copy):
        path.write_text('[{"question": "a"}]')
    other.write_text('[{"question": "b"}]')

    def on(train, held_out):
        options = (f"train={train}", f"{split}={held_out}")
        return Run(preset="p", task=Task(name="prosqa", options=options))

    start = saved(tmp_path / "model", on(learnt, other))
    check_earlier_stages(after(on(copy, other), start))
    with pytest.raises(
        ValueError, match=rf"on the problems of {copy}, which are held out .*{split}"
    ):
        check_earlier_stages(after(on(other, copy), start))
