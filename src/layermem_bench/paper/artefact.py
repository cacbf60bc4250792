"""What artefacts of the paper are made of: scales, boards, claims, numbers and drawings."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from layermem_bench.config.run import Run
from layermem_bench.presets import get_preset
from layermem_bench.studies.boards import board_of
from layermem_bench.studies.definition import Board, Observed, Study
from layermem_bench.studies.result import (
    Claim,
    Direction,
    Drawing,
    PaperNumber,
    Point,
    RunRecord,
    Scale,
)

T = TypeVar("T")
SCALES: tuple[Scale, ...] = get_args(Scale)
SEEDS: Mapping[Scale, int] = {"tiny": 5, "small": 3, "paper": 1}
"""Seeds of each scale where none are asked for; the paper reports one run of each arm."""
FINEWEB = "a GPU, and FineWeb-Edu and GPT-2's tokenizer from the network"
_TINY_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
# Learning rates that are tried; the paper has one.
_TEXT_RATES = {"tiny": _TINY_RATES, "small": (3e-4, 1e-3, 3e-3), "paper": ()}
_ARITHMETIC_RATES = {"tiny": _TINY_RATES, "small": (1e-3, 3e-3, 1e-2), "paper": ()}
Runs = Mapping[str, Mapping[int, RunRecord]]
"""Ended runs of a board by arm and seed."""


@dataclass(frozen=True, kw_only=True)
class Artefact(Study):
    """A table or figure at one scale; ``get_artefact`` says its name, its title and its seeds."""

    name: str = ""
    title: str = ""
    seeds: tuple[int, ...] = (0,)
    boards: tuple[Board, ...] = ()
    tasks: tuple[str, ...] = ()
    """Evaluation tasks that models are asked, by their columns."""
    needs: str = ""
    """What it needs, a GPU among it, without which it is refused; empty: a CPU is enough."""


def board(scale: Scale, base: Run, arms: str = "plain,lime", name: str = "") -> Board:
    """Return a board of variants with the learning rates that are tried at a scale."""
    rates = _ARITHMETIC_RATES if base.task.name else _TEXT_RATES
    return board_of(base, arms, rates[scale], name=name)


def grouped_queries(scale: Scale, arms: str = "plain,lime") -> Board:
    """Return the runs on text with grouped-query attention; the paper's 1B has 8 heads of 32."""
    if scale == "paper":
        return board(scale, get_preset("paper-1b-gqa"), arms)
    base = get_preset("tiny-lm" if scale == "tiny" else "small-30m")
    grouped = replace(base, model=replace(base.model, num_key_value_heads=2))
    return board(scale, grouped, arms, f"{base.preset}-gqa")


def full_attention(scale: Scale) -> Board:
    """Return the runs on text with a key-value head for every query head."""
    presets = {"tiny": "tiny-lm", "small": "small-30m", "paper": "paper-1b-full"}
    return board(scale, get_preset(presets[scale]))


def lime_is(
    direction: Direction, *quantities: str, against: str | None = "plain"
) -> tuple[Claim, ...]:
    """Return how LIMe is claimed to differ from another arm in some quantities."""
    return tuple(
        Claim(quantity=quantity, arm="lime", direction=direction, against=against)
        for quantity in quantities
    )


def shares(where: str, printed: Mapping[tuple[str, str], float]) -> tuple[PaperNumber, ...]:
    """Return shares that the paper prints, by quantity and arm."""
    return tuple(
        PaperNumber(quantity=quantity, arm=arm, value=value, where=where, is_share=True)
        for (quantity, arm), value in printed.items()
    )


def lines(
    up: str, across: str, places: Iterable[int], row: Callable[[str, int], tuple[str, str]]
) -> Drawing:
    """Return a drawing of a line for the plain decoder and one for LIMe.

    ``places``: where points stand across. ``row``: the quantity and the arm of a line's point.
    """
    points = tuple(
        Point(quantity=quantity, arm=arm, line=line, at=at)
        for line in ("plain", "lime")
        for at in places
        for quantity, arm in [row(line, at)]
    )
    return Drawing(across=across, up=up, points=points)


def observe(
    by_arm: Mapping[str, Mapping[int, T]],
    quantity: str,
    value: Callable[[T], float],
    chance: Callable[[T], float] | None = None,
    *,
    is_share: bool = False,
) -> Iterator[Observed]:
    """Yield a number of what each arm has by seed; ``chance``: what a guess at it comes to."""
    for arm, by_seed in by_arm.items():
        yield Observed(
            quantity=quantity,
            arm=arm,
            by_seed={seed: value(each) for seed, each in by_seed.items()},
            is_share=is_share,
            chance=max(map(chance, by_seed.values()), default=None) if chance else None,
        )


def pairs(runs: Runs) -> dict[int, tuple[RunRecord, RunRecord]]:
    """Return LIMe's run and the plain decoder's by seed, of the seeds that both have."""
    lime, plain = (runs.get(arm, {}) for arm in ("lime", "plain"))
    return {seed: (run, plain[seed]) for seed, run in lime.items() if seed in plain}
