"""Judgements of grammar: minimal pairs of BLiMP, and linear probes for grammar by layer.

    {"sentence_good": "Who should Derek hug after shocking Richard?",
     "sentence_bad": "Who should Derek hug Richard after shocking?",
     "linguistics_term": "island_effects", "UID": "adjunct_island", ...}

The source is github.com/alexwarstadt/blimp, folder data: 67 files of 1,000 pairs, one for each
paradigm (UID); a phenomenon (linguistics_term) has several (Warstadt et al., arXiv 1912.00582). A
few records hold one sentence twice: they are left out.

A pair is right if the grammatical sentence has the higher log-probability, of the whole sentence
and not the mean of its tokens. A probe tells the sentences of pairs apart by a layer's vectors, the
means over a sentence's tokens. The two sentences of a pair are in one fold: a probe is never tested
on what it has half seen.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from layermem_bench.analysis.capture import capture, sequences_at_once
from layermem_bench.analysis.result import Probe, Representation
from layermem_bench.analysis.separability import Separability, separability
from layermem_bench.evals.perplexity import Predecessor, first_context, pad_right, perplexity
from layermem_bench.evals.result import EvalOptions, Part, Row, Score, Table
from layermem_bench.evals.scoring import (
    Tell,
    adjust,
    compare_right,
    read_rows,
    share_right,
    tokens_of,
)
from layermem_bench.run.trained_models import Checkpoint, load_model
from layermem_bench.text.tokenizers import batch_encoder

RIGHT_PAIRS, BY_PARADIGM = "right pairs", "right pairs by paradigm"
"""Names of the tables of phenomena and of paradigms."""
# Nats that the log-probability of equal ids may differ by in other batches.
_ROUNDING = 1e-4
# Sentences of a forward whose vectors are captured.
_CAPTURED = 64
_REPRESENTATIONS: tuple[Representation, ...] = get_args(Representation)
_INTERVALS = "A guess: 50%. 95% intervals by Wilson's method, over pairs and not over seeds."
_HOW = (
    "A pair is right if its grammatical sentence has the higher log-probability. It is that of the "
    "whole sentence, whatever its number of tokens; before a sentence stands the token that stands "
    "before texts in training: of runs on text the end token, else the tokenizer's BOS token, or "
    "EOS where it has no BOS. Where there is none the first token of a sentence is not scored. "
    "Ties are not right."
)
_TABLES: Mapping[str, Table] = {
    RIGHT_PAIRS: Table(
        better="higher",
        caption=f"{_INTERVALS} Differences: by the jackknife over pairs, p-values of McNemar's "
        "exact test, adjusted for the number of models, those by phenomenon for that of phenomena "
        "too, by Holm's method.",
    ),
    BY_PARADIGM: Table(better="higher", caption=_INTERVALS, is_long=True),
}
_PROBED = Table(
    better="higher",
    repeats="folds",
    across="layer",
    caption="Accuracy of a linear probe for grammatical sentences by the mean of their tokens' "
    "vectors, in five folds that split no pair: mean and standard deviation over folds. Control: "
    "labels shuffled within pairs. Chance: 50%.",
)


class Pair(NamedTuple):
    """A grammatical sentence and one that is not."""

    good: str
    bad: str
    phenomenon: str
    """What is violated, such as "island_effects"."""
    paradigm: str
    """How it is violated, such as "adjunct_island"."""


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
                pair = Pair(*(str(row[name]) for name in names))
            except KeyError as error:
                raise ValueError(f"{file} is not BLiMP's: a record has no {error}") from error
            if pair.good != pair.bad and counts[pair.paradigm] != per_paradigm:
                counts[pair.paradigm] += 1
                pairs.append(pair)
    if not pairs:
        raise ValueError(f"there are no pairs in {', '.join(places)}: name BLiMP's JSON lines")
    return pairs


def measure_grammar(
    opened: Sequence[Checkpoint], paths: Sequence[str], options: EvalOptions, tell: Tell
) -> Part:
    """Have checkpoints judge pairs, and fit probes to their vectors if asked for."""
    pairs = read_pairs(paths, options.limit)
    margins: dict[str, np.ndarray[Any, Any]] = {}
    probes: dict[str, dict[str, list[Separability]]] = {}
    for each in opened:
        model, name = load_model(each, with_head=True), each.name
        margins[name] = judge_pairs(
            model,
            each.tokenizer,
            pairs,
            predecessor=each.predecessor,
            batch_size=options.batch_size,
            progress=tokens_of(tell, name),
        )
        if options.probe is not None:
            distinct = distinct_pairs(pairs, options.probe)
            probes[name] = probe_pairs(model, each.tokenizer, distinct, each.predecessor)
    rows = (*right_rows(pairs, margins), *probe_rows(probes))
    tables = {row.table: _TABLES.get(row.table, _PROBED) for row in rows}
    return Part(title="Grammar (BLiMP)", how=_HOW, tables=tables, rows=rows)


def judge_pairs(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    predecessor: Predecessor = "tokenizer",
    batch_size: int | None = None,
    progress: Callable[[int], None] = lambda tokens: None,
) -> np.ndarray[Any, Any]:
    """Return by how much (nats) each pair's good sentence is more probable than its bad one."""
    # Once each: sentences are in several pairs.
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    read = perplexity(
        model,
        tokenizer,
        sentences,
        batch_size=batch_size,
        predecessor=predecessor,
        progress=progress,
    )
    nats = dict(zip(sentences, read.nats, strict=True))
    margins = np.array([nats[pair.bad] - nats[pair.good] for pair in pairs])
    # Sentences of equal ids, of words that the tokenizer does not know, tie in whatever batches.
    return np.where(abs(margins) < _ROUNDING, 0.0, margins)


