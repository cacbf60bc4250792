"""Judgements of grammar: minimal pairs of BLiMP.

    {"sentence_good": "Who should Derek hug after shocking Richard?",
     "sentence_bad": "Who should Derek hug Richard after shocking?",
     "linguistics_term": "island_effects", "UID": "adjunct_island", ...}

The source is github.com/alexwarstadt/blimp, folder data: 67 files of 1,000 pairs, one for each
paradigm (UID); a phenomenon (linguistics_term) has several (Warstadt et al., arXiv 1912.00582). A
few records hold one sentence twice: they are left out.

A pair is right if the grammatical sentence has the higher log-probability, of the whole sentence
and not the mean of its tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from layermem_bench.evals.benchmark_records import read_rows
from layermem_bench.evals.perplexity import Predecessor, perplexity
from layermem_bench.evals.result import (
    EvalOptions,
    Part,
    Row,
    Table,
    Tell,
    adjust,
    compare_right,
    share_right,
)
from layermem_bench.run.trained_models import Checkpoint, load_model

RIGHT_PAIRS = "right pairs"
"""Name of the table."""
# Nats that the log-probability of equal ids may differ by in other batches.
_ROUNDING = 1e-4
_HOW = (
    "A pair is right if its grammatical sentence has the higher log-probability. It is that of the "
    "whole sentence, whatever its number of tokens; before a sentence stands the token that stands "
    "before texts in training: of runs on text the end token, else the tokenizer's BOS token, or "
    "EOS where it has no BOS. Where there is none the first token of a sentence is not scored. "
    "Ties are not right."
)
_TABLE = Table(
    better="higher",
    caption="A guess: 50%. 95% intervals by Wilson's method, over pairs and not over seeds. "
    "Differences: by the jackknife over pairs, p-values of McNemar's exact test, adjusted for the "
    "number of models, those by phenomenon for that of phenomena too, by Holm's method.",
)


class Pair(NamedTuple):
    """A grammatical sentence and one that is not."""

    good: str
    bad: str
    phenomenon: str
    """What is violated, such as "island_effects"."""


def read_pairs(places: Sequence[str], per_paradigm: int | None = None) -> list[Pair]:
    """Return the pairs of files of JSON lines, or of folders of them.

    ``per_paradigm``: the first so many pairs of each paradigm; None: all.
    """
    pairs, counts = list[Pair](), Counter[str]()
    paths = [Path(place).expanduser() for place in places]
    files = [sorted(path.rglob("*.jsonl*")) if path.is_dir() else [path] for path in paths]
    for file in dict.fromkeys(file.resolve() for of_path in files for file in of_path):
        for row in read_rows(file):
            try:
                names = ("sentence_good", "sentence_bad", "linguistics_term", "UID")
                good, bad, phenomenon, paradigm = (str(row[name]) for name in names)
            except KeyError as error:
                raise ValueError(f"{file} is not BLiMP's: a record has no {error}") from error
            if good != bad and counts[paradigm] != per_paradigm:
                counts[paradigm] += 1
                pairs.append(Pair(good, bad, phenomenon))
    if not pairs:
        raise ValueError(f"there are no pairs in {', '.join(places)}: name BLiMP's JSON lines")
    return pairs


def measure_grammar(
    opened: Sequence[Checkpoint], paths: Sequence[str], options: EvalOptions, tell: Tell
) -> Part:
    """Have checkpoints judge pairs."""
    pairs = read_pairs(paths, options.limit)
    margins = {}
    for each in opened:
        tell(f"{each.name}: {len(pairs):,} pairs", None, None)
        margins[each.name] = judge_pairs(
            load_model(each, with_head=True),
            each.tokenizer,
            pairs,
            predecessor=each.predecessor,
            batch_size=options.batch_size,
        )
    rows = tuple(right_rows(pairs, margins))
    return Part(title="Grammar (BLiMP)", how=_HOW, tables={RIGHT_PAIRS: _TABLE}, rows=rows)


def judge_pairs(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    predecessor: Predecessor = "tokenizer",
    batch_size: int | None = None,
) -> np.ndarray[Any, Any]:
    """Return by how much (nats) each pair's good sentence is more probable than its bad one."""
    # Once each: sentences are in several pairs.
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    read = perplexity(model, tokenizer, sentences, batch_size=batch_size, predecessor=predecessor)
    nats = dict(zip(sentences, read.nats, strict=True))
    margins = np.array([nats[pair.bad] - nats[pair.good] for pair in pairs])
    # Sentences of equal ids, of words that the tokenizer does not know, tie in whatever batches.
    return np.where(abs(margins) < _ROUNDING, 0.0, margins)


def right_rows(pairs: Sequence[Pair], margins: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[Row]:
    """Yield shares of right pairs with differences: of all, and by phenomenon.

    ``margins``: of each model, by how much it finds the good sentence of each pair more probable.
    """
    first, *others = margins
    for kinds in (["all"] * len(pairs), [pair.phenomenon for pair in pairs]):
        groups = {name: np.array(kinds) == name for name in sorted(set(kinds))}
        right = {
            (model, name): [(values[at] > 0).astype(int).tolist()]
            for model, values in margins.items()
            for name, at in groups.items()
        }
        differences = adjust(
            {(m, n): compare_right(right[m, n], right[first, n]) for m in others for n in groups}
        )
        for name, at in groups.items():
            ties = {m: Counter(ties=int((v[at] == 0).sum())) for m, v in margins.items()}
            yield Row(
                table=RIGHT_PAIRS,
                name=name,
                unit="pairs",
                scores={m: replace(share_right(right[m, name]), counts=+ties[m]) for m in margins},
                differences={model: differences[model, name] for model in others},
                chance=0.5,
            )
