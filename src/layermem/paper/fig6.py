"""Figure 6: deep decoders, and whether LIMe of half the depth matches a plain one of full depth."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from layermem.efficiency.model_sizes import reshaped
from layermem.paper.artefact import Artefact, Observing, board
from layermem.paper.fig1 import NEEDS, TRAINING_LOSS
from layermem.paper.observing import losses
from layermem.presets import get_preset
from layermem.results.study import Claim, Drawing, Point, Scale
from layermem.study.definition import Board, Observed

_DEPTHS: dict[Scale, tuple[int, ...]] = {
    "tiny": (8, 16, 32, 64),
    "small": (16, 32, 64),
    "paper": (32, 64, 128),
}
_TINY_WIDTH = 32
_RATES: dict[Scale, tuple[float, ...]] = {
    "tiny": (1e-3, 3e-3, 1e-2),
    "small": (3e-4, 1e-3, 3e-3),
    "paper": (),
}
_LOSS = "validation loss"


def _study(scale: Scale, depth: int) -> Board:
    if scale == "tiny":
        base = reshaped(get_preset("tiny-lm"), depth, _TINY_WIDTH)
    elif scale == "small":
        papers = get_preset("paper-depth-32").model
        base = replace(get_preset("small-30m"), model=replace(papers, num_hidden_layers=depth))
    else:
        base = get_preset(f"paper-depth-{depth}")
    return board(
        name=f"{scale}-depth-{depth}", base=base, arms=("plain", "lime"), rates=_RATES[scale]
    )


def _at(arm: str, depth: int) -> str:
    return f"{arm}, {depth} layers"


def _boards(scale: Scale) -> tuple[Board, ...]:
    return tuple(_study(scale, depth) for depth in _DEPTHS[scale])


def _observe(trained: Observing) -> Iterator[Observed]:
    for depth in _DEPTHS[trained.scale]:
        for observed in losses(trained, _study(trained.scale, depth).name, _LOSS):
            yield replace(observed, arm=_at(observed.arm, depth))


def _claims(scale: Scale) -> tuple[Claim, ...]:
    depths = _DEPTHS[scale]
    # The deepest first, as half of it against all of it is what the figure is known for.
    pairs = [*reversed(list(pairwise(depths))), *((depth, depth) for depth in reversed(depths))]
    return tuple(
        Claim(
            quantity=_LOSS, arm=_at("lime", ours), against=_at("plain", theirs), direction="lower"
        )
        for ours, theirs in pairs
    )


def _drawings(scale: Scale) -> tuple[Drawing, ...]:
    points = (
        Point(quantity=_LOSS, arm=_at(arm, depth), line=arm, at=depth)
        for arm in ("plain", "lime")
        for depth in _DEPTHS[scale]
    )
    return (Drawing(kind="lines", across="layers", up=_LOSS, points=tuple(points)),)


ARTEFACT = Artefact(
    title="Deep decoders: loss by depth",
    claim="LIMe outperforms LLaMA at 32, 64 and 128 layers, and LIMe of 64 layers outperforms "
    "LLaMA of 128.",
    boards=_boards,
    observe=_observe,
    claims=_claims,
    drawings=_drawings,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(
        TRAINING_LOSS,
        "Scale tiny has heads of width 8: its deepest models are those of the board "
        "tiny-lm@64x32; scale small has the paper's width and heads.",
        "The figure prints no numbers; width, steps and seed are those of an earlier release of "
        "the paper's code, the learning rate is assumed.",
    ),
)
