"""Curves: what they name, what they refuse, and the same file twice."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from recorded import SIZES, record

from layermem_bench import cli
from layermem_bench.config.run import Data, Labels, Optim
from layermem_bench.report.drawings import curves_of_arms, draw_curves
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import Validation
from layermem_bench.study.labelled_runs import find_runs

SVG = "{http://www.w3.org/2000/svg}"


def a_folder(path, variant="lime", validates=True, **changes):
    """Record a run whose losses fall to 0.3; return its folder."""
    options = () if variant == "plain" else ("router=full",)
    changes.setdefault("model", replace(SIZES, options=options))
    path = record(path, variant=variant, final=0.3, **{"seed": 3, "ended": False, **changes})
    if not validates:
        folder = RunFolder(path)
        folder.write_rows([row for row in folder.rows() if "val_loss" not in row])
    return path


def draw(runs, out):
    found = find_runs(runs)
    draw_curves(found, {name: run.labels.arm for name, (run, _) in found.items()}, out)


def test_both_runs_are_named_with_their_last_loss(tmp_path):
    runs = [a_folder(tmp_path / v, v) for v in ("lime", "plain")]
    for name in ("a.svg", "b.svg"):
        draw(runs, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert "lime:router=full, seed 3: validation loss 0.300" in text
    assert "plain, seed 3: validation loss 0.300" in text
    assert text == (tmp_path / "b.svg").read_text()


def test_runs_of_one_arm_and_seed_are_told_apart_by_their_folders(tmp_path):
    """They differ in what came to the same, such as a precision."""
    runs = find_runs([a_folder(tmp_path / f"{lr}", optim=Optim(lr=lr)) for lr in (0.1, 0.2)])
    draw_curves(runs, dict.fromkeys(runs, "lime"), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "lime, seed 3 (0.1): validation loss" in text
    assert "lime, seed 3 (0.2): validation loss" in text


def test_seeds_of_several_arms_are_named_together(tmp_path):
    runs = [
        a_folder(tmp_path / f"{variant}-{seed}", variant, seed=seed)
        for variant in ("plain", "lime")
        for seed in range(3)
    ]
    for run in runs[:-1]:
        (run / "final").mkdir()
    folder = RunFolder(runs[0])
    last = folder.last_row()
    folder.append_row({**last, "step": last["step"] + 1, "val_loss": 0.25})
    draw(runs, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "plain, 3 runs: validation loss 0.250 to 0.300<" in text
    step = RunFolder(runs[-1]).last_row()["step"]
    assert f"3 runs: validation loss 0.300 to 0.300; seed 2 (at step {step})<" in text
    # Nothing else is named.
    assert text.count("validation loss") == 2


def test_many_arms_are_named_below_the_axes(tmp_path):
    """Within, they would hide the curves; outside of the figure nobody reads them."""
    runs = [a_folder(tmp_path / f"{i}", labels=Labels(arm=f"a{i}")) for i in range(1, 20)]
    draw(runs[:4], tmp_path / "few.svg")
    # A warning, of a figure without room for its axes say, is an error here.
    draw(runs, tmp_path / "many.svg")
    few, many = (ElementTree.parse(tmp_path / f"{name}.svg") for name in ("few", "many"))
    assert float(few.getroot().get("height")[:-2]) == 4.0 * 72
    height, width = (float(many.getroot().get(side)[:-2]) for side in ("height", "width"))
    below = {text.text: float(text.get("y")) for text in many.iter(f"{SVG}text") if text.text}
    named = {text: y for text, y in below.items() if "seed 3" in text}
    assert len(named) == 19 and below["tokens"] < min(named.values())
    assert max(named.values()) < height
    assert all(0 < float(t.get("x")) < width for t in many.iter(f"{SVG}text") if t.get("x"))


def test_what_has_not_ended_or_has_diverged_is_said(tmp_path):
    ended, going, lost, old = (a_folder(tmp_path / f"{s}", seed=s) for s in range(4))
    for path in (ended, old):
        (path / "final").mkdir()
    RunFolder(lost).record_divergence("abc", 21, "not finite")
    RunFolder(old).append_row({"step": 50, "tokens": 5000, "val_loss": math.nan})
    draw([ended, going, lost, old], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    last = RunFolder(going).last_row()["step"]
    assert "seed 0: validation loss 0.300<" in text
    assert f"seed 1: validation loss 0.300 (at step {last})" in text
    assert f"seed 2: validation loss 0.300 (diverged by step {last})" in text
    assert "seed 3: validation loss nan (diverged by step 50)" in text


def test_a_run_without_validation_and_another_format(tmp_path):
    draw([a_folder(tmp_path / "a", validates=False)], tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        draw([tmp_path / "nowhere"], tmp_path / "a.svg")
    with pytest.raises(ValueError, match="at least one"):
        draw([], tmp_path / "a.svg")
    with pytest.raises(ValueError, match="new holds no metrics yet: leave it out"):
        draw([a_folder(tmp_path / "new", rows=0)], tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"must end in .svg, .png or .pdf, got .*a.foo"):
        draw([a_folder(tmp_path / "a")], tmp_path / "a.foo")


def test_runs_whose_losses_do_not_compare_are_not_drawn_together(tmp_path):
    one, other = (a_folder(tmp_path / n, about={"data": n}, seed=i) for i, n in enumerate("ab"))
    away = a_folder(tmp_path / "away", data=Data(source="a.jsonl"))
    figure = ["--figure", str(tmp_path / "a.svg")]
    for runs, named in (((one, other), "a, b"), ((one, away), "a.jsonl")):
        with pytest.raises(SystemExit, match=named):
            cli.main(["report", *map(str, runs), *figure])
    cli.main(["report", str(one), *figure])
    assert (tmp_path / "a.svg").exists()


def test_an_arm_is_the_mean_of_its_seeds_between_the_lowest_and_the_highest():
    def rows(*values, tokens=10):
        return [
            Validation(step=i, tokens=tokens * i, val_loss=loss) for i, loss in enumerate(values, 1)
        ]

    three = [rows(3.0, 2.0, 1.0), rows(6.0, 5.0, tokens=12), rows(9.0, 2.0, tokens=14)]
    series, bands = curves_of_arms({"a": three, "b": [rows(4.0)], "c": [[]]}, "tokens", "val_loss")
    # The third step is of one seed alone; nothing is known of c.
    assert series == {"a": ([12, 24], [6.0, 3.0]), "b": ([10], [4.0])}
    assert bands == {"a": ([3.0, 2.0], [9.0, 5.0]), "b": ([4.0], [4.0])}
    assert curves_of_arms({"a": three}, "tokens", "val_accuracy") == ({}, {})
