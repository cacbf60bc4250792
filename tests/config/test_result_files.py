"""Results there and back, and files of another kind, version or shape refused by name."""

import json
import math
from dataclasses import replace

import pytest
from recorded import a_point

from layermem_bench.config.result_files import from_json, read_result, to_json
from layermem_bench.costs.result import Costs, Measurement

MEASURED = {"eager": {"plain": Measurement(seconds=0.1, low=0.09, high=0.2, peak=None)}}
COSTS = Costs(command="layermem costs", points=(a_point(2, measured=MEASURED),), machine="a CPU")


def test_a_result_comes_back_from_its_file_or_its_folder(tmp_path):
    (tmp_path / "costs.json").write_text(to_json(COSTS))
    assert read_result(Costs, tmp_path) == read_result(Costs, tmp_path / "costs.json") == COSTS
    assert list(json.loads(to_json(COSTS)))[:2] == ["kind", "version"]
    with pytest.raises(FileNotFoundError, match="no.json does not exist; layermem costs --out"):
        read_result(Costs, tmp_path / "no.json")


@pytest.mark.parametrize(
    "changes",
    [{"kind": "analysis"}, {"version": 2}, {"points": [{}]}, {"surprise": 1}, {"machine": 4}],
)
def test_a_file_that_is_not_such_a_result_is_refused(changes):
    text = json.dumps({**json.loads(to_json(COSTS)), **changes})
    for each in (text, "{", "[]"):
        with pytest.raises(ValueError, match="^x is not what layermem costs --out writes"):
            from_json(Costs, each, "x")


def test_what_is_not_finite_is_not_written():
    measured = {"eager": {"plain": replace(MEASURED["eager"]["plain"], seconds=math.nan)}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(replace(COSTS, points=(a_point(2, measured=measured),)))
