"""What a run holds out must not be what the stages before it were trained on."""

import json
import lzma
import shutil
from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest
import yaml
from small_run import a_run
from transformers import AutoModelForCausalLM, LlamaConfig

from layermem.convert.converting import convert
from layermem.models.configuration import LINEAGE as FIELD
from layermem.retrofit import attach, save_routers
from layermem_bench.config.run import HOST, Data, Host, Model, Run, Task
from layermem_bench.run.learning import build_problem_datasets
from layermem_bench.run.trained_models import (
    Lineage,
    check_earlier_stages,
    read_lineage,
    stage_of,
    write_lineage,
)
from layermem_bench.run.training import train
from layermem_bench.tasks import prosqa
from layermem_bench.text.blocks import SIZE, Sketch, hash_text
from layermem_bench.text.preparing import prepare
from layermem_bench.text.tokenizers import load_tokenizer

TEXT = Run(preset="p", data=Data(source="books.jsonl", validation_share=0.1))
SUMS = Run(preset="p", task=Task(name="arithmetic"))
NONE = Sketch()
DOCUMENTS, OTHERS = ([f"{name} {i}" for i in range(300)] for name in ("document", "other"))


def saved(folder, *runs, before=None, documents=NONE):
    """Write the config of a model that these runs have trained, and return its folder."""
    config, lineage = LlamaConfig(), Lineage(before=before)
    for run in runs:
        lineage = replace(lineage, stages=(*lineage.stages, stage_of(run, documents)))
    write_lineage(config, lineage)
    config.save_pretrained(folder)
    return folder


def after(run, start):
    """Return a run that starts from a saved model."""
    return replace(run, model=Model(pretrained=str(start)))


def splits(tmp_path, name, documents, **fields):
    """Return the documents that a file, in a form by its name, has for training and validation."""
    path = tmp_path / name
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
    path.write_bytes(lzma.compress(lines) if path.suffix == ".xz" else lines)
    fields = {"validation_share": 0.1, "cache": str(tmp_path / "cache"), **fields}
    prepared = prepare(Data(source=str(path), **fields), load_tokenizer("bytes"))
    return tuple(Sketch.from_text(split.sketch) for split in prepared)


@pytest.mark.parametrize(
    ("name", "documents", "share", "refused"),
    [
        ("text.jsonl", DOCUMENTS, 0.05, False),
        ("renamed.jsonl.xz", DOCUMENTS, 0.3, True),
        ("added.jsonl", [*OTHERS, *DOCUMENTS], 0.3, True),
        ("spaces.jsonl", [f" {text}\n" for text in DOCUMENTS], 0.3, True),
        # Boilerplate that both happen to have.
        ("some.jsonl", [*DOCUMENTS[:1], *OTHERS], 0.99, False),
    ],
)
def test_documents_that_were_trained_on_are_not_held_out(name, documents, share, refused, tmp_path):
    learnt, kept = splits(tmp_path, "text.jsonl", DOCUMENTS)
    start = saved(tmp_path / "first", TEXT, SUMS, documents=learnt)
    held = splits(tmp_path, name, documents, validation_share=share)[1]
    for run in (TEXT, SUMS):
        with pytest.raises(ValueError, match=SUMS.id) if refused else nullcontext():
            check_earlier_stages(after(run, start), held)
    # What it held out stays so.
    check_earlier_stages(after(TEXT, start), kept)


def sketch(numbers):
    return Sketch(hash_text(str(number)) for number in numbers)


def test_a_sketch_is_bounded_and_finds_what_it_can():
    learnt = sketch(range(50_000))
    assert len(learnt.hashes) == SIZE and len(learnt.to_text()) < 90_000
    assert sketch(range(300, 320)).copies_in(learnt)
    assert not sketch(range(50_000, 99_000)).copies_in(learnt)
    assert (Sketch.from_text(learnt.to_text()).hashes == learnt.hashes).all()
    halves = [*sketch(range(20_000)).hashes, *sketch(range(20_000, 50_000)).hashes]
    assert (Sketch(map(int, halves)).hashes == learnt.hashes).all()


def test_a_file_of_problems_that_an_earlier_stage_learnt(tmp_path, split="test"):
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


