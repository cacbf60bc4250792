"""`layermem encoders`: arms with and without memory, rates, seeds, and what is resumed."""

import json
import math
from dataclasses import replace

import pytest
from labelled import rows_of, write_rows
from layermem.results.comparison import Comparison
from layermem.results.encoder_trials import EncoderTrials

from layermem import cli
from layermem.config import Optim, Records
from layermem.evals.solving import evaluate
from layermem.experiments import encoders
from layermem.results.files import read_result
from layermem.runs import RunFolder
from layermem.train.learning import prepare_learning
from layermem.train.run import train
from layermem.train.run_config import recorded_run

SMALL = [
    *("--layers", "2", "--width", "8", "--heads", "2", "--vocabulary", "60", "--max-length", "16"),
    *("--steps", "4", "--batch-size", "8", "--seeds", "2", "--rates", "1e-3", "1e-2"),
]


@pytest.fixture
def records(tmp_path):
    return write_rows(tmp_path / "records.jsonl", rows_of(60))


@pytest.fixture
def trained(monkeypatch):
    """Train in this process; return the names of what is trained."""
    names = []

    def train_missing(runs, out, jobs=1, *, may_diverge=False):
        names.extend(name for name in runs if not RunFolder(out / name).final.exists())
        return {
            name: train(run, out / name, resume=True, evaluate=evaluate)
            for name, run in runs.items()
        }

    monkeypatch.setattr(encoders, "train_missing", train_missing)
    return names


def compare(records, out, *more):
    cli.main(["encoders", str(records), *SMALL, *more, "--out", str(out)])
    return read_result(Comparison, out), read_result(EncoderTrials, out)


@pytest.mark.slow
def test_arms_take_their_rates_and_are_compared(records, tmp_path, trained, capsys):
    comparison, trials = compare(records, tmp_path / "out")
    assert len(trained) == 8
    (setting,) = comparison.settings
    first, second = setting.arms
    assert "memory=none" in first and "memory=full" in second
    chosen = {trial.arm: trial.rate for trial in trials.trials if trial.chosen}
    starts = {}
    for runs in setting.arms.values():
        for name in runs:
            run = recorded_run(RunFolder(tmp_path / "out" / name))
            assert run.optim.lr == chosen[run.host.memory] and run.host.train == "all"
            starts.setdefault(run.seed, set()).add(comparison.runs[name].validations[0].val_loss)
    assert starts.keys() == {0, 1} and all(len(losses) == 1 for losses in starts.values())
    for trial in trials.trials:
        others = [each for each in trials.trials if each.arm == trial.arm]
        assert trial.chosen == (trial == max(others, key=lambda t: (t.right, -t.loss)))
        folder = RunFolder(tmp_path / "out" / "rates" / f"{trial.arm}-lr{trial.rate:g}")
        assert recorded_run(folder).seed == trials.seed == 1000
    printed = capsys.readouterr().out
    assert "always the most frequent label of the validation records" in printed
    # Nothing is trained again; one more seed trains what is missing.
    trained.clear()
    compare(records, tmp_path / "out", "--seeds", "3")
    assert trained == [f"{arm}-lr{chosen[arm]:g}-s2" for arm in ("none", "full")]
    # A rate that is added later, and chosen, has runs of its own beside those that are there.
    trained.clear()
    compare(records, tmp_path / "out", "--rates", "1e-3", "1e-2", "3e-2")
    assert [name for name in trained if "s1000" not in name][:2] == ["none-lr0.03", "full-lr0.03"]
    with pytest.raises(SystemExit, match="was made for other sizes or other records"):
        compare(records, tmp_path / "out", "--width", "16")


def test_the_tokenizer_has_not_seen_the_validation_records(records, tmp_path):
    rows = [{"question": "zzz", "sentence": "qqq", "label": "y"}]
    held_out = write_rows(tmp_path / "v.jsonl", [*rows_of(9, seed=3), *rows])
    by_file = Records(source=str(records), validation=str(held_out))
    by_share = Records(source=str(records), validation_share=0.3)
    seen = []
    for of_run in (by_file, by_share):
        study = make_study(of_run)
        base = encoders._prepare_base(study, tmp_path / of_run.kind / f"{len(seen)}")
        vocabulary = json.loads((base / "tokenizer.json").read_text())["model"]["vocab"]
        assert not {"z", "q"} & set(vocabulary)
        run = encoders._run(study, base, "full", 1e-3, 0)
        trained_on = prepare_learning(run).train_data.records
        texts = [text for record in trained_on for text in record.texts]
        assert texts == encoders._training_texts(of_run)
        seen.append(len(texts))
    assert seen[1] < 100 < seen[0] <= 120


def make_study(records):
    sizes = encoders.EncoderSizes(layers=2, width=8, heads=2, vocabulary=60)
    records = replace(records, max_length=16)
    return encoders.EncoderStudy(
        records=records, sizes=sizes, optim=Optim(), steps=2, rates=(1e-3,)
    )


def test_a_rate_that_diverged_is_not_chosen():
    assert encoders._best("full", {1.0: (0.5, 0.7), 2.0: (0.6, 0.9), 3.0: (0.6, 0.8)}) == 3.0
    with pytest.raises(RuntimeError, match="full diverged at every learning rate"):
        encoders._best("full", {})


@pytest.mark.slow
def test_runs_are_trained_in_processes_of_their_own(records, tmp_path):
    comparison, _ = compare(records, tmp_path / "out", "--rates", "1e-3", "--seeds", "1")
    assert all(run.ended and math.isfinite(run.solved.accuracy) for run in comparison.runs.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arms", "none"], "a comparison needs two different arms, got none"),
        (["--arms", "none", "sideways"], "an arm is none, full, .* got 'sideways'"),
        (["--arms", "none", "last"], "host.memory=last and host.window=None do not go together"),
        (["--rates", "1e-3", "1e-3"], "learning rates must be given and differ, got 0.001 0.001"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--width", "9"], "a width that is a multiple of its heads, got layers=2, width=9"),
        (["--layers", "1"], "--layers must be at least 2, got 1"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_what_would_compare_nothing_is_refused(options, message, records, tmp_path, trained):
    with pytest.raises(SystemExit, match=message):
        compare(records, tmp_path / "out", *options)