def right_rows(pairs: Sequence[Pair], margins: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[Row]:
    """Yield shares of right pairs: of all and by phenomenon with differences, and by paradigm.

    ``margins``: of each model, by how much it finds the good sentence of each pair more probable.
    """
    first, *others = margins
    for table, kinds in (
        (RIGHT_PAIRS, ["all"] * len(pairs)),
        (RIGHT_PAIRS, [pair.phenomenon for pair in pairs]),
        (BY_PARADIGM, [pair.paradigm for pair in pairs]),
    ):
        groups = {name: np.array(kinds) == name for name in sorted(set(kinds))}
        right = {
            (model, name): [(values[at] > 0).astype(int).tolist()]
            for model, values in margins.items()
            for name, at in groups.items()
        }
        compared = others if table == RIGHT_PAIRS else []
        differences = adjust(
            {(m, n): compare_right(right[m, n], right[first, n]) for m in compared for n in groups}
        )
        for name, at in groups.items():
            ties = {m: {"ties": int((values[at] == 0).sum())} for m, values in margins.items()}
            yield Row(
                table=table,
                name=name,
                unit="pairs",
                scores={
                    m: replace(share_right(right[m, name]), repeats=(), counts=+Counter(ties[m]))
                    for m in margins
                },
                differences={model: differences[model, name] for model in compared},
                chance=0.5,
            )


def distinct_pairs(pairs: Sequence[Pair], per_paradigm: int) -> list[Pair]:
    """Return the first pairs of each paradigm without those that share a sentence with another."""
    seen, counts, distinct = set[str](), Counter[str](), []
    for pair in pairs:
        if not {pair.good, pair.bad} & seen and counts[pair.paradigm] < per_paradigm:
            counts[pair.paradigm] += 1
            seen |= {pair.good, pair.bad}
            distinct.append(pair)
    return distinct


def probe_pairs(
    model: Any, tokenizer: Any, pairs: Sequence[Pair], predecessor: Predecessor = "tokenizer"
) -> dict[str, list[Separability]]:
    """Fit probes to the representations of every layer; return what they read by table."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    labels, groups = np.tile([1, 0], len(pairs)), np.repeat(np.arange(len(pairs)), 2)
    vectors = sentence_vectors(model, tokenizer, sentences, predecessor)
    return {
        f"{probe} probe of {kind} vectors": [
            separability(x, labels, probe=probe, groups=groups) for x in vectors[kind]
        ]
        for probe, kind in itertools.product(get_args(Probe), _REPRESENTATIONS)
    }


def sentence_vectors(
    model: Any, tokenizer: Any, sentences: Sequence[str], predecessor: Predecessor = "tokenizer"
) -> dict[Representation, list[np.ndarray]]:
    """Return the vectors [sentences, F] of every layer, each the mean over a sentence's tokens."""
    first = first_context(tokenizer, predecessor)
    before = np.array([] if first is None else [first], dtype=np.int64)
    encoded = [np.append(before, ids.astype(int)) for ids in batch_encoder(tokenizer)(sentences)]
    rows = min(_CAPTURED, sequences_at_once(model, max(map(len, encoded))))
    padded = (pad_right(encoded[at : at + rows]) for at in range(0, len(encoded), rows))
    batches = ({"input_ids": ids, "attention_mask": mask} for ids, mask in padded)
    parts: dict[Representation, list[list[np.ndarray]]] = {kind: [] for kind in _REPRESENTATIONS}
    for batch in capture(model, batches, kinds=_REPRESENTATIONS):
        # Of each row, what stands before the sentence is left out.
        weights = batch.mask.astype(np.float32)
        weights[:, : len(before)] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        for kind in _REPRESENTATIONS:
            layers = batch.hidden if kind == "hidden" else batch.routed
            parts[kind].append([np.einsum("bt,btf->bf", weights, x) for x in layers])
    return {
        kind: [np.concatenate(layer) for layer in zip(*batches_of_kind, strict=True)]
        for kind, batches_of_kind in parts.items()
    }


def probe_rows(probes: Mapping[str, Mapping[str, Sequence[Separability]]]) -> Iterator[Row]:
    """Yield what probes of each table read, layer by layer, of each model that has the layer."""
    for table in dict.fromkeys(table for of_model in probes.values() for table in of_model):
        for layer in range(max(len(of_model[table]) for of_model in probes.values())):
            read = {m: of[table][layer] for m, of in probes.items() if layer < len(of[table])}
            row = partial(Row, table=table, chance=0.5)
            yield row(
                name=f"layer {layer}",
                scores={m: Score(value=each.mean, repeats=each.folds) for m, each in read.items()},
                at=float(layer),
            )
            yield row(
                name=f"layer {layer}, control",
                scores={m: Score(value=each.shuffled) for m, each in read.items()},
                is_comparable=False,
            )
