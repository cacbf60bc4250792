"""Small BERTs with random weights on labelled records, with layer memory and without.

    OUT/BOARD/base    the tokenizer, trained on the training records, and the config of models

Arms of one seed have the same weights at the beginning, the same head and the same order of the
records; memory starts as the identity.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import BertConfig

from layermem.config import Compute, Host, Optim, Records, Run, to_dict
from layermem.data.tokenizers import train_word_pieces
from layermem.host_config import VARIANT
from layermem.number_ranges import at_least, check_numbers, number
from layermem.runs import write_atomically
from layermem.study.definition import Arm, Board, Study
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

    ``optim``: how every arm is trained, but for its learning rate. ``out``: where the tokenizer and
    the config of the models are made.
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
    return Study(
        name=name,
        title=f"Encoders with memory and without on {records.source}",
        boards=(
            Board(
                name=name,
                base=run,
                arms=tuple(Arm(name=arm, change=_with_memory(arm)) for arm in arms),
                rates=tuple(rates),
                by_right_answers=True,
                prepare=partial(_prepare_base, records, sizes, folder),
            ),
        ),
        seeds=tuple(seeds),
    )


def _with_memory(arm: str) -> Callable[[Run], Run]:
    memory, _, window = arm.partition(":")
    if memory not in ("none", "full", "last", "first") or not (window or "1").isdecimal():
        raise ValueError(f"an arm is none, full, last:WINDOW or first:WINDOW, got {arm!r}")
    changes: dict[str, Any] = {"memory": memory, "window": int(window) if window else None}

    def change(run: Run) -> Run:
        optim = replace(run.optim, router_lr=None) if memory == "none" else run.optim
        return replace(run, host=replace(run.host, **changes), optim=optim)

    return change


def _prepare_base(records: Records, sizes: EncoderSizes, folder: Path) -> None:
    """Make the tokenizer and the model's config, or check that those there are the study's."""
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
    train, *_ = read_splits(records)
    return [text for record in train for text in record.texts]
