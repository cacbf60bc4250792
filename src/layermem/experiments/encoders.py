"""Small BERTs with random weights on labelled records, with layer memory and without.

    out/base               the tokenizer, trained on the training records, and the config of models
    out/rates              every arm with every learning rate, on a seed kept for that
    out/ARM-lrRATE-sSEED   every arm with its best rate and every seed

Arms of one seed have the same weights at the beginning, the same head and the same order of the
records; memory starts as the identity. Ended runs are left alone, begun ones are resumed.

It does not know: how a run is trained or compared, the command line.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import BertConfig

from layermem.config import Compute, Host, Optim, Records, Run, to_dict
from layermem.data.word_pieces import train_word_pieces
from layermem.experiments.arms import CHOOSING_SEED
from layermem.experiments.comparison import compare_runs
from layermem.experiments.many_runs import train_missing
from layermem.experiments.records import check_comparable, read_divergence, read_metrics
from layermem.host_config import VARIANT
from layermem.number_ranges import above, at_least, between, number
from layermem.results.comparison import Comparison
from layermem.results.encoder_trials import EncoderTrial, EncoderTrials
from layermem.results.files import to_json
from layermem.results.run_record import LOSS, RIGHT_ANSWERS
from layermem.runs import write_atomically
from layermem.train.learning.labels import read_splits

_RECIPE = "recipe.json"


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Sizes of the tokenizer and of the model."""

    layers: int = number(4, at_least(2))
    """Layers."""
    width: int = number(64, at_least(1))
    """Width of the residual stream; the mlp is four times as wide."""
    heads: int = number(4, at_least(1))
    """Attention heads."""
    vocabulary: int = number(4000, at_least(1))
    """Most ids of the tokenizer."""

    def __post_init__(self) -> None:
        if self.layers < 2 or self.heads < 1 or self.width % self.heads:
            raise ValueError(
                "an encoder needs at least 2 layers and a width that is a multiple of its heads, "
                f"got layers={self.layers}, width={self.width}, heads={self.heads}"
            )


@dataclass(frozen=True, kw_only=True)
class EncoderStudy:
    """What is compared."""

    records: Records
    """The records."""
    sizes: EncoderSizes
    """Sizes of the model."""
    optim: Optim
    """How every arm is trained, but for its learning rate."""
    steps: int = field(metadata=at_least(1))
    """Training steps."""
    arms: tuple[str, ...] = ("none", "full")
    """Memories: none, full, last:WINDOW or first:WINDOW; the others are compared with the first."""
    rates: tuple[float, ...] = number((), above(0))
    """Learning rates that every arm tries."""
    seeds: int = number(5, between(1, CHOOSING_SEED))
    """Seeds, from 0 on."""

    def __post_init__(self) -> None:
        if len(set(self.arms)) < 2 or len(set(self.arms)) < len(self.arms):
            raise ValueError(f"a comparison needs two different arms, got {' '.join(self.arms)}")
        if not self.rates or len(set(self.rates)) < len(self.rates):
            rates = " ".join(f"{rate:g}" for rate in self.rates)
            raise ValueError(f"learning rates must be given and differ, got {rates or 'none'}")
        if not 1 <= self.seeds <= CHOOSING_SEED:
            raise ValueError(f"seeds must be from 1 to {CHOOSING_SEED}, got {self.seeds}")


def compare_encoders(study: EncoderStudy, out: Path, jobs: int, command: str) -> Comparison:
    """Train what is missing, and write trials.json and report.json into ``out``."""
    base = _prepare_base(study, out / "base")
    trials = _try_rates(study, base, out, jobs)
    result = EncoderTrials(command=command, seed=CHOOSING_SEED, trials=tuple(trials))
    write_atomically(out / "trials.json", to_json(result))
    rates = {trial.arm: trial.rate for trial in trials if trial.chosen}
    runs = {
        f"{_name(arm)}-lr{rates[arm]:g}-s{seed}": _run(study, base, arm, rates[arm], seed)
        for arm in study.arms
        for seed in range(study.seeds)
    }
    folders = train_missing(runs, out, jobs, may_diverge=True)
    return compare_runs([folder.path for folder in folders.values()], out, command=command)


