"""Does layer memory pay on a given model? Four ways of going on training it, on the same data.

    plain      all weights, no memory
    lora       LoRA on keys and values, no memory, as many parameters as the routers have
    routers    memory, its routers alone
    all        memory, all weights; routers at 100 times the rate of the others, at most the
               highest rate that routers alone try

Memory starts as the identity, so that all start from one loss.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from layermem.config import Run
from layermem.study.definition import Arm, Board, Study
from layermem.train.earlier_stages import check_earlier_stages
from layermem.train.host_models import load_host
from layermem.train.learning import prepare_learning

WAYS = {
    "plain": "all weights, no memory",
    "lora": "LoRA on keys and values, no memory",
    "routers": "memory, its routers alone",
    "all": "memory, all weights",
}
"""The ways; the others are compared with the first."""
ROUTER_RATIO = 100
"""Learning rate of routers over that of other weights, where both are trained."""


def study_of_retrofit(
    base: Run,
    rates: Sequence[float],
    router_rates: Sequence[float],
    seeds: Sequence[int],
    conditions: Sequence[str] = ("tokens", "time"),
) -> Study:
    """Return the study of a run that trains a model of transformers with memory.

    ``rates``: learning rates that every way tries but routers alone, which try ``router_rates``.
    """
    host = base.host
    if host.memory == "none":
        raise ValueError("--memory none leaves nothing to compare: full, last or first")
    if not rates or not router_rates:
        raise ValueError("--rates and --router-rates must be given")
    arms = tuple(
        Arm(
            name=way,
            change=partial(_as_way, way=way),
            rates=tuple(router_rates) if way == "routers" else None,
            with_rate=partial(_with_rate, way=way, highest=max(router_rates)),
            note=note,
        )
        for way, note in WAYS.items()
    )
    name = "retrofit-" + re.sub(r"[^\w.-]", "-", Path(str(host.model)).name)
    memory = host.memory if host.window is None else f"{host.memory}, window {host.window}"
    return Study(
        name=name,
        title=f"Does layer memory pay on {host.model}? (memory: {memory})",
        boards=(
            Board(
                name=name,
                base=base,
                arms=arms,
                rates=tuple(rates),
                prepare=partial(_check, [arm.change(base) for arm in arms]),
            ),
        ),
        seeds=tuple(seeds),
        conditions=tuple(conditions),
    )


def _check(runs: Sequence[Run]) -> None:
    """Raise where a run needs what cannot be loaded: once, before a run of each way and rate has
    failed of it. Tokenizer and data are the same for all."""
    check_earlier_stages(runs[0])
    prepare_learning(runs[0])
    for run in runs:
        load_host(run)


def _as_way(run: Run, way: str) -> Run:
    host = run.host
    changes = {
        "plain": replace(host, memory="none", window=None, train="all"),
        "lora": replace(host, memory="none", window=None, train="lora"),
        "routers": replace(host, train="routers"),
        "all": replace(host, train="all"),
    }
    optim = replace(run.optim, router_lr=None) if way in ("plain", "lora") else run.optim
    return replace(run, host=changes[way], optim=optim)


def _with_rate(run: Run, rate: float, way: str, highest: float) -> Run:
    if way == "routers":
        return replace(run, optim=replace(run.optim, router_lr=rate))
    # 100 times 1e-3 is more than routers alone can use, and was seen to be worse.
    router_lr = min(ROUTER_RATIO * rate, highest) if way == "all" else None
    return replace(run, optim=replace(run.optim, lr=rate, router_lr=router_lr))
