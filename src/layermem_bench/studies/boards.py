"""Boards (tiny-lm@64x32) and arms (plain,lime:router=last) by their names, and studies of them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from layermem.models.registry import BUILT_WITH, check_names, list_variants, lookup
from layermem_bench.config.run import Model, Run
from layermem_bench.costs.model_sizes import reshaped
from layermem_bench.presets import get_preset
from layermem_bench.run.setup import adds_parameters, check_options
from layermem_bench.studies.definition import Arm, Board, Study
from layermem_bench.studies.planning import plain_parameters, with_parameters
from layermem_bench.studies.recipe import VARIANTS, with_recipe

_SHAPE = re.compile(r"(?P<layers>[1-9]\d*)x(?P<width>[1-9]\d*)")


def parse_arms(names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return variant and options of each arm in ``plain,lime,lime:router_init=identity``.

    A comma within brackets belongs to an option: ``lime:router_sources=[[],[0]]``. ``all`` stands
    for every variant, the plain decoder first. ``recipe`` is ``lime``, and ``recipe_half`` is
    ``lime_half``, with the fields of ``layermem.RECIPE``, of which an option may replace some:
    ``recipe:router_grain=pair``.
    """
    arms: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name in _separated(names):
        if name == "all":
            arms |= {each: (each, ()) for each in dict.fromkeys(("plain", *list_variants()))}
            continue
        if name in arms:
            raise ValueError(f"the arm {name} is named twice")
        variant, *options = with_recipe(*name.split(":"))
        fields = Model(options=tuple(options)).variant_fields()
        check_names(lookup(variant, VARIANTS), fields.keys() - BUILT_WITH)
        arms[name] = variant, tuple(options)
    return arms


def _separated(names: str) -> Iterator[str]:
    """Yield what commas outside of brackets separate."""
    depth, name = 0, ""
    for letter in f"{names},":
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            yield name.strip()
            depth, name = 0, ""
        else:
            name += letter
    if name:
        raise ValueError(f"a bracket is left open in {names!r}")


def as_named_arm(run: Run) -> Run:
    """Return a run whose variant is named as an arm is: ``recipe``, ``lime:router=average``."""
    arms = parse_arms(run.variant)
    if len(arms) != 1:
        raise ValueError(
            f"a run trains one variant, got {run.variant}; several are for layermem study"
        )
    ((name, (variant, options)),) = arms.items()
    both = {each.partition("=")[0] for each in options} & run.model.variant_fields().keys()
    if both:
        raise ValueError(
            f"--variant {name} says {', '.join(sorted(both))} itself: give it there "
            f"({name}:NAME=VALUE), not as --model.options"
        )
    model = replace(run.model, options=(*run.model.options, *options))
    labels = run.labels if run.labels.arm else replace(run.labels, arm=name)
    return replace(run, variant=variant, model=model, labels=labels)


def arms_of_variants(names: str | Sequence[str], base: Run) -> tuple[Arm, ...]:
    """Return arms for a board of these runs; refuse one that cannot be built at its sizes.

    ``optim.router_lr`` is left out of arms that add no parameters.
    """
    arms, first_of = [], dict[tuple[str, str, str], str]()
    asked = parse_arms(names if isinstance(names, str) else ",".join(names))
    for name, (variant, options) in asked.items():
        run = _as_variant(base, variant, options, router_lr=True)
        try:
            config = check_options(run.variant, run.model).to_json_string(use_diff=False)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        takes = run.optim.router_lr is None or adds_parameters(run.variant, run.model)
        change = partial(_as_variant, variant=variant, options=options, router_lr=takes)
        # An option may give a field the value that it has anyway: two arms would be one run.
        built_with = {k: v for k, v in run.model.variant_fields().items() if k in BUILT_WITH}
        bare = replace(change(base), model=replace(run.model, options=()))
        if (first := first_of.setdefault((bare.id, config, str(built_with)), name)) != name:
            raise ValueError(f"{first} and {name} are the same run: name one")
        arms.append(Arm(name=name, change=change))
    return tuple(arms)


def _as_variant(run: Run, variant: str, options: tuple[str, ...], router_lr: bool) -> Run:
    model = replace(run.model, options=(*run.model.options, *options))
    optim = run.optim if router_lr else replace(run.optim, router_lr=None)
    return replace(run, variant=variant, model=model, optim=optim)


def board_of(
    run: Run,
    variants: str,
    rates: Sequence[float] = (),
    *,
    name: str = "",
    shape: str = "",
) -> Board:
    """Return a board of variants; the run's own variant has no effect."""
    return Board(
        name=name or run.preset,
        base=run,
        arms=arms_of_variants(variants, run),
        rates=tuple(rates),
        shape=shape,
    )


def board_of_one(run: Run, arm: str = "") -> Board:
    """Return the board of a run whose one arm, of this name, is the run as it is."""
    arms = (Arm(name=arm or run.labels.arm or run.variant, change=lambda base: base),)
    return Board(name=run.preset, base=run, arms=arms)


def open_boards(names: Sequence[str], variants: str) -> list[Board]:
    """Return the boards of some names, such as ``tiny-lm@64x32``: 64 layers of width 32.

    Heads keep their width. The mlp of a preset's first shape has the preset's ratio; that of its
    other shapes is as wide as it takes to have the first one's parameters.
    """
    boards, firsts = list[Board](), dict[str, Run]()
    for name in names:
        preset, at, shape = name.partition("@")
        if at and not _SHAPE.fullmatch(shape):
            raise ValueError(
                f"a board is PRESET or PRESET@LAYERSxWIDTH (tiny-lm@64x32), got {name!r}"
            )
        run = get_preset(preset)
        if shape:
            run = reshaped(run, *map(int, shape.split("x")))
            first = firsts.setdefault(run.preset, run)
            if run is not first:
                plain = with_parameters(replace(run, variant="plain"), plain_parameters(first))
                run = replace(run, model=plain.model)
        folder = f"{run.preset}-{shape}" if shape else run.preset
        boards.append(board_of(run, variants, name=folder, shape=shape))
    return boards


def study_of_variants(
    boards: Sequence[Board], seeds: Sequence[int], conditions: Sequence[str]
) -> Study:
    """Return the study of some boards."""
    if not boards:
        raise ValueError("name at least one board")
    names = [board.name for board in boards]
    arms = [arm.name for arm in boards[0].arms]
    shown = " against ".join(arms) if len(arms) < 4 else f"{len(arms)} arms"
    return Study(
        name="+".join(names),
        title=f"{shown} on {', '.join(names)}",
        boards=tuple(boards),
        seeds=tuple(seeds),
        conditions=tuple(conditions),
    )
