"""What a run holds out must not be what the stages before it were trained on."""

import json
import lzma
import shutil
from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest
import yaml
from recorded import record
from small_run import a_run
from transformers import AutoModelForCausalLM, LlamaConfig

from layermem.convert.converting import convert
from layermem.models.configuration import LINEAGE as FIELD
from layermem.retrofit import attach, load_attached, save_routers
from layermem_bench.analysis.earlier_stages import (
    Lineage,
    check_earlier_stages,
    read_lineage,
    stage_of,
    write_lineage,
)
from layermem_bench.analysis.lineage import sealed
from layermem_bench.cli import main
from layermem_bench.config.host import VARIANT, Host
from layermem_bench.config.run import Data, Model, Run, Task
from layermem_bench.data import sources
from layermem_bench.data.document_hashes import SIZE, Sketch
from layermem_bench.data.preparing import prepare
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.tasks import prosqa
from layermem_bench.train.learning import prepare_learning
from layermem_bench.train.learning.text import build_problem_datasets
from layermem_bench.train.run import train

TEXT = Run(preset="p", data=Data(source="books.jsonl", validation_share=0.1))
SUMS = Run(preset="p", task=Task(name="arithmetic", options=("operands=3", "held_out=strict")))
NONE = Sketch()


def saved(folder, *runs, before=None, documents=NONE):
    """Write the config of a model that these runs have trained, and return its folder."""
    config, lineage = LlamaConfig(), Lineage(before=before)
    for run in runs:
        lineage = lineage.followed_by(stage_of(run, documents))
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
        # Others decide about no split.
        (SUMS, with_options(SUMS, "operands=5", "held_out=strict"), None),
        (replace(SUMS, task=Task(name="mqar")), SUMS, None),
        (TEXT, SUMS, None),
        (SUMS, TEXT, None),
    ],
)
def test_problems_that_were_trained_on_are_not_held_out(earlier, run, message, tmp_path):
    stage = after(run, saved(tmp_path / "first", earlier))
    between = replace(SUMS, task=Task(name="chains"))
    two = after(run, saved(tmp_path / "second", earlier, between))
    if message is None:
        assert check_earlier_stages(stage, NONE).stages == (stage_of(earlier, NONE),)
        check_earlier_stages(two, NONE)
        return
    by = f"first, which this run starts from, was trained by run {earlier.id}.*{message}"
    with pytest.raises(ValueError, match=by):
        check_earlier_stages(stage, NONE)
    with pytest.raises(ValueError, match=f"second, .* trained by run {earlier.id}"):
        check_earlier_stages(two, NONE)


@pytest.fixture
def corpus(tmp_path):
    """Return what writes documents into a file, in a form by its name, and returns its path."""

    def write(name, documents):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".txt":
            path.write_text(documents[0])
            return path
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
        path.write_bytes(lzma.compress(lines) if path.suffix == ".xz" else lines)
        return path

    return write


def splits(tmp_path, source, **fields):
    """Return the documents that a text has for training and for validation."""
    fields = {"validation_share": 0.1, "cache": str(tmp_path / "cache"), **fields}
    prepared = prepare(Data(source=str(source), **fields), load_tokenizer("bytes"))
    return tuple(Sketch.from_text(split.sketch) for split in prepared)


DOCUMENTS = [f"document {i}" for i in range(300)]
OTHERS = [f"other {i}" for i in range(300)]


@pytest.mark.parametrize(
    ("name", "documents", "fields", "refused"),
    [
        ("text.jsonl", DOCUMENTS, {"validation_share": 0.1}, False),
        ("text.jsonl", DOCUMENTS, {"validation_share": 0.05}, False),
        ("text.jsonl", DOCUMENTS, {"validation_share": 0.3}, True),
        ("renamed.jsonl.xz", DOCUMENTS, {"validation_share": 0.1}, False),
        ("renamed.jsonl.xz", DOCUMENTS, {"validation_share": 0.3}, True),
        ("added.jsonl", [*OTHERS, *DOCUMENTS], {"validation_share": 0.3}, True),
        ("others.jsonl", OTHERS, {"validation_share": 0.3}, False),
        ("others.jsonl", OTHERS, {"validation": ("text.jsonl", DOCUMENTS)}, True),
        ("others.jsonl", OTHERS, {"validation": ("text.jsonl.xz", DOCUMENTS)}, True),
        ("others.jsonl", OTHERS, {"validation": ("first.jsonl", DOCUMENTS[:20])}, True),
        (
            "others.jsonl",
            OTHERS,
            {"validation": ("spaces.jsonl", [f" {text}\n" for text in DOCUMENTS[:20]])},
            True,
        ),
        ("others.jsonl", OTHERS, {"validation": ("a.txt", [f"{DOCUMENTS[0]}\n"])}, True),
        ("others.jsonl", OTHERS, {"validation": ("new.jsonl", ["new", "text"])}, False),
        # Boilerplate that both happen to have.
        (
            "others.jsonl",
            OTHERS,
            {"validation": ("new.jsonl", [*DOCUMENTS[:1], *map(str, range(200))])},
            False,
        ),
    ],
)
def test_documents_that_were_trained_on_are_not_held_out(
    name, documents, fields, refused, corpus, tmp_path
):
    learnt, held = splits(tmp_path, corpus("text.jsonl", DOCUMENTS))
    start = saved(tmp_path / "first", TEXT, documents=learnt)
    if "validation" in fields:
        fields = {"validation": str(corpus(*fields["validation"]))}
    _, held = splits(tmp_path, corpus(name, documents), **fields)
    with pytest.raises(ValueError, match="validation") if refused else nullcontext():
        check_earlier_stages(after(TEXT, start), held)
    # What it held out stays so.
    check_earlier_stages(after(TEXT, start), splits(tmp_path, corpus("text.jsonl", DOCUMENTS))[1])