def _try_rates(study: EncoderStudy, base: Path, out: Path, jobs: int) -> list[EncoderTrial]:
    """Train every arm with every rate; choose the one with most right classes at the end.

    Not that of the lowest loss: few records are learnt by heart, and then the loss of a classifier
    rises while it gets more classes right.
    """
    keys = {f"{_name(arm)}-lr{rate:g}": (arm, rate) for arm in study.arms for rate in study.rates}
    runs = {name: _run(study, base, *key, CHOOSING_SEED) for name, key in keys.items()}
    folders = train_missing(runs, out / "rates", jobs, may_diverge=True)
    check_comparable(folders.values())
    tried: dict[str, dict[float, tuple[float, float]]] = {arm: {} for arm in study.arms}
    for name, folder in folders.items():
        arm, rate = keys[name]
        if read_divergence(folder, runs[name].id) is None:
            metrics = read_metrics(folder, runs[name])
            tried[arm][rate] = metrics[RIGHT_ANSWERS].value, metrics[LOSS].value
    best = {arm: _best(arm, by_rate) for arm, by_rate in tried.items()}
    return [
        EncoderTrial(
            arm=arm,
            rate=rate,
            right=tried[arm].get(rate, (None, None))[0],
            loss=tried[arm].get(rate, (None, None))[1],
            chosen=rate == best[arm],
        )
        for arm, rate in keys.values()
    ]


def _best(arm: str, tried: Mapping[float, tuple[float, float]]) -> float:
    if not tried:
        raise RuntimeError(f"{arm} diverged at every learning rate; try lower --rates")
    return max(tried, key=lambda rate: (tried[rate][0], -tried[rate][1]))


def _prepare_base(study: EncoderStudy, folder: Path) -> Path:
    """Make the tokenizer and the model's config, or check that those there are the study's."""
    texts = _training_texts(study.records)
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    recipe = {"sizes": to_dict(study.sizes), "texts": digest}
    if (folder / _RECIPE).exists():
        if json.loads((folder / _RECIPE).read_text(encoding="utf-8")) != recipe:
            raise ValueError(
                f"{folder} was made for other sizes or other records: choose another --out"
            )
        return folder
    tokenizer = train_word_pieces(texts, study.sizes.vocabulary)
    tokenizer.save_pretrained(folder)
    sizes = study.sizes
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=study.records.max_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.to_json_file(folder / "config.json", use_diff=False)
    # Written last: without it the folder is made anew.
    write_atomically(folder / _RECIPE, json.dumps(recipe, indent=1) + "\n")
    return folder


def _training_texts(records: Records) -> list[str]:
    """Return the texts of the records that runs are trained on, none of the validation set."""
    train, *_ = read_splits(records)
    return [text for record in train for text in record.texts]


def _run(study: EncoderStudy, base: Path, arm: str, rate: float, seed: int) -> Run:
    memory, _, window = arm.partition(":")
    if memory not in ("none", "full", "last", "first") or not (window or "1").isdecimal():
        raise ValueError(f"an arm is none, full, last:WINDOW or first:WINDOW, got {arm!r}")
    host: dict[str, Any] = {"memory": memory, "window": int(window) if window else None}
    router_lr = None if memory == "none" else study.optim.router_lr
    return Run(
        preset="encoders",
        variant=VARIANT,
        seed=seed,
        max_steps=study.steps,
        log_every=max(1, study.steps // 50),
        eval_every=max(1, study.steps // 8),
        records=replace(study.records, from_config=str(base / "config.json")),
        host=Host(model=str(base), train="all", **host),
        optim=replace(study.optim, lr=rate, router_lr=router_lr),
        compute=Compute(micro_batch=study.optim.batch_size, precision="float32"),
    )


def _name(arm: str) -> str:
    return arm.replace(":", "-")
