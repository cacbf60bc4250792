"""Studies of models of transformers: ways of going on training one, and small encoders on records.

Memory starts as the identity, so that all arms of a seed start from one loss. What needs torch is
imported in functions: the command line reads its options from here.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from layermem_base.files import write_atomically
from layermem_base.number_ranges import at_least, check_numbers, number
from layermem_bench.config.host import VARIANT
from layermem_bench.config.run import Compute, Host, Optim, Records, Run, to_dict
from layermem_bench.study.definition import Arm, Board, Study

Way = Literal["plain", "lora", "routers", "apart", "all"]
WAYS: dict[Way, str] = {
    "plain": "all weights, no memory",
    "lora": "LoRA on keys and values, no memory",
    "routers": "memory, its routers alone",
    "apart": "memory with routers apart for keys and values, these alone",
    "all": "memory, all weights",
}
"""The ways; the others are compared with the first."""
_ROUTERS_ALONE: tuple[Way, ...] = ("routers", "apart")
ROUTER_RATIO = 100
"""Learning rate of routers over that of other weights, where both are trained."""


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
        raise ValueError(
            f"--ways: the others are compared with plain, got {' '.join(ways)}: name plain and one "
            f"more of {' '.join(WAYS)}"
        )
    if host.memory == "none":
        raise ValueError("--memory none leaves nothing to compare: full, last or first")
    if not rates or not router_rates:
        raise ValueError("--rates and --router-rates must be given")
    arms = tuple(
        Arm(
            name=way,
            change=partial(_as_way, way=way),
            rates=tuple(router_rates) if way in _ROUTERS_ALONE else None,
            with_rate=partial(_with_rate, way=way, highest=max(router_rates)),
            note=note,
        )
        for way, note in WAYS.items()
        if way in ways
    )
    name = "retrofit-" + re.sub(r"[^\w.-]", "-", Path(str(host.model)).name)
    memory = host.memory if host.window is None else f"{host.memory}, window {host.window}"
    board = Board(
        name=name,
        base=base,
        arms=arms,
        rates=tuple(rates),
        prepare=partial(_check, [arm.change(base) for arm in arms]),
    )
    return Study(
        name=name,
        title=f"Does layer memory pay on {host.model}? (memory: {memory})",
        boards=(board,),
        seeds=tuple(seeds),
        conditions=tuple(conditions),
    )


def _check(runs: Sequence[Run]) -> None:
    """Raise where a run needs what cannot be loaded; tokenizer and data are the same for all."""
    from layermem_bench.analysis.earlier_stages import check_earlier_stages
    from layermem_bench.train.host_models import load_host
    from layermem_bench.train.learning import prepare_learning

    learning = prepare_learning(runs[0])
    check_earlier_stages(runs[0], learning.validation_data.documents)
    for run in runs:
        load_host(run)


def _as_way(run: Run, way: str) -> Run:
    if way == "all":
        return _with_host(run, {"train": "all"})
    if way in _ROUTERS_ALONE:
        return _with_host(run, {"train": "routers", "shares_kv": way == "routers"})
    train = "lora" if way == "lora" else "all"
    return _with_host(run, {"memory": "none", "window": None, "train": train})


def way_of(host: Host) -> Way:
    """Return the way in which a run goes on training a model of transformers."""
    if host.train == "lora":
        return "lora"
    if host.train == "routers":
        return "routers" if host.shares_kv else "apart"
    return "plain" if host.memory == "none" else "all"


def _with_host(run: Run, changes: dict[str, Any]) -> Run:
    """Return a run with changes to its host; without memory there is no rate of routers."""
    host = replace(run.host, **changes)
    optim = replace(run.optim, router_lr=None) if host.memory == "none" else run.optim
    return replace(run, host=host, optim=optim)


def _with_rate(run: Run, rate: float, way: str, highest: float) -> Run:
    if way in _ROUTERS_ALONE:
        return replace(run, optim=replace(run.optim, router_lr=rate))
    # 100 times 1e-3 is more than routers alone can use, and was seen to be worse.
    router_lr = min(ROUTER_RATIO * rate, highest) if way == "all" else None
    return replace(run, optim=replace(run.optim, lr=rate, router_lr=router_lr))


_RECIPE = "recipe.json"


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Sizes of the tokenizer and of the model."""

    layers: int = number(4, at_least(2))
    """Layers of the encoder."""
    width: int = number(64, at_least(1))
    """Its width; the mlp is four times as wide."""
    heads: int = number(4, at_least(1))
    """Its attention heads."""
    vocabulary: int = number(4000, at_least(1))
    """Most ids of its tokenizer, pieces of words, which is trained on the training records."""

    def __post_init__(self) -> None:
        check_numbers(self, "--")
        if self.width % self.heads:
            raise ValueError(
                "the width of an encoder must be a multiple of its heads, "
                f"got width={self.width}, heads={self.heads}"
            )


