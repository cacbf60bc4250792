"""The command line: its options are the config's, its errors one line."""

import shutil
import subprocess
import sys

import pytest
import yaml
from rich.console import Console
from small_run import a_run

import layermem
from layermem_bench import __main__, cli, presets
from layermem_bench.cli import screen
from layermem_bench.cli.options import resolve_run
from layermem_bench.config.run import to_dict
from layermem_bench.run.folder import RunFolder, load_run


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(to_dict(a_run(tmp_path))))
    return path


def test_a_run_from_a_config_with_options_on_top(config, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["train", "--config", str(config), "--out", str(out), "--variant", "plain"]
    asked += ["--seed", "3", "--max-steps", "4", "--save-every", "2", "--optim.lr", "3e-4"]
    asked += ["--data.isolate_documents", "--compute.micro-batch", "8"]
    cli.main([*asked, "--dry-run"])
    assert "still to come" in capsys.readouterr().out and not out.exists()
    cli.main(asked)
    run, final = load_run(RunFolder(out).config), out / "final" / "model.safetensors"
    assert (run.variant, run.seed, run.max_steps, run.save_every) == ("plain", 3, 4, 2)
    assert (run.optim.lr, run.data.isolate_documents, run.compute.micro_batch) == (3e-4, True, 8)
    weights = final.read_bytes()
    # A folder is enough to go on, and to take its config for another run.
    shutil.rmtree(out / "final")
    with pytest.raises(SystemExit, match="--resume"):
        cli.main(["train", str(out)])
    cli.main(["train", str(out), "--resume"])
    assert final.read_bytes() == weights and load_run(RunFolder(out).config) == run
    cli.main(["train", str(out), "--seed", "6", "--out", str(tmp_path / "other")])
    assert load_run(RunFolder(tmp_path / "other").config).seed == 6


def test_options_are_added_to_the_presets():
    asked = ["train", "aet-6", "--variant", "lime", "--model.options", "router_init=identity"]
    for options, expected in (
        (["value_max=1000", "operand_max=100"], {"value_max": 1000, "operand_max": 100}),
        (["operands=3"], {"operands": 3}),
    ):
        run = resolve_run(cli.parse([*asked, "--task.options", *options]))
        assert run.task.fields() == {"operands": 6, "held_out": "strict", **expected}
        assert run.model.options == ("router_init=identity",)


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


def test_lists_fit_a_terminal(monkeypatch, capsys):
    console = Console(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(screen, "screen", lambda: console)
    for kind in ("presets", "variants", "tasks", "evals", "studies"):
        cli.main(["list", kind])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


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
