"""Results there and back, and files of another kind, version or shape refused by name."""

import json
import math
from dataclasses import replace

import pytest

from layermem_bench.config.result_files import from_json, read_result, to_json
from layermem_bench.studies.result import MeasuredSteps

STEPS = MeasuredSteps(
    machine="a CPU", base="0a", rounds=9, seconds={"plain": 0.1}, ratios={"plain": 1.0}
)


def test_a_result_comes_back_from_its_file_or_its_folder(tmp_path):
    (tmp_path / "steps.json").write_text(to_json(STEPS))
    assert (
        read_result(MeasuredSteps, tmp_path)
        == read_result(MeasuredSteps, tmp_path / "steps.json")
        == STEPS
    )
    assert list(json.loads(to_json(STEPS)))[:2] == ["kind", "version"]
    with pytest.raises(FileNotFoundError, match="no.json does not exist; layermem study"):
        read_result(MeasuredSteps, tmp_path / "no.json")


@pytest.mark.parametrize(
    "changes",
    [{"kind": "analysis"}, {"version": 2}, {"seconds": [{}]}, {"surprise": 1}, {"machine": 4}],
)
def test_a_file_that_is_not_such_a_result_is_refused(changes):
    text = json.dumps({**json.loads(to_json(STEPS)), **changes})
    for each in (text, "{", "[]"):
        with pytest.raises(ValueError, match="^x is not what layermem study writes"):
            from_json(MeasuredSteps, each, "x")


def test_what_is_not_finite_is_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(replace(STEPS, ratios={"plain": math.nan}))
