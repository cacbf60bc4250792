"""Results there and back, and files of another kind, version or shape refused by name."""

import json
import math
from dataclasses import replace

import pytest

from layermem_bench.config.result_files import from_json, read_result, to_json
from layermem_bench.costs.result import Cost, CostPoint, Costs, Measurement

COST = Cost(parameters=10, forward=2.0, training=6.0)
POINT = CostPoint(
    preset="tiny-lm",
    layers=2,
    width=16,
    heads=2,
    kv_heads=1,
    tokens=8,
    counted={"plain": {"honest": COST, "paper": COST}},
    measured={"eager": {"plain": Measurement(seconds=0.1, low=0.09, high=0.2, peak=None)}},
)
COSTS = Costs(command="layermem costs tiny-lm", points=(POINT,), machine="a CPU")


def test_a_result_comes_back_from_its_json():
    assert from_json(Costs, to_json(COSTS), "x") == COSTS
    values = json.loads(to_json(COSTS))
    assert list(values)[:2] == ["kind", "version"]
    assert values["points"][0]["counted"]["plain"]["paper"]["parameters"] == 10


def test_a_result_is_read_from_its_file_or_its_folder(tmp_path):
    (tmp_path / "costs.json").write_text(to_json(COSTS))
    assert read_result(Costs, tmp_path) == read_result(Costs, tmp_path / "costs.json") == COSTS
    with pytest.raises(FileNotFoundError, match="no.json does not exist; layermem costs --out"):
        read_result(Costs, tmp_path / "no.json")


def changed(**changes):
    return json.dumps({**json.loads(to_json(COSTS)), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        changed(kind="analysis"),
        changed(version=2),
        changed(points=[{}]),
        changed(surprise=1),
        changed(machine=4),
    ],
)
def test_a_file_that_is_not_such_a_result_is_refused(text):
    with pytest.raises(ValueError, match="x (is not what|holds version|is damaged)"):
        from_json(Costs, text, "x")


def test_what_is_not_finite_is_not_written():
    point = replace(POINT, counted={"plain": {"honest": replace(COST, forward=math.nan)}})
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(replace(COSTS, points=(point,)))
