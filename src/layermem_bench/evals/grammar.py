"""Judgements of grammar: shares of right minimal pairs, differences, and linear probes by layer.

A probe tells the sentences of pairs apart by a layer's vectors, the means over a sentence's tokens.
The two sentences of a pair are in one fold: a probe is never tested on what it has half seen.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from layermem_bench.analysis.capture import capture, sequences_at_once
from layermem_bench.analysis.checkpoints import Checkpoint, load_model
from layermem_bench.analysis.separability import FOLDS, separability
from layermem_bench.evals import Tell, adjust, adjust_together, compare_right, share_right
from layermem_bench.evals.minimal_pairs import Pair, encode_sentences, judge_pairs, read_pairs
from layermem_bench.evals.perplexity import Predecessor, pad_right
from layermem_bench.results.analysis import Probe, Representation
from layermem_bench.results.eval import Difference, EvalOptions, Part, Row, Score, Table

logger = logging.getLogger(__name__)

RIGHT_PAIRS = "right pairs"
"""Name of the table of phenomena."""
# Sentences of a forward whose vectors are captured.
_CAPTURED = 64
_REPRESENTATIONS: tuple[Representation, ...] = get_args(Representation)
_INTERVALS = "A guess: 50%. 95% intervals by Wilson's method, over pairs and not over seeds."
_HOW = (
    "A pair is right if its grammatical sentence has the higher log-probability. It is that of the "
    "whole sentence, whatever its number of tokens; before a sentence stands the token that stands "
    "before texts in training: of runs on text the end token, else the tokenizer's BOS token, or "
    "EOS where it has no BOS. Ties are not right."
)
_WITHOUT_FIRST = (
    "trained on documents that were kept apart (data.isolate_documents), so that it has learnt no "
    "such token: the first token of a sentence is not scored."
)
_TABLES: Mapping[str, Table] = {
    RIGHT_PAIRS: Table(
        better="higher",
        caption=f"{_INTERVALS} Differences: by the jackknife over pairs, p-values of McNemar's "
        "exact test, adjusted for the number of models, those by phenomenon for that of phenomena "
        "too, by Holm's method.",
    ),
    f"{RIGHT_PAIRS} by field": Table(better="higher", caption=_INTERVALS),
    f"{RIGHT_PAIRS} by paradigm": Table(better="higher", caption=_INTERVALS, is_long=True),
}
_PROBED = Table(
    better="higher",
    repeats="folds",
    across="layer",
    caption="Accuracy of a linear probe for grammatical sentences by the mean of their tokens' "
    "vectors, in five folds that split no pair: mean and standard deviation over folds. Control: "
    "labels shuffled within pairs. Chance: 50%.",
)


def prepare_grammar(
    opened: Sequence[Checkpoint], paths: Sequence[str], options: EvalOptions, out: Path, tell: Tell
) -> Callable[[], Part]:
    """Return what has checkpoints judge pairs, and fits probes to their vectors if asked for."""
    pairs = read_pairs([Path(path) for path in paths], per_paradigm=options.limit)
    probed = distinct_pairs(pairs, options.probe)
    margins: dict[str, np.ndarray[Any, Any]] = {}
    probes: dict[str, dict[tuple[str, str], Score]] = {}

    # Of each model by itself, so that one is held at a time.
    def judge(checkpoint: Checkpoint) -> None:
        name, tokenizer, first = checkpoint.name, checkpoint.tokenizer, _first(checkpoint)
        model = load_model(checkpoint, with_head=True)
        logger.info("judging %s pairs with %s", f"{len(pairs):,}", name)
        margins[name] = judge_pairs(
            model,
            tokenizer,
            pairs,
            predecessor=first,
            batch_size=options.batch_size,
            progress=lambda done: tell(f"{name}: {done:,} sentences", None, None),
        )
        if probed:
            logger.info("probing %s with %s pairs", name, f"{len(probed):,}")
            probes[name] = probe_pairs(model, tokenizer, probed, first)

    def measure() -> Part:
        for each in opened:
            judge(each)
        rows = (*right_rows(pairs, margins), *_probe_rows(probes))
        tables = {row.table: _TABLES.get(row.table, _PROBED) for row in rows}
        without = ", ".join(each.name for each in opened if _first(each) is None)
        how = f"{_HOW} {without}: {_WITHOUT_FIRST}" if without else _HOW
        return Part(title="Grammar (BLiMP)", how=how, tables=tables, rows=rows)

    return measure


def _first(checkpoint: Checkpoint) -> Predecessor:
    """Return what stands before a sentence: nothing, where the model has learnt no such token."""
    first = checkpoint.predecessor
    is_isolated = checkpoint.text is not None and checkpoint.text.isolate_documents
    return first if is_isolated or first is not None else "tokenizer"


def right_rows(pairs: Sequence[Pair], margins: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[Row]:
    """Yield shares of right pairs, of all and by phenomenon with differences, field, paradigm.

    ``margins``: of each model, by how much it finds the good sentence of each pair more probable.
    """
    (_, theirs), *others = margins.items()
    phenomena = _groups([pair.phenomenon for pair in pairs])
    of_all = adjust({model: _compare(ours, theirs) for model, ours in others})
    of_phenomena = adjust_together(
        {
            model: {name: _compare(ours[at], theirs[at]) for name, at in phenomena.items()}
            for model, ours in others
        }
    )
    compared = {model: {"all": of_all[model], **of_phenomena[model]} for model, _ in others}
    everything = {"all": np.ones(len(pairs), dtype=bool)}
    for table, groups, differences in (
        (RIGHT_PAIRS, everything | phenomena, compared),
        (f"{RIGHT_PAIRS} by field", _groups([pair.field for pair in pairs]), {}),
        (f"{RIGHT_PAIRS} by paradigm", _groups([pair.paradigm for pair in pairs]), {}),
    ):
        for name, at in groups.items():
            yield Row(
                table=table,
                name=name,
                unit="pairs",
                scores={model: _share(values[at]) for model, values in margins.items()},
                differences={model: of[name] for model, of in differences.items()},
                chance=0.5,
            )


def _groups(names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return of each name which pairs have it."""
    of_pair = np.array(names)
    return {str(name): of_pair == name for name in np.unique(of_pair)}


