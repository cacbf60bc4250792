"""The command line: its options are the config's, its errors one line."""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict

import pytest
import yaml
from rich.console import Console
from small_run import Interrupted, a_run
from tiny import TINY

import layermem
from layermem import PlainConfig
from layermem_bench import __main__, cli, presets
from layermem_bench.cli import screen
from layermem_bench.config.run import Run, Task, to_dict
from layermem_bench.pages.page import Table
from layermem_bench.run.folder import RunFolder, load_run
from layermem_bench.tasks import prosqa
from layermem_bench.text.tokenizers import load_tokenizer


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(to_dict(a_run(tmp_path))))
    return path


def test_a_run_from_a_config_with_options_on_top(config, tmp_path):
    out = tmp_path / "out"
    cli.main(
        ["train", "--config", str(config), "--out", str(out), "--variant", "plain", "--seed", "3"]
        + ["--max-steps", "4", "--save-every", "0", "--optim.lr", "3e-4"]
        + ["--data.isolate_documents", "--compute.micro-batch", "8"]
    )
    run = load_run(RunFolder(out).config)
    assert (run.variant, run.seed, run.max_steps, run.save_every) == ("plain", 3, 4, 0)
    assert (run.optim.lr, run.data.isolate_documents, run.compute.micro_batch) == (3e-4, True, 8)
    assert (out / "final" / "model.safetensors").exists()
    # The folder's config repeats the run; --resume finds it ended.
    again = tmp_path / "again"
    cli.main(["train", "--config", str(out / "config.yaml"), "--out", str(again)])
    final = (out / "final" / "model.safetensors").read_bytes()
    assert (again / "final" / "model.safetensors").read_bytes() == final
    cli.main(["train", "--config", str(out / "config.yaml"), "--out", str(again), "--resume"])


def test_options_are_added_to_the_presets(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "layermem_bench.run.training.train",
        lambda run, out, **_: seen.append(run) or RunFolder(out),
    )
    asked = ["train", "aet-6", "--variant", "lime", "--model.options", "router_init=identity"]
    cli.main([*asked, "--task.options", "value_max=1000", "operand_max=100"])
    preset = {"operands": 6, "held_out": "strict"}
    assert seen[0].task.fields() == {**preset, "value_max": 1000, "operand_max": 100}
    cli.main([*asked, "--task.options", "operands=3"])
    assert seen[1].task.fields() == {**preset, "operands": 3}
    assert seen[1].model.options == ("router_init=identity",)


@pytest.fixture
def ended(tmp_path):
    """Return a function that makes the folder of a run on a task which has ended."""

    def make(name, *options):
        folder = RunFolder(tmp_path / "run")
        folder.create()
        folder.final.mkdir(exist_ok=True)
        run = Run(task=Task(name=name, options=options))
        folder.config.write_text(yaml.safe_dump(to_dict(run)))
        PlainConfig(**TINY).save_pretrained(folder.final)
        load_tokenizer("bytes").save_pretrained(folder.final)
        return str(folder.path)

    return make


@pytest.fixture
def solved(monkeypatch):
    """Have solving stop where the model would be loaded."""

    def stop(*_, **__):
        raise Interrupted

    monkeypatch.setattr("layermem_bench.evals.solving.solve", stop)


def test_problems_of_a_file_that_the_model_learnt_from_are_refused(tmp_path, ended, solved):
    records = prosqa.generate(12, 0)

    def file(name, some):
        (tmp_path / name).write_text(json.dumps([asdict(record) for record in some]))
        return f"={tmp_path / name}"

    run = ended("prosqa", "graphs=crossed", "train" + file("learnt.json", records[:8]))
    mixed, new = file("mixed.json", records[6:]), file("new.json", records[8:])
    some = ["eval", run, "--tasks", "prosqa", "--limit", "20", "--task-options"]
    # Whatever is given in place of the file that was learnt.
    for more in ([], ["train=null"], [f"train{new}"]):
        with pytest.raises(SystemExit, match=r"was trained on 2 of the 6 problems"):
            cli.main([*some, f"test{mixed}", *more])
    for fine in ([f"test{new}"], ["test=null"]):
        with pytest.raises(Interrupted):
            cli.main([*some, *fine])


def test_a_folder_is_enough_to_go_on(config, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["--config", str(config), "--max-steps", "4", "--save-every", "2", "--seed", "5"]
    cli.main(["train", *asked, "--out", str(out)])
    shutil.rmtree(out / "final")
    with pytest.raises(SystemExit, match="--resume"):
        cli.main(["train", str(out)])
    cli.main(["train", str(out), "--resume"])
    assert (out / "final" / "model.safetensors").exists()
    run = load_run(RunFolder(out).config)
    assert (run.seed, run.max_steps, run.preset) == (5, 4, "custom")
    # And to take its config for another run.
    cli.main(["train", str(out), "--seed", "6", "--out", str(tmp_path / "other")])
    assert load_run(RunFolder(tmp_path / "other").config).seed == 6


def test_a_dry_run_trains_nothing(config, tmp_path, capsys):
    out = tmp_path / "out"
    cli.main(["train", "--config", str(config), "--out", str(out), "--dry-run"])
    shown = capsys.readouterr().out
    assert "still to come" in shown and not out.exists()


@pytest.mark.parametrize(
    ("command", "extra"), [("models fetch", "layermem[real]"), ("list", "layermem[bench]")]
)
def test_one_extra_is_asked_for(command, extra, monkeypatch, capsys):
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["layermem", *command.split()])
    with pytest.raises(SystemExit):
        __main__.main()
    assert extra in capsys.readouterr().err


