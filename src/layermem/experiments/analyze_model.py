"""Compute the analysis of one loaded model: entropy, separability, layout and routing by layer."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from layermem.analysis.capture import capture, sequences_at_once
from layermem.analysis.depth_weights import recording
from layermem.analysis.disk_rows import DiskRows
from layermem.analysis.embedding import embed
from layermem.analysis.entropy import Standardiser, matrix_entropy
from layermem.analysis.occurrences import Occurrence
from layermem.analysis.routing import circuits, head_heatmaps, mean_heatmap, readings
from layermem.analysis.separability import separability
from layermem.experiments.analyze_checkpoints import Checkpoint
from layermem.models.memories import active_memories
from layermem.models.seams import Part, WeightsUnknown
from layermem.results.analysis import (
    AnalysisOptions,
    AnalyzedModel,
    ByLayer,
    DepthMixture,
    Layout,
    ModelAnalysis,
    Probe,
    ProbeAccuracy,
    Representation,
    Routing,
)

logger = logging.getLogger(__name__)
# Sequences in a batch, at most.
_BATCH = 16
_REPRESENTATIONS: tuple[Representation, ...] = ("hidden", "routed")
_PROBES: tuple[Probe, ...] = ("paper", "converged")


def analyze_model(
    model: Any,
    checkpoint: Checkpoint,
    texts: Sequence[str],
    occurrences: Sequence[Occurrence],
    options: AnalysisOptions,
) -> ModelAnalysis:
    """Analyze a model: its entropy on ``texts``, the words by ``occurrences``, its routers."""
    entropy, mixtures = _compute_entropy(model, checkpoint.tokenizer, texts, options)
    accuracies, layout = _analyze_words(model, checkpoint.tokenizer, occurrences, options)
    routing, unknown = _analyze_routing(model, checkpoint.name)
    return ModelAnalysis(
        about=AnalyzedModel(
            class_name=type(model).__name__,
            layers=model.config.num_hidden_layers,
            width=model.config.hidden_size,
            parameters=model.num_parameters(),
            run_id=None if checkpoint.run is None else checkpoint.run.id,
        ),
        entropy=entropy,
        separability=accuracies,
        layout=layout,
        routing=routing,
        routing_unknown=unknown,
        mixtures=mixtures,
    )


def _compute_entropy(
    model: Any, tokenizer: Any, texts: Sequence[str], options: AnalysisOptions
) -> tuple[dict[Representation, ByLayer], tuple[DepthMixture, ...]]:
    """Return the entropy of sequences whose features are standardised over all sequences, and what
    places that mix over depth read on the way.

    The texts are read twice, so that no more than a batch is held in memory: first for the moments
    of each feature, then for the entropies.
    """
    standardisers: dict[tuple[Representation, int], Standardiser] = {}
    batches = _encode_batches(model, tokenizer, texts, options.length, "moments")
    with recording(model) as recorder:
        for captured in capture(model, batches, kinds=_REPRESENTATIONS):
            for kind in _REPRESENTATIONS:
                for layer, array in enumerate(getattr(captured, kind)):
                    tokens = array[captured.mask]
                    standardisers.setdefault((kind, layer), Standardiser()).add(tokens)
    entropies: dict[tuple[Representation, int], list[float]] = {key: [] for key in standardisers}
    batches = _encode_batches(model, tokenizer, texts, options.length, "entropy")
    for captured in capture(model, batches, kinds=_REPRESENTATIONS):
        if (captured.mask.sum(1) < 2).any():
            raise ValueError("entropy needs sequences of at least 2 tokens")
        for (kind, layer), standardiser in standardisers.items():
            for tokens, mask in zip(getattr(captured, kind)[layer], captured.mask, strict=True):
                standardised = standardiser.standardise(tokens[mask])
                entropies[kind, layer].append(matrix_entropy(standardised, options.alpha))
    layers = range(model.config.num_hidden_layers)
    by_layer: dict[Representation, ByLayer] = {
        kind: ByLayer(
            mean=tuple(float(np.mean(entropies[kind, layer])) for layer in layers),
            deviation=tuple(float(np.std(entropies[kind, layer])) for layer in layers),
        )
        for kind in _REPRESENTATIONS
    }
    return by_layer, recorder.mixtures()


def _analyze_words(
    model: Any, tokenizer: Any, occurrences: Sequence[Occurrence], options: AnalysisOptions
) -> tuple[dict[Probe, Mapping[Representation, ProbeAccuracy]], Layout]:
    """Return the probes' accuracies and the layout of the words."""
    layers = range(model.config.num_hidden_layers)
    with DiskRows() as vectors:
        labels = _collect_vectors(model, tokenizer, occurrences, options.length, vectors)
        accuracies: dict[Probe, Mapping[Representation, ProbeAccuracy]] = {
            probe: {
                kind: _fit_probes(
                    (vectors.read((kind, layer)) for layer in layers), labels, probe, options.seed
                )
                for kind in _REPRESENTATIONS
            }
            for probe in _PROBES
        }
        points = {
            layer: embed(vectors.read(("routed", layer)), seed=options.seed).round(3).tolist()
            for layer in layers
        }
    layout = Layout(
        labels=tuple(labels),
        layers={layer: tuple(map(tuple, rows)) for layer, rows in points.items()},
    )
    return accuracies, layout


