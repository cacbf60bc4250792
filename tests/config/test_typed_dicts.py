"""Dataclasses from plain dicts: what comes back, and what is refused by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from layermem_bench.config.typed_dicts import from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class Point:
    x: float
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    kind: Literal["line", "dots"]
    points: tuple[Point, ...]
    by_seed: Mapping[int, Point] = field(default_factory=dict)
    heatmap: tuple[tuple[float, ...], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def test_json_gives_back_the_same_dataclass():
    drawing = Drawing(
        kind="dots",
        points=(Point(x=1.5), Point(x=2.0, label="b")),
        by_seed={0: Point(x=0.0), 10: Point(x=-1.0)},
        heatmap=((1.0,), (0.25, 0.75)),
        options={"a": [1, {"b": None}]},
    )
    assert from_dict(Drawing, json.loads(json.dumps(to_dict(drawing))), "") == drawing
    assert isinstance(from_dict(Point, {"x": 1}, "").x, float)
    # YAML reads it as a text.
    assert from_dict(Point, {"x": "-2.5E4"}, "") == Point(x=-25000.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "area"}, "kind"),
        ({"points": [{}]}, "points.x"),
        ({"points": [{"x": True}]}, "points.x"),
        ({"points": [{"x": 1.0, "y": 2.0}]}, "points.y"),
        ({"points": {"x": 1.0}}, "points"),
        ({"by_seed": {"first": {"x": 1.0}}}, "first"),
        ({"by_seed": [1]}, "by_seed"),
        ({"by_seed": {"3": {"x": "far"}}}, "by_seed.3.x"),
        ({"heatmap": [[1.0], ["a"]]}, "heatmap"),
    ],
)
def test_what_does_not_fit_its_type_is_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        from_dict(Drawing, {"kind": "line", "points": [{"x": 1.0}], **change}, "")
