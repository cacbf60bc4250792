"""Results there and back, and files of another kind, version or shape refused by name."""

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from layermem_bench.config.typed_dicts import from_json, read_result, to_json


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    KIND: ClassVar[str] = "made-up"
    VERSION: ClassVar[int] = 1
    COMMAND: ClassVar[str] = "layermem make-up"

    values: tuple[float, ...]


MADE_UP = MadeUp(values=(1.0, 0.5))


def test_a_result_comes_back_from_its_file_or_its_folder(tmp_path):
    (tmp_path / "made-up.json").write_text(to_json(MADE_UP))
    assert read_result(MadeUp, tmp_path) == read_result(MadeUp, tmp_path / "made-up.json")
    assert read_result(MadeUp, tmp_path) == MADE_UP
    with pytest.raises(FileNotFoundError, match="no.json does not exist; layermem make-up"):
        read_result(MadeUp, tmp_path / "no.json")


CHANGES = ({"kind": "other"}, {"version": 2}, {"surprise": 1}, {"values": ["x"]})


@pytest.mark.parametrize(
    "text", ["{", "[]", *(json.dumps(json.loads(to_json(MADE_UP)) | each) for each in CHANGES)]
)
def test_a_file_that_is_not_such_a_result_is_refused(text):
    with pytest.raises(ValueError, match="^x is not what layermem make-up writes"):
        from_json(MadeUp, text, "x")


def test_what_is_not_finite_is_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(MadeUp(values=(math.nan,)))
