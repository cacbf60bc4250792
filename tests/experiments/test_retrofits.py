"""`layermem retrofit`: four ways of going on training one model, at equal tokens and equal time."""

import json
import pickle
import re
import shutil
from dataclasses import replace

import pytest
from host_models import make_host
from layermem.results.retrofit import RetrofitResult

from layermem import cli
from layermem.data.tokenizers import load_tokenizer
from layermem.efficiency.measuring import time_interleaved
from layermem.evals.solving import evaluate
from layermem.experiments import retrofits, step_memory, step_times
from layermem.report import retrofit as report
from layermem.results.files import read_result
from layermem.runs import RunFolder
from layermem.train.run import train
from layermem.train.run_config import recorded_run

SECONDS = {"plain": 1.0, "lora": 0.8, "routers": 1.0, "all": 2.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("retrofits")
    tokens = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
    make_host("llama", **tokens).save_pretrained(path / "llama")
    load_tokenizer("bytes").save_pretrained(path / "llama")
    texts = [" ".join(f"w{(i * j) % 13}" for j in range(20)) for i in range(60)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (path / "words.jsonl").write_text(lines)
    return path


@pytest.fixture
def trained(monkeypatch):
    """Train in this process, and time steps with made-up seconds; return what is trained."""
    names = []

    def train_missing(runs, out, jobs=1, *, may_diverge=False):
        names.extend(name for name in runs if not RunFolder(out / name).final.exists())
        return {
            name: train(run, out / name, resume=True, evaluate=evaluate)
            for name, run in runs.items()
        }

    def made_up(steps, repeats, device, warm_up):
        # The steps themselves can be taken.
        real = time_interleaved(steps, 1, device)
        assert all(values[0] > 0 for values in real.values())
        return {way: [SECONDS[way]] * repeats for way in steps}

    monkeypatch.setattr(retrofits, "train_missing", train_missing)

    def peak(make_step, shape):
        # It reaches the process that measures.
        make_step = pickle.loads(pickle.dumps(make_step))
        make_step(shape)()
        run = make_step.args[0]
        return 100 if run.host.memory == "none" else 110

    monkeypatch.setattr(step_times, "time_interleaved", made_up)
    monkeypatch.setattr(step_memory, "measure_peak_of", peak)
    return names


def arguments(folder, out, *more):
    text = ["--text", str(folder / "words.jsonl"), "--validation-share", "0.2"]
    sizes = ["--block-size", "24", "--batch-size", "8", "--micro-batch", "4", "--steps", "4"]
    rates = ["--rates", "1e-3", "1e-2", "--router-rates", "1e-2", "--seeds", "2"]
    rest = ["--precision", "float32", "--cache", str(folder / "cache"), "--out", str(out)]
    return ["retrofit", str(folder / "llama"), *text, *sizes, *rates, *rest, *more]


@pytest.mark.slow
def test_four_ways_meet_at_equal_tokens_and_equal_time(folder, tmp_path, trained, capsys):
    out = tmp_path / "out"
    cli.main(arguments(folder, out))
    result = read_result(RetrofitResult, out)
    # Seven rates; four ways with two seeds; at equal time two of them are of another length.
    assert len(trained) == 7 + 8 + 4
    chosen = {trial.arm: trial.rate for trial in result.trials if trial.chosen}
    losses = {(trial.arm, trial.rate): trial.loss for trial in result.trials}
    for way, rate in chosen.items():
        assert losses[way, rate] == min(loss for (arm, _), loss in losses.items() if arm == way)
    tokens, time = ({s.arm: s for s in r.standings} for r in result.rankings)
    assert {way: s.steps for way, s in tokens.items()} == dict.fromkeys(SECONDS, 4)
    assert {way: s.steps for way, s in time.items()} == {**dict.fromkeys(SECONDS, 4)} | {
        "lora": 5,
        "all": 2,
    }
    assert result.trained["plain"] < result.trained["all"]
    assert result.trained["routers"] <= result.trained["lora"] < result.trained["plain"]
    for way, standing in tokens.items():
        assert sorted(standing.by_seed) == [0, 1]
        run = recorded_run(RunFolder(out / f"{way}-lr{chosen[way]:g}-s1"))
        assert run.seed == 1
        if way == "routers":
            assert run.optim.router_lr == chosen[way]
        else:
            assert run.optim.lr == chosen[way]
            # At most the highest rate that routers alone try.
            assert run.optim.router_lr == (0.01 if way == "all" else None)
        rows = [
            row
            for row in RunFolder(out / f"{way}-lr{chosen[way]:g}-s0").rows()
            if "val_loss" in row
        ]
        assert rows[0]["val_loss"] == result.before
        assert rows[-1]["val_loss"] == standing.by_seed[0]
    page = report.build(result)
    assert page.title.startswith("Does layer memory pay") and (out / "index.html").exists()
    shown = " ".join(capsys.readouterr().out.split())
    prices = {row[1]: row[-2:] for row in page.sections[0].tables[0].texts()}
    assert prices["lora"] == ["0.80", "1.00"] and prices["all"] == ["2.00", "1.10"]
    assert "before the first step" in shown and "as take the time of the first one's" in shown
    # Nothing is trained again; one more seed trains what is missing.
    count = len(trained)
    cli.main(arguments(folder, out, "--seeds", "3"))
    assert sorted(trained[count:]) == sorted(
        [
            *(f"{way}-lr{rate:g}-s2" for way, rate in chosen.items()),
            *(f"time/{way}-lr{chosen[way]:g}-s2" for way in ("lora", "all")),
        ]
    )
    with pytest.raises(SystemExit, match="was begun with another config: max_steps was 4, is 5"):
        cli.main(arguments(folder, out, "--steps", "5"))
    file = out / "steps.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base": "0" * 12}))
    with pytest.raises(
        SystemExit,
        match=f"steps.json was measured with another model, data or sizes .*{out / 'time'}",
    ):
        cli.main(arguments(folder, out))