def test_a_run_trains_an_arm_of_a_study(config, tmp_path, monkeypatch):
    asked = ["train", "--config", str(config), "--max-steps", "2", "--variant"]
    monkeypatch.chdir(tmp_path)
    cli.main([*asked, "recipe_half+mudd:storage=2"])
    (out,) = (tmp_path / "runs").iterdir()
    assert out.name == "custom-recipe_half-mudd-storage=2-s0"
    run = load_run(RunFolder(out).config)
    assert run.variant == "lime_half+mudd"
    assert run.model.variant_fields() == {**layermem.RECIPE, "storage": 2}
    # It goes on as what it is.
    cli.main(["train", str(out), "--resume"])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("one\n\n   two\r\n\tthree\n"), "layermem: one two three"),
        (RuntimeError("size mismatch\n" * 9999), "layermem: size mismatch size mismatch"),
        # What no check of ours foresaw is told with its kind and its place.
        (RuntimeError(), "layermem: RuntimeError"),
        (KeyError("weight"), "layermem: KeyError: 'weight' in test_cli.py, line "),
    ],
    ids=["ours", "long", "empty", "a mistake of ours"],
)
def test_every_error_is_one_line(error, expected, monkeypatch):
    def fail(options, command):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "list", (cli.listing.ListAny, fail))
    monkeypatch.delenv("LAYERMEM_DEBUG", raising=False)
    with pytest.raises(SystemExit) as left:
        cli.main(["list", "tasks"])
    line = left.value.code
    assert line.startswith(expected) and line.splitlines() == [line] and len(line) < 2200
    monkeypatch.setenv("LAYERMEM_DEBUG", "1")
    with pytest.raises(type(error)):
        cli.main(["list", "tasks"])


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def interrupted(options, command):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "list", (cli.listing.ListAny, interrupted))
    with pytest.raises(SystemExit) as ended:
        cli.main(["list", "tasks"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "layermem: interrupted\n"


def test_help_and_the_list(capsys, monkeypatch):
    for argv in ([], ["help"], ["--help"]):
        cli.main(argv)
        shown = capsys.readouterr().out
        assert all(f"\n  {command} " in shown for command in cli.COMMANDS)
        # A screen of a terminal.
        assert len(shown.splitlines()) <= 24
    cli.main(["--version"])
    assert capsys.readouterr().out == f"layermem {layermem.__version__}\n"
    monkeypatch.setenv("COLUMNS", "200")
    cli.main(["list", "presets"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in presets.names())


def test_what_is_no_terminal_gets_every_column_whole(monkeypatch, capsys):
    monkeypatch.setattr(screen, "screen", lambda: Console(width=60))
    cells = [f"{'x' * 25}{i}" for i in range(6)]
    screen.show(Table(header=["name", *"abcde"], rows=[cells]))
    assert capsys.readouterr().out.split()[6:] == cells


@pytest.mark.parametrize("kind", ["presets", "variants", "tasks", "evals", "studies"])
def test_lists_fit_a_terminal(kind, monkeypatch, capsys):
    console = Console(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(screen, "screen", lambda: console)
    cli.main(["list", kind])
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80


@pytest.mark.slow
def test_one_of_several_processes_ends_at_once():
    """What is due at exit is done; the interpreter's shutdown, which may abort, is left out."""
    code = """
import atexit, sys
from torch import distributed
from layermem_bench import __main__, cli

class Late:
    def __del__(self):
        print("shut down")

distributed.is_initialized, distributed.get_world_size = lambda: True, lambda: int(sys.argv[1])
late = Late()
atexit.register(print, "due at exit")
cli.main(["list", "tasks"])
print("not ended")
"""
    for processes, expected in (("2", ["due at exit"]), ("1", ["not ended", "due at exit"])):
        done = subprocess.run(
            [sys.executable, "-c", code, processes], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert "arithmetic" in done.stdout
        assert [line for line in lines if line in ("due at exit", "not ended")] == expected
        assert ("shut down" in lines) == (processes == "1")


def test_tasks_are_shown(capsys):
    cli.main(["list", "tasks"])
    assert "operand_max=20" in capsys.readouterr().out
    cli.main(["list", "tasks", "arithmetic", "--count", "20", "--task-options", "operands=3"])
    shown = capsys.readouterr().out
    assert "commonest" in shown and shown.count(" =\n") == 3
    cli.main(["list", "tasks", "prosqa", "--count", "20", "--show", "1"])
    assert "crossed" in capsys.readouterr().out


def test_costs_are_the_papers(capsys):
    cli.main(["costs"])
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("1.07608B", "1.17687B", "+0.08%", "+1.22%", "+0.10%", "+1.42%"):
        assert said in shown
    cli.main(["costs", "aet-4", "--variants", "lime,plain", "--tokens", "20"])
    assert "aet-4: 4 x 32, 4 heads, T 20 lime" in " ".join(capsys.readouterr().out.split())
