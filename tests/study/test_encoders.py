"""`layermem study encoders`: arms with and without memory, rates, seeds, and what is resumed."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from labelled import rows_of, write_rows
from launchers import InThisProcess, MadeUp, use

from layermem_bench import cli
from layermem_bench.config.run import Optim, Records
from layermem_bench.results.files import read_result
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import RIGHT_ANSWERS, StudyResult
from layermem_bench.study import hosts
from layermem_bench.study.executors import Launching, command_of
from layermem_bench.study.hosts import EncoderSizes, study_of_encoders
from layermem_bench.train.learning import prepare_learning
from layermem_bench.train.run_config import load_run, recorded_run

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = [
    *("--layers", "2", "--width", "8", "--heads", "2", "--vocabulary", "60", "--max-length", "16"),
    *("--max-steps", "4", "--batch-size", "8", "--seeds", "2", "--rates", "1e-3", "1e-2"),
]
NAME = "encoders-records"


@pytest.fixture
def records(tmp_path):
    return write_rows(tmp_path / "records.jsonl", rows_of(60))


@pytest.fixture
def here(monkeypatch):
    return use(InThisProcess(), monkeypatch)


def compare(records, out, *more):
    """Compare with the options of SMALL, or those of the same names in their place."""
    options, name = {}, ""
    for word in (*SMALL, *more):
        if word.startswith("--"):
            name = word
            options[name] = [name]
        else:
            options[name].append(word)
    words = [word for words in options.values() for word in words]
    cli.main(["study", "encoders", str(records), *words, "--out", str(out)])
    return read_result(StudyResult, out / "studies" / NAME)


@pytest.mark.slow
def test_arms_take_their_rates_and_are_compared(records, tmp_path, here, capsys, monkeypatch):
    out = tmp_path / "out"
    result = compare(records, out)
    assert len(here.begun) == 8
    (board,) = result.boards
    assert board.metric == RIGHT_ANSWERS and board.conditions[0].arms[0].name == "none"
    chosen = {tried.arm: tried.chosen for tried in board.tried}
    for tried in board.tried:
        pairs = dict(zip(tried.rates, zip(tried.right, tried.losses, strict=True), strict=True))
        assert tried.chosen == max(pairs, key=lambda rate: (pairs[rate][0], -pairs[rate][1]))
    starts = {}
    for run in result.of(NAME, "tokens"):
        recorded = recorded_run(RunFolder(run.folder))
        assert recorded.optim.lr == chosen[recorded.host.memory] and recorded.host.train == "all"
        assert math.isfinite(run.metrics[RIGHT_ANSWERS])
        starts.setdefault(run.seed, set()).add(run.validations[0].val_loss)
    assert starts.keys() == {0, 1} and all(len(losses) == 1 for losses in starts.values())
    assert {run.seed for run in result.runs if not run.conditions} == {1000}
    assert result.metrics[RIGHT_ANSWERS].chance == pytest.approx(0.5, abs=0.2)
    assert "A guess: " in capsys.readouterr().out.replace("\n", " ")
    # Nothing is trained again; one more seed trains what is missing.
    made_up = use(MadeUp(right=lambda run: 1.0 if run.optim.lr == 3e-2 else 0.5), monkeypatch)
    # Of as many records as those that were trained.
    made_up.count = result.of(NAME, "tokens")[0].solved.count
    compare(records, out, "--seeds", "3")
    assert made_up.begun == [f"{NAME}/{arm}-lr{chosen[arm]:g}-s2" for arm in ("none", "full")]
    # A rate that is added later, and chosen, has runs of its own beside those that are there.
    made_up.begun.clear()
    again = compare(records, out, "--rates", "1e-3", "1e-2", "3e-2")
    assert {tried.chosen for tried in again.boards[0].tried} == {3e-2}
    assert set(made_up.begun) == {
        f"{NAME}/{kind}-s{seed}"
        for arm in ("none", "full")
        for kind, seeds in ((f"rates/{arm}-lr0.03", (1000,)), (f"{arm}-lr0.03", (0, 1)))
        for seed in seeds
    }
    with pytest.raises(SystemExit, match="other sizes or other records"):
        compare(records, out, "--width", "16")


def test_a_process_of_its_own_would_train_the_same_run(records, tmp_path):
    (board,) = make_study(Records(source=str(records)), tmp_path).boards
    for arm in board.arms:
        run, folder = arm.change(board.base), RunFolder(tmp_path / arm.name)
        command = [*command_of(run, folder, Launching()).arguments]
        assert load_run(Path(command[command.index("--config") + 1])) == run


def make_study(records, out):
    return study_of_encoders(
        replace(records, max_length=16),
        EncoderSizes(layers=2, width=8, heads=2, vocabulary=60),
        Optim(router_lr=0.5),
        2,
        out,
        rates=(1e-3,),
    )


def test_the_tokenizer_has_not_seen_the_validation_records(records, tmp_path):
    rows = [{"question": "zzz", "sentence": "qqq", "label": "y"}]
    held_out = write_rows(tmp_path / "v.jsonl", [*rows_of(9, seed=3), *rows])
    seen = []
    for name, of_run in (
        ("file", Records(source=str(records), validation=str(held_out))),
        ("share", Records(source=str(records), validation_share=0.3)),
    ):
        (board,) = make_study(of_run, tmp_path / name).boards
        board.prepare()
        base = tmp_path / name / NAME / "base"
        vocabulary = json.loads((base / "tokenizer.json").read_text())["model"]["vocab"]
        assert not {"z", "q"} & set(vocabulary)
        trained_on = prepare_learning(board.arms[1].change(board.base)).train_data.records
        texts = [text for record in trained_on for text in record.texts]
        assert texts == hosts._training_texts(of_run)
        seen.append(len(texts))
        # What is there is left as it is.
        before = (base / "tokenizer.json").stat().st_mtime_ns
        board.prepare()
        assert (base / "tokenizer.json").stat().st_mtime_ns == before
    assert seen[1] < 100 < seen[0] <= 120


def test_arms_differ_in_their_memory_alone(records, tmp_path):
    (board,) = make_study(Records(source=str(records)), tmp_path).boards
    plain, full = (arm.change(board.base) for arm in board.arms)
    assert (plain.host.memory, full.host.memory) == ("none", "full")
    assert (plain.optim.router_lr, full.optim.router_lr) == (None, 0.5)
    assert replace(full, host=plain.host, optim=plain.optim) == plain


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--arms", "none"], "got none"),
        (["--arms", "none", "none"], "got none none"),
        (["--arms", "none", "sideways"], "'sideways'"),
        (["--arms", "none", "last"], "host.memory=last and host.window=None do not go together"),
        (["--rates", "1e-3", "1e-3"], "0.001, 0.001"),
        (["--rates", "0"], "got 0"),
        (["--seeds", "0"], "--seeds must be in .1, 1000., got 0"),
        (["--width", "9"], "width=9, heads=2"),
        (["--layers", "1"], "--layers must be at least 2, got 1"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--conditions", "time"], "--conditions"),
    ],
)
def test_what_would_compare_nothing_is_refused(options, named, records, tmp_path, here):
    with pytest.raises(SystemExit, match=named):
        compare(records, tmp_path / "out", *options)
    assert not here.begun