def study(**changes):
    options = cli.parse(["finetune", "some/model", "--text", "stdlib", "--train", "all"])
    from layermem.cli.finetune import to_run

    fields = {"base": to_run(options), "rates": (1e-4,), "router_rates": (1e-3,), **changes}
    return retrofits.RetrofitStudy(**fields)


def test_a_model_that_cannot_be_loaded_begins_no_run(folder, tmp_path, trained):
    asked = arguments(folder, tmp_path / "out")
    asked[1] = str(tmp_path / "nowhere")
    with pytest.raises(SystemExit, match="nowhere does not exist; pass a checkpoint's folder"):
        cli.main(asked)
    assert not trained and not (tmp_path / "out").exists()


@pytest.mark.parametrize("lost", ["tokenizer", "text"])
def test_what_every_run_needs_is_looked_for_first(lost, folder, tmp_path, trained):
    shutil.copytree(folder / "llama", tmp_path / "llama")
    text = folder / "words.jsonl"
    if lost == "tokenizer":
        for file in (tmp_path / "llama").glob("tokenizer*"):
            file.unlink()
    else:
        text = tmp_path / "nowhere.jsonl"
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match="tokenizer" if lost == "tokenizer" else "nowhere.jsonl"):
        cli.main(["retrofit", str(tmp_path / "llama"), "--text", str(text), "--out", str(out)])
    assert trained == [] and not list(out.glob("*"))


def test_what_each_way_trains():
    windowed = study()
    base = replace(windowed.base, host=replace(windowed.base.host, memory="last", window=2))
    windowed = study(base=base)
    hosts = {way: windowed.run(way, 1e-4, 0).host for way in retrofits.WAYS}
    assert {way: (h.memory, h.window, h.train) for way, h in hosts.items()} == {
        "plain": ("none", None, "all"),
        "lora": ("none", None, "lora"),
        "routers": ("last", 2, "routers"),
        "all": ("last", 2, "all"),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": ()}, "--rates must be given and differ, got none"),
        ({"rates": (1e-3, 1e-3)}, "--rates must be given and differ, got 0.001"),
        ({"router_rates": (0.0,)}, "--router-rates must be above 0, got 0"),
        ({"seeds": 0}, "--seeds must be in [1, 1000], got 0"),
    ],
)
def test_what_is_asked_wrongly(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        study(**changes)
