"""Boards (tiny-lm@64x32) and arms (plain,lime:router=last) by their names, and studies of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from layermem.models.registry import BUILT_WITH, check_names, list_variants, lookup
from layermem_bench.config.run import Model, Run, merged
from layermem_bench.efficiency.model_sizes import reshaped
from layermem_bench.presets import get_preset
from layermem_bench.presets import names as presets
from layermem_bench.study.definition import Arm, Board, Study
from layermem_bench.study.planning import plain_parameters, with_parameters
from layermem_bench.study.recipe import VARIANTS, with_recipe
from layermem_bench.train.setup import adds_parameters, check_options, check_router_lr


def parse_arms(names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return variant and options of each arm in ``plain,lime,lime:router_init=identity``.

    A comma within brackets belongs to an option: ``lime:router_sources=[[],[0]]``. ``all`` stands
    for every variant, the plain decoder first. ``recipe`` is ``lime``, and ``recipe_half`` is
    ``lime_half``, with the fields of ``layermem.RECIPE``, of which an option may replace some:
    ``recipe:router_grain=pair``.
    """
    arms: dict[str, tuple[str, tuple[str, ...]]] = {}
    depth, arm = 0, ""
    for name in VARIANTS.keys() & {*list_variants()}:
        raise ValueError(
            f"a plugin's variant is called {name}, which stands for {VARIANTS[name]} with the "
            "fields of layermem.RECIPE here: give the variant another name"
        )
    for letter in f"{names},":
        depth += (letter in "[{") - (letter in "]}")
        if letter != "," or depth:
            arm += letter
            continue
        if arm.strip() in arms:
            raise ValueError(f"{arm.strip()} is named twice in {names!r}: name an arm once")
        variant, *options = with_recipe(*arm.strip().split(":"))
        if variant == "all" and not options:
            arms |= {name: (name, ()) for name in dict.fromkeys(("plain", *list_variants()))}
        else:
            fields = Model(options=tuple(options)).variant_fields()
            check_names(lookup(variant, VARIANTS), fields.keys() - BUILT_WITH)
            arms[arm.strip()] = variant, tuple(options)
        arm = ""
    if depth:
        raise ValueError(f"a bracket is open or closed too often in {names!r}")
    return arms


def as_named_arm(run: Run) -> Run:
    """Return a run whose variant is named as an arm is: ``recipe``, ``lime:router=average``."""
    arms = parse_arms(run.variant)
    if len(arms) != 1:
        raise ValueError(
            f"a run trains one variant, got {run.variant}; several are for layermem study"
        )
    ((variant, options),) = arms.values()
    named = Model(options=options).variant_fields()
    for name, value in run.model.variant_fields().items():
        if named.get(name, value) != value:
            raise ValueError(
                f"{run.variant} has {name}={named[name]}, and the options of the model have "
                f"{name}={value}: keep one (--variant {run.variant.partition(':')[0]}:{name}=...)"
            )
    model = replace(run.model, options=merged(run.model.options, options))
    return replace(run, variant=variant, model=model)


def arms_of_variants(
    names: str | Sequence[str], base: Run, *, own_rates: bool = False
) -> tuple[Arm, ...]:
    """Return arms for a board of these runs; refuse one that cannot be built at its sizes.

    ``optim.router_lr`` is left out of arms that add no parameters, and refused if none does.
    ``own_rates``: whether arms are to say if they add some.
    """
    arms = []
    asked = parse_arms(names if isinstance(names, str) else ",".join(names))
    for name, (variant, options) in asked.items():
        run = _as_variant(base, variant, options, router_lr=True)
        try:
            check_options(run.variant, run.model)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        takes = run.optim.router_lr is None or adds_parameters(run.variant, run.model)
        change = partial(_as_variant, variant=variant, options=options, router_lr=takes)
        has_own_rate = own_rates and adds_parameters(run.variant, run.model)
        arms.append(Arm(name=name, change=change, has_own_rate=has_own_rate))
    _check_differ(arms, base)
    if base.optim.router_lr is not None and all(
        arm.change(base).optim.router_lr is None for arm in arms
    ):
        check_router_lr(replace(arms[0].change(base), optim=base.optim))
    return tuple(arms)


