"""Analyze one checkpoint, or two side by side: entropy, words, routing by layer -> analysis.json.

Everything that may be refused is checked before the weights of a model are loaded.
"""

import itertools
import logging
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch.nn.utils.rnn import pad_sequence

from layermem.models.memories import active_memories
from layermem.models.seams import Part, WeightsUnknown
from layermem_base.files import write_atomically
from layermem_bench.analysis.capture import CapturedBatch, capture, sequences_at_once
from layermem_bench.analysis.checkpoints import (
    Checkpoint,
    check_same_tokens,
    load_model,
    open_checkpoints,
)
from layermem_bench.analysis.depth_weights import recording, to_rows
from layermem_bench.analysis.entropy import Standardiser, matrix_entropy
from layermem_bench.analysis.routing import (
    borrowers_of_mixtures,
    circuits,
    head_heatmaps,
    mean_heatmap,
    readings,
)
from layermem_bench.analysis.separability import embed, separability
from layermem_bench.analysis.texts import Occurrence, choose_words, find_words, read_texts
from layermem_bench.results.analysis import (
    Analysis,
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
from layermem_bench.results.files import to_json

logger = logging.getLogger(__name__)
# Sequences in a batch, at most.
_BATCH = 16
_REPRESENTATIONS: tuple[Representation, ...] = ("hidden", "routed")
_Place = tuple[Representation, int]
"""A representation and its layer."""


class DiskRows(ExitStack):
    """Rows of float32 by key, each key in a temporary file that is deleted on leaving the block.

    The vectors of some thousand words take about 50 MB a layer at width 2048, which is too much to
    hold for all layers at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[Hashable, tuple[IO[bytes], int]] = {}

    def append(self, key: Hashable, row: np.ndarray) -> None:
        """Append a row to those of ``key``; all rows of a key have as many numbers as the first."""
        if key not in self._files:
            new = tempfile.TemporaryFile(prefix="layermem-")  # noqa: SIM115 (closed on leaving)
            self._files[key] = self.enter_context(new), row.size
        file, size = self._files[key]
        if row.size != size:
            raise ValueError(f"rows of {key!r} hold {size} numbers, got {row.size}")
        file.write(np.ascontiguousarray(row, dtype=np.float32).tobytes())

    def read(self, key: Hashable) -> np.ndarray:
        """Return all rows of ``key`` as an array [rows, numbers]."""
        file, size = self._files[key]
        file.seek(0)
        # After reading, the position is at the end again, where the next row goes.
        return np.frombuffer(file.read(), dtype=np.float32).reshape(-1, size)


def analyze(
    checkpoints: Sequence[str], options: AnalysisOptions, out: Path, command: str = ""
) -> Analysis:
    """Analyze one or two checkpoints; return the result and write it to analysis.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. With two, the texts are
    chosen by the first. ``command`` is recorded as what made the result.
    """
    opened = open_checkpoints(checkpoints)
    first = opened[0]
    options = choose_words(options, first)
    where, texts = read_texts(options, first)
    sequences = list(itertools.islice(texts, options.sequences))
    if not sequences:
        raise ValueError(
            f"there is no sequence of {options.length} tokens in {where}; lower --length"
        )
    occurrences = find_words(options, first)
    if len(opened) == 2:
        with_words = dict.fromkeys(occurrence.text for occurrence in occurrences)
        check_same_tokens(first, opened[1], [*sequences, *with_words])
    models = [load_model(checkpoint) for checkpoint in opened]
    analysis = Analysis(
        command=command,
        folder=str(out),
        options=options,
        sequences=len(sequences),
        models={
            checkpoint.name: _analyze_model(model, checkpoint, sequences, occurrences, options)
            for checkpoint, model in zip(opened, models, strict=True)
        },
    )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "analysis.json", to_json(analysis))
    return analysis


def _analyze_model(
    model: Any,
    checkpoint: Checkpoint,
    texts: Sequence[str],
    occurrences: Sequence[Occurrence],
    options: AnalysisOptions,
) -> ModelAnalysis:
    """Analyze a model: its entropy on ``texts``, the words by ``occurrences``, its routers."""
    logger.info("analyzing %s", checkpoint.name)
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
    """Return the entropy of sequences, and what places that mix over depth read on the way."""
    # The texts are read twice, so that no more than a batch is held in memory: for the moments by
    # which features are standardised over all sequences, then for the entropies.
    standardisers: dict[_Place, Standardiser] = {}
    batches = _encode_batches(model, tokenizer, texts, options.length, "moments")
    with recording(model) as recorder:
        for captured in capture(model, batches, kinds=_REPRESENTATIONS):
            for place, array in _by_place(captured):
                standardisers.setdefault(place, Standardiser()).add(array[captured.mask])
    entropies: dict[_Place, list[float]] = {place: [] for place in standardisers}
    batches = _encode_batches(model, tokenizer, texts, options.length, "entropy")
    for captured in capture(model, batches, kinds=_REPRESENTATIONS):
        if (captured.mask.sum(1) < 2).any():
            raise ValueError("entropy needs sequences of at least 2 tokens")
        for place, array in _by_place(captured):
            for tokens, mask in zip(array, captured.mask, strict=True):
                standardised = standardisers[place].standardise(tokens[mask])
                entropies[place].append(matrix_entropy(standardised, options.alpha))
    layers = range(model.config.num_hidden_layers)
    by_layer: dict[Representation, ByLayer] = {
        kind: ByLayer(
            mean=tuple(float(np.mean(entropies[kind, layer])) for layer in layers),
            deviation=tuple(float(np.std(entropies[kind, layer])) for layer in layers),
        )
        for kind in _REPRESENTATIONS
    }
    return by_layer, recorder.mixtures()


def _by_place(captured: CapturedBatch) -> Iterator[tuple[_Place, np.ndarray]]:
    for kind in _REPRESENTATIONS:
        for layer, array in enumerate(getattr(captured, kind)):
            yield (kind, layer), array


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
            for probe in get_args(Probe)
        }
        points = {
            layer: embed(vectors.read(("routed", layer)), seed=options.seed).round(3)
            for layer in layers
        }
    in_layers = {layer: to_rows(array) for layer, array in points.items()}
    return accuracies, Layout(labels=tuple(labels), layers=in_layers)


def _collect_vectors(
    model: Any, tokenizer: Any, occurrences: Sequence[Occurrence], length: int, vectors: DiskRows
) -> list[int]:
    """Append the vectors at all occurrences by (representation, layer); return their words."""
    by_text: dict[str, list[Occurrence]] = {}
    for occurrence in occurrences:
        by_text.setdefault(occurrence.text, []).append(occurrence)
    words: list[int] = []
    remaining = iter(by_text.values())
    batches = _encode_batches(model, tokenizer, list(by_text), length, "words")
    for captured in capture(model, batches, kinds=_REPRESENTATIONS):
        for row, in_text in enumerate(itertools.islice(remaining, len(captured.ids))):
            for occurrence in in_text:
                words.append(occurrence.word)
                for place, array in _by_place(captured):
                    vectors.append(place, array[row, occurrence.token])
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
        heatmap=to_rows(heatmap),
        heads=tuple(map(to_rows, head_heatmaps(model))),
        readings=tuple(readings(heatmap)),
        circuits=tuple(circuits(heatmap)) if len(heatmap) > 2 else (),
        parts=None if alike else {name: to_rows(part) for name, part in parts.items()},
        borrowers=tuple(borrowers_of_mixtures(model, heatmap)),
    )
    return routing, None


def _encode_batches(
    model: Any, tokenizer: Any, texts: Sequence[str], length: int, what: str
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield texts encoded, cut to ``length`` tokens and padded on the right; show progress."""
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    batch_size = min(_BATCH, sequences_at_once(model, length))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for start in progress.track(range(0, len(texts), batch_size), description=what):
            batch = list(texts[start : start + batch_size])
            encoded = tokenizer(batch, add_special_tokens=False)["input_ids"]
            ids = [torch.tensor(row[:length], dtype=torch.long) for row in encoded]
            yield {
                "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding),
                "attention_mask": pad_sequence(list(map(torch.ones_like, ids)), batch_first=True),
            }
