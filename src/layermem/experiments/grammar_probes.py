"""Linear probes for grammar: how well each layer tells the sentences of minimal pairs apart.

A sentence is the mean of its tokens' vectors, without the token that stands before it. The two
sentences of a pair are in one fold, so that a probe is never tested on what it has half seen.

It does not know: where pairs and models come from, tables, pages.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from layermem.analysis.capture import CapturedBatch, capture, sequences_at_once
from layermem.analysis.separability import FOLDS, Separability, separability
from layermem.data.tokenizers import Ids, batch_encoder
from layermem.evals.blimp_records import Pair
from layermem.evals.minimal_pairs import sentence_start
from layermem.results.analysis import Probe, ProbeAccuracy, Representation
from layermem.results.minimal_pairs import GrammarProbes

_REPRESENTATIONS: tuple[Representation, ...] = ("hidden", "routed")
_PROBES: tuple[Probe, ...] = ("paper", "converged")
_BATCH = 64


def distinct_pairs(pairs: Sequence[Pair], per_paradigm: int | None) -> list[Pair]:
    """Return the first pairs of each paradigm without those that share a sentence with another."""
    if per_paradigm is None:
        return []
    seen, counts, distinct = set[str](), Counter[str](), []
    for pair in pairs:
        is_new = not {pair.good, pair.bad} & seen
        if is_new and counts[pair.paradigm] < per_paradigm:
            counts[pair.paradigm] += 1
            seen |= {pair.good, pair.bad}
            distinct.append(pair)
    if len(distinct) < FOLDS:
        raise ValueError(
            f"a probe needs at least {FOLDS} pairs that share no sentence, there are "
            f"{len(distinct)}; give more records or a larger --probe"
        )
    return distinct


def probe_pairs(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> GrammarProbes:
    """Fit probes to the representations of every layer; return their accuracies."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    labels, groups = np.tile([1, 0], len(pairs)), np.repeat(np.arange(len(pairs)), 2)
    vectors = sentence_vectors(model, tokenizer, sentences)
    return GrammarProbes(
        pairs=len(pairs),
        accuracy={
            probe: {
                kind: _by_layer(
                    [separability(x, labels, probe=probe, groups=groups) for x in vectors[kind]]
                )
                for kind in _REPRESENTATIONS
            }
            for probe in _PROBES
        },
    )


def sentence_vectors(
    model: Any, tokenizer: Any, sentences: Sequence[str]
) -> dict[Representation, list[np.ndarray]]:
    """Return the vectors [sentences, F] of every layer, each the mean over a sentence's tokens."""
    encoded = batch_encoder(tokenizer)(sentences)
    rows = min(_BATCH, sequences_at_once(model, max(map(len, encoded)) + 1))
    parts: dict[Representation, list[list[np.ndarray]]] = {kind: [] for kind in _REPRESENTATIONS}
    batches = _batches(encoded, rows, sentence_start(tokenizer))
    for batch in capture(model, batches, kinds=_REPRESENTATIONS):
        # Of each row, what stands before the sentence is left out.
        weights = batch.mask.astype(np.float32)
        weights[:, 0] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        for kind in _REPRESENTATIONS:
            layers = _layers(batch, kind)
            parts[kind].append([np.einsum("bt,btf->bf", weights, x) for x in layers])
    return {
        kind: [np.concatenate(layer) for layer in zip(*batches_of_kind, strict=True)]
        for kind, batches_of_kind in parts.items()
    }


def _batches(encoded: Sequence[Ids], rows: int, first: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield ids and masks, padded on the right, in the given order."""
    for start in range(0, len(encoded), rows):
        some = encoded[start : start + rows]
        longest = max(map(len, some)) + 1
        ids = torch.zeros(len(some), longest, dtype=torch.long)
        mask = torch.zeros(len(some), longest, dtype=torch.long)
        for row, sentence in enumerate(some):
            ids[row, 0] = first
            ids[row, 1 : len(sentence) + 1] = torch.from_numpy(sentence.astype(np.int64))
            mask[row, : len(sentence) + 1] = 1
        yield {"input_ids": ids, "attention_mask": mask}


def _layers(batch: CapturedBatch, kind: Representation) -> Sequence[np.ndarray]:
    return batch.hidden if kind == "hidden" else batch.routed


def _by_layer(layers: Sequence[Separability]) -> ProbeAccuracy:
    return ProbeAccuracy(
        mean=tuple(layer.mean for layer in layers),
        deviation=tuple(layer.deviation for layer in layers),
        shuffled=tuple(layer.shuffled for layer in layers),
        chance=layers[0].chance,
    )