def test_a_sketch_is_bounded_and_finds_what_it_can():
    learnt = Sketch.of(map(str, range(50_000)))
    assert len(learnt.hashes) == SIZE and len(learnt.to_text()) < 90_000
    assert Sketch.of(map(str, range(300, 320))).copies_in(learnt)
    assert not Sketch.of(map(str, range(50_000, 99_000))).copies_in(learnt)
    assert (Sketch.from_text(learnt.to_text()).hashes == learnt.hashes).all()
    halves = Sketch.of(map(str, range(20_000))), Sketch.of(map(str, range(20_000, 50_000)))
    assert (Sketch.merged(halves).hashes == learnt.hashes).all()
    assert not Sketch().copies_in(learnt) and not learnt.copies_in(Sketch())


def test_stages_of_earlier_versions_are_of_unknown_training(tmp_path):
    """They knew files alone."""
    start = saved(tmp_path / "first", TEXT)
    config = LlamaConfig.from_pretrained(start)
    fields = {k: v for k, v in getattr(config, FIELD).items() if k != "digest"}
    fields["taught_by"] = []
    fields["stages"][0]["content"] = ["0123456789abcdef"]
    setattr(config, FIELD, sealed(fields))
    config.save_pretrained(start)
    assert check_earlier_stages(after(TEXT, start), NONE) == Lineage(before=str(start))


def test_a_text_file_is_split_by_itself_as_it_is_not_among_others(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_CHARACTERS", 600)
    book = corpus("books/b.txt", ["".join(f"line {i} of b\n" for i in range(900))])
    corpus("books/c.jsonl", DOCUMENTS)
    for before, now in ((book.parent, book), (book, book.parent)):
        learnt, _ = splits(tmp_path, before)
        start = saved(tmp_path / "first", TEXT, documents=learnt)
        is_refused = splits(tmp_path, now)[1].copies_in(learnt)
        # The folder may have the book on either side.
        assert is_refused or now == book.parent or before == book.parent
        check_earlier_stages(after(TEXT, start), splits(tmp_path, before)[1])


def test_of_a_model_of_others_it_is_unknown_what_it_has_seen(tmp_path):
    LlamaConfig().save_pretrained(tmp_path / "llama")
    unknown = Lineage(before=str(tmp_path / "llama"))
    assert check_earlier_stages(after(TEXT, tmp_path / "llama"), NONE) == unknown
    assert "whose training data are unknown" in str(unknown)
    assert check_earlier_stages(TEXT, NONE) == Lineage() and str(Lineage()) == ""
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
        check_earlier_stages(after(TEXT, start), NONE)
    with pytest.raises(SystemExit, match="has a damaged"):
        main(["models", "convert", str(start), str(tmp_path / "new")])


def test_a_lineage_that_a_run_wrote_and_that_is_lost(tmp_path):
    final = record(tmp_path / "run", run=TEXT) / "final"
    LlamaConfig().save_pretrained(final)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    LlamaConfig().save_pretrained(checkpoint)
    (checkpoint / "origin.json").write_text("{}")
    for start in (final, checkpoint):
        with pytest.raises(ValueError, match="was written by a run, but its config.json does not"):
            check_earlier_stages(after(TEXT, start), NONE)
        with pytest.raises(SystemExit, match="was written by a run"):
            main(["models", "convert", str(start), str(tmp_path / "new")])


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
        check_earlier_stages(asked, prepare_learning(run).validation_data.documents)
        more = replace(run, data=replace(run.data, validation_share=0.6))
        with pytest.raises(ValueError, match=f"trained by run {run.id} on documents"):
            check_earlier_stages(asked, prepare_learning(more).validation_data.documents)


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
    for source, share in ((run.data.source, 0.6), (str(other), 0.7)):
        asked = replace(second, host=Host(model=str(start)))
        asked = replace(asked, data=replace(data, source=source, validation_share=share))
        with pytest.raises(ValueError, match="held out here"):
            train(asked, tmp_path / "third")
    assert not RunFolder(tmp_path / "third").final.exists()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_of_problems_that_an_earlier_stage_learnt(split, tmp_path):
    problems = prosqa.generate(30, 0)
    sides = {"learnt": problems[:10], "copy": problems[9::-1], "other": problems[10:]}
    for name, side in sides.items():
        (tmp_path / name).write_text(json.dumps([asdict(problem) for problem in side]))

    def datasets(train, held_out):
        options = (f"train={tmp_path / train}", f"{split}={tmp_path / held_out}")
        run = Run(preset="p", task=Task(name="prosqa", options=options, validation=5, test=5))
        return run, *build_problem_datasets(run.task, load_tokenizer("bytes"))

    run, learnt, held = datasets("learnt", "other")
    start = saved(tmp_path / "model", run, documents=learnt.documents)
    check_earlier_stages(after(run, start), held.documents)
    run, _, held = datasets("other", "copy")
    with pytest.raises(ValueError, match=f"{split}=FILE"):
        check_earlier_stages(after(run, start), held.documents)