def _collect_vectors(
    model: Any,
    tokenizer: Any,
    occurrences: Sequence[Occurrence],
    length: int,
    vectors: DiskRows,
) -> list[int]:
    """Append the vectors at all occurrences by (representation, layer); return their words."""
    by_text: dict[str, list[Occurrence]] = {}
    for occurrence in occurrences:
        by_text.setdefault(occurrence.text, []).append(occurrence)
    words: list[int] = []
    remaining = iter(by_text.values())
    batches = _encode_batches(model, tokenizer, list(by_text), length, "words")
    for captured in capture(model, batches, kinds=_REPRESENTATIONS):
        in_batch = itertools.islice(remaining, len(captured.ids))
        for row, in_text in enumerate(in_batch):
            for occurrence in in_text:
                for kind in _REPRESENTATIONS:
                    for layer, array in enumerate(getattr(captured, kind)):
                        vectors.append((kind, layer), array[row, occurrence.token])
                words.append(occurrence.word)
    return words


def _fit_probes(
    vectors: Iterator[np.ndarray], labels: Sequence[int], probe: Probe, seed: int
) -> ProbeAccuracy:
    """Return the accuracy of a probe fitted to each layer's vectors."""
    results = [separability(array, np.array(labels), probe=probe, seed=seed) for array in vectors]
    return ProbeAccuracy(
        mean=tuple(result.mean for result in results),
        deviation=tuple(result.deviation for result in results),
        shuffled=tuple(result.shuffled for result in results),
        chance=results[0].chance,
    )


def _analyze_routing(model: Any, name: str) -> tuple[Routing | None, str | None]:
    """Return what the routers read, and why that is not known; both are None without routers."""
    if not active_memories(model):
        return None, None
    try:
        heatmap = mean_heatmap(model)
    except WeightsUnknown as error:
        logger.info("what the routers of %s read is left out: %s", name, error)
        return None, str(error)
    if np.array_equal(heatmap, np.eye(len(heatmap))):
        return None, None
    parts = {part: mean_heatmap(model, part) for part in get_args(Part)}
    alike = all(np.array_equal(part, heatmap) for part in parts.values())
    routing = Routing(
        heatmap=tuple(map(tuple, heatmap.tolist())),
        heads=tuple(tuple(map(tuple, heads)) for heads in head_heatmaps(model).tolist()),
        readings=tuple(readings(heatmap)),
        circuits=tuple(circuits(heatmap)) if len(heatmap) > 2 else (),
        parts=None
        if alike
        else {name: tuple(map(tuple, part.tolist())) for name, part in parts.items()},
    )
    return routing, None


def _encode_batches(
    model: Any, tokenizer: Any, texts: Sequence[str], length: int, what: str
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield texts encoded, cut to ``length`` tokens and padded on the right; show progress."""
    end = tokenizer.eos_token_id
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
    batch_size = min(_BATCH, sequences_at_once(model, length))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for start in progress.track(range(0, len(texts), batch_size), description=what):
            batch = list(texts[start : start + batch_size])
            ids = [row[:length] for row in tokenizer(batch, add_special_tokens=False)["input_ids"]]
            longest = max(map(len, ids))
            yield {
                "input_ids": torch.tensor([[*r, *[padding] * (longest - len(r))] for r in ids]),
                "attention_mask": torch.tensor(
                    [[1] * len(r) + [0] * (longest - len(r)) for r in ids]
                ),
            }