def study_of_encoders(
    records: Records,
    sizes: EncoderSizes,
    optim: Optim,
    steps: int,
    out: Path,
    *,
    arms: Sequence[str] = ("none", "full"),
    rates: Sequence[float] = (5e-4, 1e-3, 2e-3),
    seeds: Sequence[int] = range(5),
) -> Study:
    """Return the study of memories (none, full, last:WINDOW, first:WINDOW) on some records.

    The models are small BERTs with random weights. OUT/BOARD/base has their config and their
    tokenizer. ``optim``: how every arm is trained, but for its learning rate.
    """
    if len(set(arms)) < 2:
        raise ValueError(f"a comparison needs two different arms, got {' '.join(arms)}")
    name = f"encoders-{Path(str(records.source)).name.partition('.')[0]}"
    folder = out / name / "base"
    run = Run(
        preset="encoders",
        variant=VARIANT,
        max_steps=steps,
        log_every=max(1, steps // 50),
        eval_every=max(1, steps // 8),
        records=replace(records, from_config=str(folder / "config.json")),
        host=Host(model=str(folder), train="all"),
        optim=optim,
        compute=Compute(micro_batch=optim.batch_size, precision="float32"),
    )
    board = Board(
        name=name,
        base=run,
        arms=tuple(Arm(name=arm, change=_with_memory(arm)) for arm in arms),
        rates=tuple(rates),
        by_right_answers=True,
        prepare=partial(_prepare_base, records, sizes, folder),
    )
    title = f"Encoders with memory and without on {records.source}"
    return Study(name=name, title=title, boards=(board,), seeds=tuple(seeds))


def _with_memory(arm: str) -> Callable[[Run], Run]:
    memory, _, window = arm.partition(":")
    if memory not in ("none", "full", "last", "first") or not (window or "1").isdecimal():
        raise ValueError(f"an arm is none, full, last:WINDOW or first:WINDOW, got {arm!r}")
    changes = {"memory": memory, "window": int(window) if window else None}
    return partial(_with_host, changes=changes)


def _prepare_base(records: Records, sizes: EncoderSizes, folder: Path) -> None:
    """Make the tokenizer and the model's config, or check that those there are the study's."""
    from transformers import BertConfig

    from layermem_bench.data.tokenizers import train_word_pieces

    texts = _training_texts(records)
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    recipe = {"sizes": to_dict(sizes), "texts": digest}
    if (folder / _RECIPE).exists():
        if json.loads((folder / _RECIPE).read_text(encoding="utf-8")) != recipe:
            raise ValueError(
                f"{folder} was made for other sizes or other records: choose another --out"
            )
        return
    tokenizer = train_word_pieces(texts, sizes.vocabulary)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=records.max_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.to_json_file(folder / "config.json", use_diff=False)
    # Written last: without it the folder is made anew.
    write_atomically(folder / _RECIPE, json.dumps(recipe, indent=1) + "\n")


def _training_texts(records: Records) -> list[str]:
    """Return the texts of the records that runs are trained on, none of the validation set."""
    from layermem_bench.train.learning.labels import read_splits

    train, *_ = read_splits(records)
    return [text for record in train for text in record.texts]