def _right(margins: np.ndarray[Any, Any]) -> list[list[int]]:
    """Return 1 or 0 of each pair, as of one repeat."""
    return [(margins > 0).astype(int).tolist()]


def _share(margins: np.ndarray[Any, Any]) -> Score:
    """Return the share of right pairs, and how many are ties."""
    ties = int((margins == 0).sum())
    return replace(share_right(_right(margins)), repeats=(), counts={"ties": ties} if ties else {})


def _compare(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> Difference:
    return compare_right(_right(ours), _right(theirs))


def distinct_pairs(pairs: Sequence[Pair], per_paradigm: int | None) -> list[Pair]:
    """Return the first pairs of each paradigm without those that share a sentence with another."""
    if per_paradigm is None:
        return []
    seen, counts, distinct = set[str](), Counter[str](), []
    for pair in pairs:
        if not {pair.good, pair.bad} & seen and counts[pair.paradigm] < per_paradigm:
            counts[pair.paradigm] += 1
            seen |= {pair.good, pair.bad}
            distinct.append(pair)
    if len(distinct) < FOLDS:
        raise ValueError(
            f"a probe needs at least {FOLDS} pairs that share no sentence, there are "
            f"{len(distinct)}; give more records or a larger --probe"
        )
    return distinct


def probe_pairs(
    model: Any, tokenizer: Any, pairs: Sequence[Pair], predecessor: Predecessor = "tokenizer"
) -> dict[tuple[str, str], Score]:
    """Fit probes to the representations of every layer; return their scores by table and row."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    labels, groups = np.tile([1, 0], len(pairs)), np.repeat(np.arange(len(pairs)), 2)
    vectors, scores = sentence_vectors(model, tokenizer, sentences, predecessor), {}
    for probe, kind in itertools.product(get_args(Probe), _REPRESENTATIONS):
        table = f"{probe} probe of {kind} vectors"
        for layer, x in enumerate(vectors[kind]):
            read = separability(x, labels, probe=probe, groups=groups)
            scores[table, f"layer {layer}"] = Score(
                value=read.mean, count=len(pairs), repeats=read.folds
            )
            scores[table, f"layer {layer}, control"] = Score(value=read.shuffled, count=len(pairs))
    return scores


def sentence_vectors(
    model: Any, tokenizer: Any, sentences: Sequence[str], predecessor: Predecessor = "tokenizer"
) -> dict[Representation, list[np.ndarray]]:
    """Return the vectors [sentences, F] of every layer, each the mean over a sentence's tokens."""
    encoded = list(encode_sentences(tokenizer, sentences, predecessor))
    rows = min(_CAPTURED, sequences_at_once(model, max(map(len, encoded))))
    padded = (pad_right(encoded[at : at + rows]) for at in range(0, len(encoded), rows))
    batches = ({"input_ids": ids, "attention_mask": mask} for ids, mask in padded)
    parts: dict[Representation, list[list[np.ndarray]]] = {kind: [] for kind in _REPRESENTATIONS}
    for batch in capture(model, batches, kinds=_REPRESENTATIONS):
        # Of each row, what stands before the sentence is left out.
        weights = batch.mask.astype(np.float32)
        if predecessor is not None:
            weights[:, 0] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        for kind in _REPRESENTATIONS:
            layers = batch.hidden if kind == "hidden" else batch.routed
            parts[kind].append([np.einsum("bt,btf->bf", weights, x) for x in layers])
    return {
        kind: [np.concatenate(layer) for layer in zip(*batches_of_kind, strict=True)]
        for kind, batches_of_kind in parts.items()
    }


def _probe_rows(probes: Mapping[str, Mapping[tuple[str, str], Score]]) -> Iterator[Row]:
    """Yield what probes read, layer by layer; a model of fewer layers has none at the last."""
    for table, name in dict.fromkeys(place for of_model in probes.values() for place in of_model):
        layer = name.removeprefix("layer ")
        yield Row(
            table=table,
            name=name,
            unit="pairs",
            scores={m: of[table, name] for m, of in probes.items() if (table, name) in of},
            is_comparable=layer.isdecimal(),
            at=float(layer) if layer.isdecimal() else None,
            chance=0.5,
        )
