"""The study of ways of going on training a model of transformers.

Memory starts as the identity, so that all arms of a seed start from one loss.
"""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from layermem_bench.config.run import Host, Run
from layermem_bench.studies.definition import Arm, Board, Study

Way = Literal["plain", "lora", "routers", "apart", "all"]
_NO_MEMORY = {"memory": "none", "window": None}
WAYS: dict[Way, tuple[str, dict[str, Any]]] = {
    "plain": ("all weights, no memory", {**_NO_MEMORY, "train": "all"}),
    "lora": ("LoRA on keys and values, no memory", {**_NO_MEMORY, "train": "lora"}),
    "routers": ("memory, its routers alone", {"train": "routers", "shares_kv": True}),
    "apart": (
        "memory with routers apart for keys and values, these alone",
        {"train": "routers", "shares_kv": False},
    ),
    "all": ("memory, all weights", {"train": "all"}),
}
"""Each way with what it is and the fields of ``Host`` that make it; the others are compared with
the first."""


def study_of_retrofit(
    base: Run,
    rates: Sequence[float],
    router_rates: Sequence[float],
    seeds: Sequence[int],
    conditions: Sequence[str] = ("tokens", "time"),
    ways: Sequence[str] = tuple(WAYS),
) -> Study:
    """Return the study of a run that trains a model of transformers with memory.

    ``rates``: learning rates that every way tries but routers alone, which try ``router_rates``.
    """
    host = base.host
    if "plain" not in ways or len(set(ways)) < 2:
        raise ValueError(f"--ways: name plain and one more of {', '.join(WAYS)}, got {ways}")
    if host.memory == "none":
        raise ValueError("--host.memory none leaves nothing to compare: full, last or first")
    if not rates or not router_rates:
        raise ValueError("--rates and --router-rates must be given")
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
    name = "retrofit-" + re.sub(r"[^\w.-]", "-", Path(str(host.model)).name)
    memory = host.memory if host.window is None else f"{host.memory}, window {host.window}"
    board = Board(name=name, base=base, arms=arms, rates=tuple(rates))
    return Study(
        name=name,
        title=f"Does layer memory pay on {host.model}? (memory: {memory})",
        boards=(board,),
        seeds=tuple(seeds),
        conditions=tuple(conditions),
    )


def way_of(host: Host) -> Way:
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