def test_of_a_model_of_others_it_is_unknown_what_it_has_seen(tmp_path):
    LlamaConfig().save_pretrained(tmp_path / "llama")
    unknown = Lineage(before=str(tmp_path / "llama"))
    assert check_earlier_stages(after(TEXT, tmp_path / "llama"), NONE) == unknown
    assert check_earlier_stages(TEXT, NONE) == Lineage() and str(Lineage()) == ""
    assert "unknown" in str(read_lineage(saved(tmp_path / "first", TEXT, before="llama")))


@pytest.mark.parametrize("damage", [None, {"stages": []}, {"stages": [{"documents": ""}]}])
def test_a_damaged_lineage_is_no_clean_slate(damage, tmp_path):
    start = saved(tmp_path / "first", TEXT)
    values = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(values | {FIELD: damage}))
    with pytest.raises(ValueError, match=FIELD):
        check_earlier_stages(after(TEXT, start), NONE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the plain decoder on text of which a tenth was held out."""
    folder = tmp_path_factory.mktemp("stages")
    changes = {"max_steps": 2, "save_every": 1, "keep": 9, "eval_every": 2, "variant": "plain"}
    run = a_run(folder, data={"validation_share": 0.1}, **changes)
    return run, train(run, folder / "run")


def llama(folder, tmp_path):
    return convert(str(folder.final), tmp_path / "llama", variant="llama").folder


def attached(folder, tmp_path):
    model = attach(AutoModelForCausalLM.from_pretrained(llama(folder, tmp_path)))
    model.save_pretrained(tmp_path / "attached")
    return tmp_path / "attached"


def routers_alone(folder, tmp_path):
    """Of routers that were trained, on a base that was not."""
    model = AutoModelForCausalLM.from_pretrained(llama(folder, tmp_path))
    lineage = getattr(model.config, FIELD)
    delattr(model.config, FIELD)
    model.save_pretrained(tmp_path / "base")
    setattr(model.config, FIELD, lineage)
    save_routers(attach(model), tmp_path / "routers")
    # What can be finetuned: the config is that of the base.
    shutil.copy(tmp_path / "base" / "config.json", tmp_path / "routers")
    return tmp_path / "routers"


ROUTES = {
    "checkpoint": lambda folder, tmp_path: folder.checkpoints / "checkpoint-1",
    "converted twice": lambda folder, tmp_path: (
        convert(str(llama(folder, tmp_path)), tmp_path / "twice", variant="lime").folder
    ),
    "attached": attached,
    "routers alone": routers_alone,
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_run_holds_out_nothing_that_its_model_has_seen(route, trained, tmp_path):
    run, folder = trained
    start = ROUTES[route](folder, tmp_path)
    assert [stage.run_id for stage in read_lineage(start).stages] == [run.id]
    held = {
        share: Sketch.from_text(prepare(data, load_tokenizer("bytes"))[1].sketch)
        for share in (0.1, 0.6)
        for data in [replace(run.data, validation_share=share)]
    }
    hosts = {"variant": HOST, "model": Model(), "host": Host(model=str(start))}
    for asked in (after(run, start), replace(run, **hosts)):
        check_earlier_stages(asked, held[0.1])
        with pytest.raises(ValueError, match=run.id):
            check_earlier_stages(asked, held[0.6])


def test_a_chain_of_stages_is_known_to_its_end(trained, tmp_path):
    """Plain on words, converted to LLaMA, retrofitted on other words, from a checkpoint of that."""
    run, first = trained
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"x{i} y{i}" * 20}) + "\n" for i in range(60)))
    data = replace(run.data, source=str(other), validation_share=0.5)
    host = Host(model=str(llama(first, tmp_path)))
    second = replace(run, variant=HOST, model=Model(), host=host, data=data)
    folder = train(second, tmp_path / "second")
    about = yaml.safe_load(folder.config.read_text())["about"]
    assert about["trained_before_by"] == run.id
    start = shutil.copytree(folder.checkpoints / "checkpoint-1", tmp_path / "copied")
    assert [stage.run_id for stage in read_lineage(start).stages] == [run.id, second.id]
    asked = replace(data, source=run.data.source, validation_share=0.6)
    with pytest.raises(ValueError, match="held out here"):
        train(replace(second, host=Host(model=str(start)), data=asked), tmp_path / "third")
