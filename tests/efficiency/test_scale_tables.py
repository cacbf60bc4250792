"""docs/scale.md has the tables of its command, and the command's output is whole at 80 columns."""

import importlib.util
from pathlib import Path

import pytest
from rich.console import Console

from layermem_bench import cli

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_tables_of_its_command():
    spec = importlib.util.spec_from_file_location("scale_tables", DOCS / "scale_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    for table in (module.paper_table(), module.plans_table()):
        assert f"\n{table}\n" in page, "run python docs/scale_tables.py"


def test_the_command_prints_whole_names_at_80_columns(monkeypatch, capsys):
    # Its file is looked up at each print, so that what is printed is caught.
    narrow = Console(width=80, force_terminal=True, color_system=None)
    for module in ("screen", "plan"):
        monkeypatch.setattr(f"layermem_bench.cli.{module}.screen", lambda: narrow)
    cli.main(["costs", "paper-1b-gqa", "--gpus", "1", "--device", "rtx4090"])
    printed = capsys.readouterr().out
    assert all(len(line) <= 80 for line in printed.splitlines())
    labels = ("memory: logits and loss", "memory: communication", "GPU-hours", "step by network")
    for label in labels:
        assert label in printed
    said = " ".join(printed.split())
    assert "lime does not fit" in said and "--checkpoint-activations" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "h100"], "--device has no effect without --gpus"),
        (["--gpus", "8"], "--gpus needs --device"),
        (["--gpus", "8", "--device", "h10"], "unknown device 'h10'; did you mean h100?"),
        (["--gpus", "8", "--device", "h100", "--measure"], "--measure is of no plan"),
        (
            ["--gpus", "8", "--device", "h100", "--batch", "2", "--repeats", "3"],
            "--batch, --repeats is of no plan",
        ),
        (["--gpus", "8", "--device", "h100", "--modes", "default"], "--modes is of no plan"),
        (
            ["--batch", "2", "--modes", "default"],
            "--batch, --modes has no effect without --measure",
        ),
        (["--repeats", "3"], "--repeats has no effect without --measure"),
        (["--precision", "bfloat16"], "--precision has no effect without --measure"),
        (["--gpus", "0", "--device", "h100"], "--gpus must be at least 1, got 0"),
    ],
)
def test_options_of_a_plan_that_make_no_sense_are_refused(options, message, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["costs", "paper-1b-gqa", *options])
    said = "".join(capsys.readouterr()).replace("│", " ")
    assert message in " ".join(f"{left.value} {said}".split())