def _check_differ(arms: Sequence[Arm], base: Run) -> None:
    """Raise where two arms are one run, whose difference would be found to be none."""
    named: dict[tuple[str, str, str], str] = {}
    for arm in arms:
        run = arm.change(base)
        # An option may give a field the value that it has anyway.
        config = check_options(run.variant, run.model).to_json_string(use_diff=False)
        built_with = {k: v for k, v in run.model.variant_fields().items() if k in BUILT_WITH}
        without = replace(run, model=replace(run.model, options=()))
        first = named.setdefault((without.id, config, str(built_with)), arm.name)
        if first != arm.name:
            of_base = " ".join(base.model.options)
            raise ValueError(
                f"{first} and {arm.name} are the same run"
                f"{of_base and f', with the options of the model ({of_base})'}: name one"
            )


def _as_variant(run: Run, variant: str, options: tuple[str, ...], router_lr: bool) -> Run:
    model = replace(run.model, options=(*run.model.options, *options))
    optim = run.optim if router_lr else replace(run.optim, router_lr=None)
    return replace(run, variant=variant, model=model, optim=optim)


OTHER_NAMES = {"recall": "mqar"}
"""Boards that are called otherwise than their presets."""
_SHAPE = re.compile(r"(?P<layers>[1-9]\d*)x(?P<width>[1-9]\d*)")


def study_of_variants(
    boards: Sequence[Board], seeds: Sequence[int], conditions: Sequence[str]
) -> Study:
    """Return the study of some boards."""
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


def board_of(
    run: Run,
    variants: str,
    rates: Sequence[float] = (),
    decays: Sequence[float] = (),
    name: str = "",
    shape: str = "",
    trials: int | None = None,
    own_rates: tuple[float, float] = Board.own_rates,
) -> Board:
    """Return a board of variants; the run's own variant has no effect."""
    return Board(
        name=name or run.preset,
        base=run,
        arms=arms_of_variants(variants, run, own_rates=trials is not None),
        rates=tuple(rates),
        decays=tuple(decays),
        shape=shape,
        trials=trials,
        own_rates=own_rates,
    )


def board_of_one(run: Run, arm: str = "") -> Board:
    """Return the board of a run whose one arm, of this name, is the run as it is."""
    arms = (Arm(name=arm or run.variant, change=lambda base: base),)
    return Board(name=run.preset, base=run, arms=arms)


def open_boards(
    names: Sequence[str],
    variants: str,
    rates: Sequence[float] = (),
    decays: Sequence[float] = (),
    trials: int | None = None,
    own_rates: tuple[float, float] = Board.own_rates,
) -> list[Board]:
    """Return the boards of some names, such as ``tiny-lm@64x32``: 64 layers of width 32.

    Heads keep their width. The mlp of a preset's first shape has the preset's ratio; that of its
    other shapes is as wide as it takes to have the first one's parameters.
    """
    boards: dict[str, Board] = {}
    firsts: dict[str, Run] = {}
    for name in names:
        preset, at, shape = name.partition("@")
        if at and not _SHAPE.fullmatch(shape):
            raise ValueError(
                f"a board is PRESET or PRESET@LAYERSxWIDTH (tiny-lm@64x32), got {name!r}"
            )
        is_preset = preset in presets()
        run = get_preset(preset if is_preset else OTHER_NAMES.get(preset, preset))
        folder = f"{run.preset}-{shape}" if shape else run.preset
        if folder in boards:
            raise ValueError(f"boards must differ, got {', '.join(names)}")
        if shape:
            run = reshaped(run, *map(int, shape.split("x")))
            first = firsts.setdefault(run.preset, run)
            if run is not first:
                plain = with_parameters(replace(run, variant="plain"), plain_parameters(first))
                run = replace(run, model=plain.model)
        boards[folder] = board_of(run, variants, rates, decays, folder, shape, trials, own_rates)
    if not boards:
        raise ValueError("name at least one board")
    return list(boards.values())
