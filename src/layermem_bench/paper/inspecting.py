"""Numbers of analyses of ended runs: entropy, probes, layouts, routers.

An analysis.json of the same weights and options is used again.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from layermem_bench.paper.artefact import Observing
from layermem_bench.results.analysis import (
    Analysis,
    AnalysisOptions,
    Layout,
    ModelAnalysis,
    Probe,
    Representation,
)
from layermem_bench.results.files import read_result
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import Picture, RunRecord, Scale
from layermem_bench.study.definition import Observed

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)
# The standard library has less than 200 of the rarest of the four words.
_EACH: Mapping[Scale, int] = {"tiny": 100, "small": 600, "paper": 1668}
# Points of a layout that a picture keeps, at most.
_MOST_POINTS = 1000
_ARMS = ("lime", "plain")
START = "lime at its start"
"""The arm of routers before training."""
Analyses = dict[str, dict[int, ModelAnalysis]]
"""Arm and seed to its analysis."""


def options_at(
    scale: Scale,
    words: tuple[str, ...] | None = None,
    each: int | None = None,
    text: str | None = None,
) -> AnalysisOptions:
    """Return how a scale is analyzed; the paper's: 1,668 occurrences, its code's order 0.5."""
    return AnalysisOptions(words=words, each=each or _EACH[scale], text=text, alpha=0.5)


def analyses(trained: Observing, study: str, options: AnalysisOptions) -> Analyses:
    """Return the analyses of LIMe and the plain decoder, of every seed that both have."""
    records = trained.records.get(study, {})
    result: Analyses = {arm: {} for arm in _ARMS}
    for seed in records.get("lime", {}):
        if seed in records.get("plain", {}):
            pair = [records[arm][seed] for arm in _ARMS]
            models = _analysis_of(pair, options, trained.out).models.values()
            # In the order of the command line, whatever the names of the folders.
            for arm, model in zip(_ARMS, models, strict=True):
                result[arm][seed] = model
    return result


def entropy(
    analyses: Analyses, kind: Representation, quantity: str, layer: int | None = None
) -> Iterator[Observed]:
    """Yield the matrix entropy of a layer, or its mean over layers."""

    def value(model: ModelAnalysis) -> float:
        of_layers = model.entropy[kind].mean
        return float(np.mean(of_layers)) if layer is None else of_layers[layer]

    return _observe(analyses, quantity, value)


def probes(
    analyses: Analyses, kind: Representation, probe: Probe, quantity: str, layer: int
) -> Iterator[Observed]:
    """Yield a probe's accuracy at a layer."""
    return _observe(
        analyses,
        quantity,
        lambda model: model.separability[probe][kind].mean[layer],
        chance=lambda model: model.separability[probe][kind].chance,
    )


def nearest_in_layout(analyses: Analyses, quantity: str) -> Iterator[Observed]:
    """Yield how often the nearest other point of the last layer's layout is of the same word."""

    def chance(model: ModelAnalysis) -> float:
        labels = model.layout.labels
        return float(np.bincount(labels).max() / len(labels))

    return _observe(analyses, quantity, lambda model: same_as_nearest(model.layout), chance)


def same_as_nearest(layout: Layout) -> float:
    """Return the share of the last layer's points whose nearest other point has their label."""
    points = np.asarray(layout.layers[max(layout.layers)], dtype=np.float64)
    labels = np.asarray(layout.labels)
    distances = np.square(points[:, None] - points[None]).sum(-1)
    np.fill_diagonal(distances, np.inf)
    return float((labels == labels[distances.argmin(1)]).mean())


def _observe(
    analyses: Analyses,
    quantity: str,
    value: Callable[[ModelAnalysis], float],
    chance: Callable[[ModelAnalysis], float] | None = None,
) -> Iterator[Observed]:
    """Yield a number of each arm's models; ``chance``: what a guess at a share comes to."""
    for arm, by_seed in analyses.items():
        yield Observed(
            quantity=quantity,
            arm=arm,
            by_seed={seed: value(model) for seed, model in by_seed.items()},
            is_share=chance is not None,
            chance=max(map(chance, by_seed.values()), default=None) if chance else None,
        )


