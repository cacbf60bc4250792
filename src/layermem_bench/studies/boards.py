"""Boards (tiny-lm@64x32) and arms (plain,lime:router=last) by their names, and studies of them.

Arms are variants of a decoder of ours, or ways of going on training a model of transformers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import layermem
from layermem.models.registry import BUILT_WITH, check_names, list_variants, lookup
from layermem_bench.config.named import merged
from layermem_bench.config.run import Host, Model, Run
from layermem_bench.costs.model_sizes import reshaped
from layermem_bench.presets import get_preset
from layermem_bench.run.setup import adds_parameters, check_options
from layermem_bench.studies.definition import Arm, Board, Study, metric_of
from layermem_bench.studies.planning import plain_parameters, with_parameters
from layermem_bench.studies.result import Question

RECIPE = tuple(f"{name}={str(value).lower()}" for name, value in layermem.RECIPE.items())
"""``layermem.RECIPE`` as options of an arm."""
VARIANTS = {"recipe": "lime", "recipe_half": "lime_half"}
"""Names of arms, and the variants that they stand for with these options."""
_NO_MEMORY = {"memory": "none", "window": None}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("all weights, no memory", {**_NO_MEMORY, "train": "all"}),
    "lora": ("LoRA on keys and values, no memory", {**_NO_MEMORY, "train": "lora"}),
    "routers": ("memory, its routers alone", {"train": "routers", "shares_kv": True}),
    "apart": (
        "memory with routers apart for keys and values, these alone",
        {"train": "routers", "shares_kv": False},
    ),
    "all": ("memory, all weights", {"train": "all"}),
}
"""Ways of going on training a model, with what each is and the fields of ``Host`` that make it."""
_HEADS = "num_key_value_heads="
_DIRECTIONS: Mapping[str, Literal["higher", "lower"]] = {"below": "lower", "above": "higher"}
# Share of a run's steps, at most, over which learning rates rise.
_MOST_WARMUP = 0.1


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
            arms |= {each: (each, ()) for each in ("plain", *list_variants())}
            continue
        variant, *given = name.split(":")
        parts, options = variant.split("+"), tuple(given)
        if VARIANTS.keys() & {*parts}:
            variant = "+".join(VARIANTS.get(part, part) for part in parts)
            options = merged(RECIPE, given)
        asked = _model_of(Model(), options).variant_fields()
        check_names(lookup(variant, VARIANTS), asked.keys() - BUILT_WITH)
        arms[name] = variant, options
    return arms


def _separated(names: str) -> list[str]:
    """Return what commas outside of brackets separate."""
    found, depth = [""], 0
    for letter in names:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def as_named_arm(run: Run) -> Run:
    """Return a run whose variant is named as an arm is: ``recipe``, ``lime:router=average``."""
    arms = parse_arms(run.variant)
    if len(arms) != 1:
        raise ValueError(
            f"a run trains one variant, got {run.variant}; several are for layermem study"
        )
    ((name, (variant, options)),) = arms.items()
    both = Model(options=options).variant_fields().keys() & run.model.variant_fields().keys()
    if both:
        raise ValueError(
            f"--variant {name} says {', '.join(sorted(both))} itself: give it there "
            f"({name}:NAME=VALUE), not as --model.options"
        )
    model = replace(run.model, options=(*run.model.options, *options))
    labels = run.labels if run.labels.arm else replace(run.labels, arm=name)
    return replace(run, variant=variant, model=model, labels=labels)


def _model_of(model: Model, options: Sequence[str]) -> Model:
    """Return a model with options of an arm: its key-value heads, and fields of its variant."""
    sizes = {each: int(each.partition("=")[2]) for each in options if each.startswith(_HEADS)}
    others = [each for each in options if each not in sizes]
    for count in sizes.values():
        model = replace(model, num_key_value_heads=count)
    return replace(model, options=(*model.options, *others))


def _as_variant(run: Run, variant: str, options: tuple[str, ...]) -> Run:
    """Return a run of a variant; ``optim.router_lr`` is left out where it adds no parameters."""
    model, optim = _model_of(run.model, options), run.optim
    if optim.router_lr is not None and not adds_parameters(variant, model):
        optim = replace(optim, router_lr=None)
    return replace(run, variant=variant, model=model, optim=optim)


def board_of(
    run: Run, variants: str, rates: Sequence[float] = (), *, name: str = "", shape: str = ""
) -> Board:
    """Return a board of variants; refuse one that cannot be built at the run's sizes. The run's
    own variant has no effect."""
    arms = []
    for arm, (variant, options) in parse_arms(variants).items():
        change = partial(_as_variant, variant=variant, options=options)
        try:
            check_options(variant, change(run).model)
        except ValueError as error:
            raise ValueError(f"{arm}: {error}") from error
        arms.append(Arm(name=arm, change=change))
    return Board(
        name=name or run.preset, base=run, arms=tuple(arms), rates=tuple(rates), shape=shape
    )


def open_boards(names: Sequence[str], variants: str) -> list[Board]:
    """Return the boards of some names, such as ``tiny-lm@64x32``: 64 layers of width 32.

    Heads keep their width. The mlp of a preset's first shape has the preset's ratio; that of its
    other shapes is as wide as it takes to have the first one's parameters.
    """
    boards, firsts = list[Board](), dict[str, Run]()
    for name in names:
        preset, at, shape = name.partition("@")
        run = get_preset(preset)
        if at:
            if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", shape):
                raise ValueError(
                    f"a board is PRESET or PRESET@LAYERSxWIDTH (tiny-lm@64x32), got {name!r}"
                )
            run = reshaped(run, *map(int, shape.split("x")))
            first = firsts.setdefault(run.preset, run)
            if run is not first:
                plain = with_parameters(replace(run, variant="plain"), plain_parameters(first))
                run = replace(run, model=plain.model)
        folder = f"{run.preset}-{shape}" if shape else run.preset
        boards.append(board_of(run, variants, name=folder, shape=shape))
    return boards


def boards_of_recipe(
    variants: str, text: str | None, held_out: str | None, lengths: Sequence[int], compiled: bool
) -> list[Board]:
    """Return a board of source code, and one of a text if there is one, for each number of steps:
    `quiet-lm` of that length."""
    base, boards = get_preset("quiet-lm"), []
    texts = [("code", "stdlib", None), *([("text", text, held_out)] if text else [])]
    for (name, source, validation), steps in product(texts, lengths):
        run = replace(
            base,
            max_steps=steps,
            eval_every=steps,
            data=replace(base.data, source=source, validation=validation),
            optim=replace(
                base.optim, warmup_steps=min(base.optim.warmup_steps, int(steps * _MOST_WARMUP))
            ),
            compute=replace(base.compute, compile=compiled),
        )
        boards.append(board_of(run, variants, name=f"{name}-{steps}"))
    return boards


def questions_of(asks: Sequence[str], study: Study, margin: float | None) -> tuple[Question, ...]:
    """Return the questions "ARM below ARM" and "ARM above ARM" on every board of a study under
    every condition."""
    questions = []
    for asked, board, condition in product(asks, study.boards, study.conditions):
        arm, how, against = words if len(words := asked.split()) == 3 else ("", "", "")
        if how not in _DIRECTIONS or arm == against:
            raise ValueError(f'--ask is "ARM below ARM" or "ARM above ARM", got {asked!r}')
        questions.append(
            Question(
                board=board.name,
                condition=condition,
                arm=arm,
                direction=_DIRECTIONS[how],
                against=against,
                metric=metric_of(board.base),
                margin=margin,
            )
        )
    return tuple(questions)


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


def study_of_retrofit(
    base: Run,
    rates: Sequence[float],
    router_rates: Sequence[float],
    seeds: Sequence[int],
    conditions: Sequence[str] = ("tokens", "time"),
    ways: Sequence[str] = tuple(WAYS),
) -> Study:
    """Return the study of a run that trains a model of transformers with memory.

    Memory starts as the identity, so that all arms of a seed start from one loss. ``rates``:
    learning rates that every way tries but routers alone, which try ``router_rates``.
    """
    if not {"plain"} < {*ways} <= WAYS.keys() or base.host.memory == "none":
        raise ValueError(f"--ways: name plain and others of {', '.join(WAYS)}; and a --host.memory")
    arms = tuple(
        Arm(
            name=way,
            change=partial(_with_host, changes=changes),
            rates=tuple(router_rates) if changes["train"] == "routers" else None,
            with_rate=partial(_with_rate, highest=max(router_rates)),
            note=note,
        )
        for way, (note, changes) in WAYS.items()
        if way in ways
    )
    host = base.host
    name = "retrofit-" + re.sub(r"[^\w.-]", "-", Path(str(host.model)).name)
    memory = host.memory if host.window is None else f"{host.memory}, window {host.window}"
    return Study(
        name=name,
        title=f"Does layer memory pay on {host.model}? (memory: {memory})",
        boards=(Board(name=name, base=base, arms=arms, rates=tuple(rates)),),
        seeds=tuple(seeds),
        conditions=tuple(conditions),
    )


def way_of(host: Host) -> str:
    """Return the way in which a run goes on training a model of transformers."""
    return next(way for way, (_, changes) in WAYS.items() if vars(host) | changes == vars(host))


def options_of(host: Host) -> tuple[str, ...]:
    """Return what a host has beside its way, each NAME=VALUE."""
    said = WAYS[way_of(host)][1].keys() | {"model", "revision", "train"}
    others = {f.name: f.default for f in fields(Host) if f.name not in said}
    values = {name: getattr(host, name) for name in others}
    return tuple(f"{name}={value}" for name, value in values.items() if value != others[name])


def _with_host(run: Run, changes: dict[str, Any]) -> Run:
    """Return a run with changes to its host; without memory there is no rate of routers."""
    host = replace(run.host, **changes)
    optim = replace(run.optim, router_lr=None) if host.memory == "none" else run.optim
    return replace(run, host=host, optim=optim)


def _with_rate(run: Run, rate: float, highest: float) -> Run:
    if run.host.train == "routers":
        return replace(run, optim=replace(run.optim, router_lr=rate))
    # 100 times 1e-3 is more than routers alone can use, and was seen to be worse.
    router_lr = None if run.host.memory == "none" else min(100 * rate, highest)
    return replace(run, optim=replace(run.optim, lr=rate, router_lr=router_lr))
