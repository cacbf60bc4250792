"""Many runs and arms: what has ended is left alone, what fails is told, arms and rates."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from layermem.experiments.learning_rates import (
    best_learning_rate,
    best_rate_and_decay,
    tried_with_decays,
)
from recorded import SIZES, record
from small_run import a_run, curve

from layermem.config import Compute, Optim, Run, to_dict
from layermem.experiments import arms, many_runs
from layermem.models.registry import variants
from layermem.runs import RunFolder
from layermem.study.records import recorded_about
from layermem.train.run import train
from layermem.train.run_config import load_run


def test_runs_end_as_alone_and_are_not_run_again(tmp_path, monkeypatch):
    runs = {f"s{seed}": a_run(tmp_path, seed=seed, max_steps=3) for seed in (0, 1)}
    folders = many_runs.train_missing(runs, tmp_path / "out", jobs=2)
    alone = train(runs["s1"], tmp_path / "alone")
    assert [row["loss"] for row in curve(folders["s1"]) if "loss" in row] == pytest.approx(
        [row["loss"] for row in curve(alone) if "loss" in row], rel=1e-5
    )
    assert to_dict(load_run(folders["s0"].config)) == to_dict(runs["s0"])
    assert not (folders["s0"].path / "error.txt").exists()
    monkeypatch.setattr(many_runs, "_start_process", None)
    assert many_runs.train_missing(runs, tmp_path / "out").keys() == runs.keys()


def test_a_start_that_has_changed_is_refused_before_the_first_step(tmp_path, monkeypatch):
    started = [train(a_run(tmp_path, seed=9, max_steps=n), tmp_path / f"{n}") for n in (1, 2)]
    model = {"pretrained": str(tmp_path / "start")}
    shutil.copytree(started[0].final, tmp_path / "start")
    runs = {f"s{seed}": a_run(tmp_path, seed=seed, max_steps=2, model=model) for seed in (0, 1)}
    many_runs.train_missing({"s0": runs["s0"]}, tmp_path / "out")
    shutil.rmtree(tmp_path / "start")
    shutil.copytree(started[1].final, tmp_path / "start")
    with monkeypatch.context() as patched:
        patched.setattr(many_runs, "_start_process", None)
        with pytest.raises(ValueError, match="s0 began with other weights of .*start .* now"):
            many_runs.train_missing(runs, tmp_path / "out")
        # What has all ended is read as it is.
        many_runs.train_missing({"s0": runs["s0"]}, tmp_path / "out")


def test_a_failed_run_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    good, bad = a_run(tmp_path, max_steps=2), a_run(tmp_path, variant="lame")
    said = (
        r"1 of 2 runs failed: bad ended with exit code 1: .*unknown variant 'lame'.*"
        r"; see .*bad/error.txt. The others are kept"
    )
    with pytest.raises(RuntimeError, match=said):
        many_runs.train_missing({"bad": bad, "good": good}, tmp_path / "out")
    assert (tmp_path / "out" / "good" / "final").exists()
    error = tmp_path / "out" / "bad" / "error.txt"
    assert "unknown variant 'lame'" in error.read_text()
    # Tried again it is killed, as by the system: what it said before is kept, and how it ended.
    start = many_runs._start_process

    def killed(*asked):
        process = start(*asked)
        process.kill()
        return process

    monkeypatch.setattr(many_runs, "_start_process", killed)
    with pytest.raises(RuntimeError, match="1 of 2 runs failed: bad was killed by signal 9"):
        many_runs.train_missing({"bad": bad, "good": good}, tmp_path / "out")
    both = r"(?s)begun at .*unknown variant 'lame'.*exit code 1\n.*begun at .*killed by signal 9"
    assert re.search(both, error.read_text())


def test_after_two_equal_failures_no_run_is_begun(tmp_path):
    runs = {f"bad {i}": a_run(tmp_path, variant="lame", seed=i) for i in range(4)}
    said = (
        r"2 of 4 runs failed: bad 0, bad 1 ended with exit code 1: .*unknown variant 'lame'.*"
        r"; 2 were not begun"
    )
    with pytest.raises(RuntimeError, match=said):
        many_runs.train_missing(runs, tmp_path / "out")
    assert not (tmp_path / "out" / "bad 2").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "code_of"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_sweep_asked_to_stop_stops_its_runs(asked, code_of, tmp_path):
    run = a_run(tmp_path, max_steps=100_000, eval_every=100_000)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(to_dict(run)))
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from layermem.study.many_runs import train_missing\n"
        "from layermem.train.run_config import load_run\n"
        # A shell that runs the tests in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: train_missing({'one': load_run(sys.argv[1])}, Path(sys.argv[2]))\n"
        # Left to Python, the code depends on what else is imported: -2, or 1.
        "except KeyboardInterrupt: sys.exit(130)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(config), str(tmp_path / "out")], start_new_session=True
    )
    folder = RunFolder(tmp_path / "out" / "one")
    end = time.monotonic() + 120
    while len(folder.rows()) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    # As a terminal does: to all that it has started.
    os.killpg(process.pid, asked)
    assert process.wait(timeout=60) == code_of
    # The run has saved and left.
    assert folder.latest_checkpoint() is not None
    with folder.locked():
        assert not folder.final.exists()


def test_a_folder_that_holds_another_run_is_not_taken_for_this_one(tmp_path):
    run = a_run(tmp_path, max_steps=2, save_every=0)
    train(run, tmp_path / "out" / "one")
    # How it is carried out may differ.
    many_runs.train_missing({"one": replace(run, log_every=2)}, tmp_path / "out")
    longer = replace(run, max_steps=4)
    with pytest.raises(
        ValueError, match="one was begun with another config: max_steps was 2, is 4"
    ):
        many_runs.train_missing({"new": run, "one": longer}, tmp_path / "out")
    # Said before anything is run.
    assert not (tmp_path / "out" / "new").exists()


def test_what_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    run, out = a_run(tmp_path, max_steps=2, save_every=0), tmp_path / "out"
    folders = {name: RunFolder(out / name) for name in ("ends", "given-up")}
    begun: list[str] = []
    hands = ExitStack()

    def nap(_: float) -> None:
        # Whoever has them ends one, and leaves the other.
        assert not begun
        train(run, tmp_path / "alone")
        shutil.copytree(tmp_path / "alone", folders["ends"].path, dirs_exist_ok=True)
        hands.close()
        monkeypatch.setattr(many_runs.time, "sleep", lambda _: time_sleep(0.05))

    def start(run, folder, jobs, slot):
        begun.append(folder.path.name)
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import shutil, sys; shutil.copytree(*sys.argv[1:], dirs_exist_ok=True)",
            ]
            + [str(tmp_path / "alone"), str(folder.path)]
        )

    time_sleep = time.sleep
    monkeypatch.setattr(many_runs.time, "sleep", nap)
    monkeypatch.setattr(many_runs, "_start_process", start)
    for folder in folders.values():
        folder.create()
        hands.enter_context(folder.locked())
    with hands:
        assert many_runs.train_missing(dict.fromkeys(folders, run), out).keys() == folders.keys()
    assert begun == ["given-up"]


def test_runs_take_turns_on_several_gpus(monkeypatch):
    def gpu(slot):
        return many_runs._gpu_environment(slot)["CUDA_VISIBLE_DEVICES"]

    monkeypatch.setattr(many_runs.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [many_runs._gpu_environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == [
        "0",
        "1",
        "0",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [many_runs._gpu_environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == [
        "3",
        "5",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert many_runs._gpu_environment(0) == {}


@pytest.fixture
def fake(monkeypatch):
    """Have runs be processes that a test says; return the names of those begun.

    ``fake.does``: run to "ends", "diverges", or code for the process to run.
    """
    begun = SimpleNamespace(names=[], does=lambda run: "ends")

    def start(run, folder, jobs, slot):
        begun.names.append(folder.path.name)
        did, code = begun.does(run), "raise SystemExit(1)"
        folder.metrics.unlink(missing_ok=True)
        if did == "ends":
            # Plain is best at 0.01, LIMe at 0.001.
            away = abs(math.log10(run.optim.lr) + (2 if run.variant == "plain" else 3))
            record(folder.path, run=run, final=1 + away)
        elif did == "diverges":
            record(folder.path, run=run, ended=False, rows=2)
            folder.record_divergence(run.id, 5, "the loss is not finite at step 5")
        elif did == "unreadable":
            for _ in range(2):
                record(folder.path, run=run, ended=False)
        else:
            code = did
        return subprocess.Popen([sys.executable, "-S", "-c", code])

    monkeypatch.setattr(many_runs, "_start_process", start)
    monkeypatch.setattr(many_runs, "_POLL_INTERVAL", 0.02)
    return begun


RUN = Run(preset="made-up", max_steps=40, model=SIZES)


def test_each_arm_takes_its_best_rate(tmp_path, fake):
    fake.does = lambda run: "diverges" if run.optim.lr == 1.0 else "ends"
    names, rates = "plain,lime:router_init=identity", (0.001, 0.01, 1.0)
    losses = arms.try_learning_rates(RUN, names, rates, tmp_path, 4)
    assert losses == {
        "plain": {0.001: 2.0, 0.01: 1.0, 1.0: math.inf},
        "lime:router_init=identity": {0.001: 1.0, 0.01: 2.0, 1.0: math.inf},
    }
    assert "lime-router_init=identity-lr0.01-s1000" in fake.names and len(fake.names) == 6
    chosen = load_run(tmp_path / "rates" / "plain-lr0.01-s1000" / "config.yaml")
    assert (chosen.optim.lr, chosen.seed, chosen.variant) == (0.01, 1000, "plain")
    # What diverged would do so again: it is recorded, and not run again.
    fake.names.clear()
    assert arms.try_learning_rates(RUN, names, rates, tmp_path, 4) == losses and not fake.names
    taken = {arm: best_learning_rate(losses) for arm, losses in losses.items()}
    folders = arms.train_arms(RUN, names, [0, 1], tmp_path, 4, taken)
    assert [folder.path.name for folder in folders] == [
        "plain-lr0.01-s0",
        "plain-lr0.01-s1",
        "lime-router_init=identity-lr0.001-s0",
        "lime-router_init=identity-lr0.001-s1",
    ]
    compared = load_run(tmp_path / "plain-lr0.01-s1" / "config.yaml")
    assert (compared.optim.lr, compared.seed) == (0.01, 1)
    with pytest.raises(RuntimeError, match=r"plain diverged at every learning rate \(1\); try"):
        arms.try_learning_rates(RUN, "plain", (1.0,), tmp_path, 1)


def test_each_arm_takes_its_best_rate_and_decay(tmp_path, fake):
    fake.does = lambda run: "diverges" if run.optim.lr == 1.0 else "ends"
    rates, decays = (0.001, 0.01, 1.0), (0.0, 0.1)
    losses = arms.try_rates_and_decays(RUN, "plain,lime", rates, decays, tmp_path, 4)
    plain, lime = {0.001: 2.0, 0.01: 1.0, 1.0: math.inf}, {0.001: 1.0, 0.01: 2.0, 1.0: math.inf}
    assert losses == {"plain": {0.0: plain, 0.1: plain}, "lime": {0.0: lime, 0.1: lime}}
    for decay in decays:
        folder = tmp_path / f"decay-{decay:g}" / "rates" / "plain-lr0.01-s1000"
        run = load_run(folder / "config.yaml")
        assert (run.optim.lr, run.optim.weight_decay, run.seed) == (0.01, decay, 1000)
    fake.names.clear()
    again = arms.try_rates_and_decays(RUN, "plain,lime", rates, decays, tmp_path, 4)
    assert again == losses and not fake.names
    (folder,) = arms.train_arms(RUN, "plain", [3], tmp_path, 1, {"plain": 0.01}, {"plain": 0.0})
    assert folder.path.name == "plain-lr0.01-wd0-s3"
    run = load_run(folder.path / "config.yaml")
    assert (run.optim.lr, run.optim.weight_decay) == (0.01, 0.0)
    # An arm that diverges at every rate with one decay takes another, and has none where there is
    # no other.
    fake.does = lambda run: "diverges" if run.optim.weight_decay == 0.5 else "ends"
    losses = arms.try_rates_and_decays(RUN, "lime", (0.01,), (0.5, 0.0), tmp_path, 2)
    assert losses == {"lime": {0.5: {0.01: math.inf}, 0.0: {0.01: 2.0}}}
    assert best_rate_and_decay(losses["lime"]) == (0.01, 0.0)
    with pytest.raises(RuntimeError, match="lime diverged at every learning rate"):
        arms.try_rates_and_decays(RUN, "lime", (0.01,), (0.5,), tmp_path, 1)
    with pytest.raises(ValueError, match=r"weight decays must differ in six digits, got 0.1, 0.1"):
        arms.try_rates_and_decays(RUN, "plain", rates, (0.1, 0.1), tmp_path, 1)


def test_the_best_of_all_pairs_is_taken():
    losses = {0.0: {0.01: 2.0, 0.1: 1.5}, 0.1: {0.01: 1.25, 0.1: math.inf}, 0.2: {0.01: 1.75}}
    assert best_rate_and_decay(losses) == (0.01, 0.1)
    # At one decay the arm diverged at every rate.
    all_lost = dict.fromkeys((0.01, 0.1), math.inf)
    assert best_rate_and_decay({0.5: all_lost, **losses}) == (0.01, 0.1)
    *_, lost = tried_with_decays({"plain": {**losses, 0.5: all_lost}})
    assert (lost.decay, lost.losses, lost.chosen) == (0.5, (None, None), None)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", r"was killed by signal 9 \(SIGKILL; was there too"),
        ("import os; os.kill(os.getpid(), 11)", r"was killed by signal 11 \(SIGSEGV\)"),
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("pass", "stopped before its last step: it was asked to"),
        ("unreadable", "left what cannot be read .*metrics.jsonl: step 10 comes after step 40"),
    ],
    ids=["killed", "crashed", "failed", "stopped", "mixed"],
)
def test_a_run_that_failed_decides_no_choice_and_is_tried_again(code, how, tmp_path, fake):
    fake.does = lambda run: code if (run.variant, run.optim.lr) == ("plain", 0.01) else "ends"
    # By what is left plain would take 0.001, which is worse.
    said = rf"1 of 4 runs failed: plain-lr0.01-s1000 {how}.*error.txt.* tries what failed again"
    with pytest.raises(RuntimeError, match=said):
        arms.try_learning_rates(RUN, "plain,lime", (0.001, 0.01), tmp_path, 1)
    assert len(fake.names) == 4
    error = tmp_path / "rates" / "plain-lr0.01-s1000" / "error.txt"
    assert re.search(how, error.read_text())
    assert not RunFolder(error.parent).diverged.exists()
    fake.names.clear()
    fake.does = lambda run: "ends"
    losses = arms.try_learning_rates(RUN, "plain,lime", (0.001, 0.01), tmp_path, 1)
    assert fake.names == ["plain-lr0.01-s1000"] and best_learning_rate(losses["plain"]) == 0.01
    assert not error.exists()


def test_a_loss_that_is_not_finite_is_never_the_best():
    assert best_learning_rate({0.1: math.nan, 0.01: 2.0, 0.001: 3.0}) == 0.01
    assert best_learning_rate({0.1: 2.0, 0.01: math.nan}) == 0.1
    with pytest.raises(ValueError, match="no learning rate can be chosen"):
        best_learning_rate({0.1: math.nan, 0.01: math.inf})


def test_an_old_record_that_ended_with_nan_has_diverged(tmp_path, fake):
    fake.does = lambda run: "ends"
    runs = {rate: replace(RUN, variant="plain", seed=1000, optim=Optim(lr=rate)) for rate in (1, 2)}
    for rate, final in ((1.0, math.nan), (2.0, math.inf)):
        record(tmp_path / "rates" / f"plain-lr{rate:g}-s1000", run=runs[rate], final=final)
    losses = arms.try_learning_rates(RUN, "plain", (1.0, 2.0, 0.01), tmp_path, 1)
    assert losses == {"plain": {1.0: math.inf, 2.0: math.inf, 0.01: 1.0}}
    assert fake.names == ["plain-lr0.01-s1000"]


def test_a_divergence_of_another_config_does_not_count(tmp_path, fake):
    fake.does = lambda run: "ends" if run.compute.precision == "float32" else "diverges"
    runs = {"one": replace(RUN, compute=Compute(precision="bfloat16"))}
    with pytest.raises(RuntimeError, match="1 of 1 runs diverged: one: the loss is not finite at"):
        many_runs.train_missing(runs, tmp_path)
    again = {"one": replace(RUN, compute=Compute(precision="float32"))}
    with pytest.raises(ValueError, match="compute.precision was 'bfloat16', is 'float32'"):
        many_runs.train_missing(again, tmp_path)
    # A folder without rows is free.
    (tmp_path / "one" / "metrics.jsonl").unlink()
    assert many_runs.train_missing(again, tmp_path)["one"].final.exists()
    assert fake.names == ["one", "one"]


def test_a_seed_that_diverged_is_no_failure_of_a_comparison(tmp_path, fake):
    fake.does = lambda run: "diverges" if run.seed == 1 else "ends"
    folders = arms.train_arms(RUN, "plain,lime", [0, 1], tmp_path, 2, {})
    assert [folder.final.exists() for folder in folders] == [True, False] * 2


def test_what_has_lost_its_records_is_said_before_anything_is_run(tmp_path, fake):
    whole, part = record(tmp_path / "whole", run=RUN), record(tmp_path / "part", run=RUN)
    for lost, last in ((part, "there is none at all"), (whole, "the last is of step 30")):
        kept = (lost / "metrics.jsonl").read_text().splitlines(keepends=True)
        (lost / "metrics.jsonl").write_text("".join(kept[:-2] if lost == whole else []))
        with pytest.raises(ValueError, match=rf"has ended, but metrics.jsonl lacks .* 40: {last}"):
            many_runs.train_missing({lost.name: RUN, "new": RUN}, tmp_path)
    with pytest.raises(ValueError, match="part was begun with another config: seed was 0, is 3"):
        many_runs.train_missing({"part": replace(RUN, seed=3)}, tmp_path)
    assert not fake.names


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"val_loss": 1.0}', "a validation must have a number as its step .* got None and 1.0"),
        ('{"step": 40, "val_loss": null}', "as its val_loss, got 40 and None"),
        ("12", "has a row that is no object"),
    ],
)
def test_a_damaged_row_is_named_with_its_folder(row, message, tmp_path, fake):
    path = record(tmp_path / "one", run=RUN)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f"{row}\n")
    with pytest.raises(ValueError, match=rf"metrics.jsonl.*{message}.*; delete {path} to run it"):
        many_runs.train_missing({"one": RUN}, tmp_path)
    assert not fake.names


def test_an_ended_run_without_its_config_is_named(tmp_path, fake):
    path = record(tmp_path / "one", run=RUN)
    (path / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=f"{path} holds a run, but no config.yaml"):
        many_runs.train_missing({"one": RUN}, tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{path} holds a run, but no config.yaml"):
        recorded_about(RunFolder(path))
    assert not fake.names


def test_a_run_that_another_command_was_quicker_to_begin_is_waited_for(tmp_path, fake):
    folder, hands = RunFolder(tmp_path / "one"), ExitStack()
    naps = []

    def nap(seconds):
        naps.append(seconds)
        time_sleep(0.05)
        if len(naps) == 10:
            record(folder.path, run=RUN)
            hands.close()

    def late(run):
        # Between the look at the lock and the process: it finds the folder taken, and fails.
        folder.create()
        hands.enter_context(folder.locked())
        return "raise SystemExit(1)"

    time_sleep, fake.does = time.sleep, late
    with pytest.MonkeyPatch.context() as patch, hands:
        patch.setattr(many_runs.time, "sleep", nap)
        assert many_runs.train_missing({"one": RUN}, tmp_path)["one"].final.exists()
    assert fake.names == ["one"]


def test_no_run_stands_for_another(tmp_path, fake):
    with pytest.raises(ValueError, match=r"learning rates must differ, got 0.01, 0.01"):
        arms.try_learning_rates(RUN, "plain", (0.01, 0.01), tmp_path, 1)
    with pytest.raises(ValueError, match=r"would have one folder, plain-lr0.01-s1000"):
        arms.try_learning_rates(RUN, "plain", (0.01, 0.01000000001), tmp_path, 1)
    with pytest.raises(ValueError, match="would have one folder, lime-rms_norm_eps="):
        names = "lime:rms_norm_eps=1e-5,lime:rms_norm_eps=1e+5"
        arms.train_arms(RUN, names, [0], tmp_path, 1, {})
    assert not fake.names


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("lime:routr=last", "LimeConfig has no field 'routr'; did you mean router?"),
        ("lime:router=lst", "lime:router=lst: Field 'router' expected one of .*, got lst"),
        ("lime:router_window=4", r'lime:router_window=4: router="full" has no window'),
        ("lime:router_sources=[[]]", "a list for each of the 2 layers, got 1 list"),
        ("lime:hidden_size=8", "model.options name hidden_size, which .*: --model.hidden-size"),
        ("lime:router", "model.options must be NAME=VALUE each, got 'router'"),
    ],
)
def test_an_arm_of_wrong_options_is_refused_before_others_are_trained(arm, message, tmp_path, fake):
    with pytest.raises((TypeError, ValueError), match=message):
        arms.train_arms(RUN, f"plain,{arm}", [0], tmp_path, 1, {})
    with pytest.raises((TypeError, ValueError), match=message):
        arms.try_learning_rates(RUN, f"plain,{arm}", (0.01,), tmp_path, 1)
    assert not fake.names and not any(tmp_path.iterdir())


def test_a_rate_of_routers_is_that_of_the_arms_that_have_some():
    base = replace(RUN, optim=replace(RUN.optim, router_lr=0.5))
    runs = arms.runs_of_arms(base, "plain,lime,lime:router=average,mudd", [0], {})
    rates = {arm: run.optim.router_lr for (arm, _), run in runs.values()}
    assert rates == {"plain": None, "lime": 0.5, "lime:router=average": None, "mudd": 0.5}
    with pytest.raises(ValueError, match=r"^optim\.router_lr=0\.5 has no effect: plain"):
        arms.runs_of_arms(base, "plain,value_residual", [0], {})


def test_arms():
    assert arms.parse_arms("plain, lime:router=last:router_window=4") == {
        "plain": ("plain", ()),
        "lime:router=last:router_window=4": ("lime", ("router=last", "router_window=4")),
    }
    sources = "lime:router_sources=[[],[0]]"
    assert list(arms.parse_arms(f"{sources},plain")) == [sources, "plain"]
    every = arms.parse_arms("all,lime:router=average")
    assert list(every)[0] == "plain" and set(every) == {*variants(), "lime:router=average"}
    with pytest.raises(ValueError, match="unknown variant 'all'"):
        arms.parse_arms("all:router=last")
    with pytest.raises(ValueError, match="a bracket is open or closed too often"):
        arms.parse_arms("plain,lime:router_sources=[[0]")