def layouts(analyses: Analyses, words: tuple[str, ...]) -> Iterator[Picture]:
    """Yield where words lie by the values of each layer, of each arm's first model."""
    for arm, by_seed in analyses.items():
        for seed, model in list(by_seed.items())[:1]:
            layers = model.layout.layers
            yield Picture(
                kind="words",
                name=f"{arm}, seed {seed}, {', '.join(words)}",
                panels={f"layer {i}": points[:_MOST_POINTS] for i, points in layers.items()},
                labels=model.layout.labels[:_MOST_POINTS],
                words=words,
            )


def heatmaps(trained: Observing, study: str, *, by_head: bool) -> dict[str, dict[int, np.ndarray]]:
    """Return what LIMe's routers read by arm and seed: trained ones, and those at their start.

    ``by_head``: [L, R, L], divided by each head's sum; else [L, L], averaged over heads first,
    which differs where one head has larger weights.
    """
    from layermem_bench.analysis.routing import head_heatmaps, mean_heatmap

    records = trained.records.get(study, {}).get("lime", {})
    heatmap_of = head_heatmaps if by_head else mean_heatmap
    return {
        arm: {s: heatmap_of(_model_of(r, trained=arm == "lime")) for s, r in records.items()}
        for arm in ("lime", START)
    }


def shares_read(
    heatmaps: Mapping[str, Mapping[int, np.ndarray]],
    quantity: str,
    share: Callable[[np.ndarray], float],
) -> Iterator[Observed]:
    """Yield a share of what routers read, computed from each heatmap."""
    for arm, by_seed in heatmaps.items():
        values = {seed: share(heatmap) for seed, heatmap in by_seed.items()}
        yield Observed(quantity=quantity, arm=arm, by_seed=values, is_share=True)


def _model_of(record: RunRecord, *, trained: bool) -> "nn.Module":
    """Return a run's final model, or a new model of its seed."""
    from transformers import set_seed

    from layermem_bench.analysis.checkpoints import load_model, open_checkpoints
    from layermem_bench.train.run_config import recorded_run
    from layermem_bench.train.setup import build_model

    (checkpoint,) = open_checkpoints([record.folder])
    if trained:
        return load_model(checkpoint)
    # As training builds it: a field that is left out, such as the vocabulary's size, would draw
    # other random numbers, and the routers would be of another start than the run's.
    set_seed(record.seed)
    return build_model(recorded_run(RunFolder(record.folder)), checkpoint.tokenizer)


def _analysis_of(pair: Sequence[RunRecord], options: AnalysisOptions, out: Path) -> Analysis:
    """Return the analysis of two runs: that which is there, else a new one."""
    from layermem_bench.analysis.analyze import analyze
    from layermem_bench.analysis.checkpoints import open_checkpoints
    from layermem_bench.evals.benchmarks import checkpoint_digest

    words = "-".join(options.words or ()) or "words"
    # A run that is trained again keeps its id, and may have other weights.
    digests = (checkpoint_digest(c, None) for c in open_checkpoints([r.folder for r in pair]))
    weights = hashlib.sha256(" ".join(digests).encode()).hexdigest()[:12]
    # Beside the results, so that artefacts share what is of the same runs.
    name = f"{pair[0].run_id}-{pair[1].run_id}-{words}-{options.each}-{weights}"
    folder = out.parent / "analyses" / name
    if (folder / "analysis.json").exists():
        analysis = read_result(Analysis, folder)
        of_runs = [model.about.run_id for model in analysis.models.values()]
        same_words = options.words in (None, analysis.options.words)
        same = replace(analysis.options, words=options.words) == options and same_words
        if same and of_runs == [record.run_id for record in pair]:
            return analysis
        raise ValueError(
            f"{folder}/analysis.json is of other runs or options than its folder says; delete it"
        )
    logger.info("analyzing %s against %s", pair[0].folder, pair[1].folder)
    command = f"layermem analyze {pair[0].folder} --against {pair[1].folder}"
    return analyze([record.folder for record in pair], options, folder, command)
