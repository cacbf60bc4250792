"""Curves: what they name, what they refuse, and the same file twice."""

import math

import pytest
import yaml

from layermem_bench.report.drawings import curves_of_arms, draw_curves
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import Validation


def a_folder(path, variant="lime", rows=20, validates=True):
    folder = RunFolder(path)
    folder.create()
    config = {"variant": variant, "seed": 3, "model": {"options": ["router=full"]}}
    folder.config.write_text(yaml.safe_dump(config))
    for step in range(1, rows + 1):
        folder.append_row({"step": step, "tokens": 100 * step, "loss": 5 / step})
        if validates and step % 5 == 0:
            folder.append_row({"step": step, "tokens": 100 * step, "val_loss": 6 / step})
    return path


def test_both_runs_are_named_with_their_last_loss(tmp_path):
    runs = [a_folder(tmp_path / v, v) for v in ("lime", "plain")]
    for name in ("a.svg", "b.svg"):
        draw_curves(runs, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert "lime router=full, seed 3: validation loss 0.300" in text
    assert "plain router=full, seed 3" in text
    assert text == (tmp_path / "b.svg").read_text()


def test_runs_called_alike_are_told_apart_by_their_folders(tmp_path):
    runs = [a_folder(tmp_path / name, "lime") for name in ("fast", "slow")]
    draw_curves([*runs, a_folder(tmp_path / "plain", "plain")], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "lime router=full, seed 3 (fast): validation loss" in text
    assert "lime router=full, seed 3 (slow): validation loss" in text
    assert "plain router=full, seed 3: validation loss" in text


def test_what_has_not_ended_or_has_diverged_is_said(tmp_path):
    ended, going, lost, old = (a_folder(tmp_path / v, v) for v in ("e", "g", "l", "o"))
    for path in (ended, old):
        (path / "final").mkdir()
    RunFolder(lost).record_divergence("abc", 21, "not finite")
    RunFolder(old).append_row({"step": 30, "tokens": 3000, "val_loss": math.nan})
    draw_curves([ended, going, lost, old], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    last = RunFolder(going).last_row()["step"]
    assert "e router=full, seed 3: validation loss 0.300<" in text
    assert f"g router=full, seed 3: validation loss 0.300 (at step {last})" in text
    assert f"l router=full, seed 3: validation loss 0.300 (diverged by step {last})" in text
    assert "o router=full, seed 3: validation loss nan (diverged by step 30)" in text


def test_a_run_without_validation_and_another_format(tmp_path):
    draw_curves([a_folder(tmp_path / "a", validates=False)], tmp_path / "new" / "a.png")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="nowhere is no run folder, or holds no metrics yet"):
        draw_curves([tmp_path / "nowhere"], tmp_path / "a.svg")
    with pytest.raises(ValueError, match="at least one"):
        draw_curves([], tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"must end in .svg, .png or .pdf, got .*a.foo"):
        draw_curves([tmp_path / "nowhere"], tmp_path / "a.foo")


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
