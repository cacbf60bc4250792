"""Numbers of ended runs, and of analyses of them: losses, right answers, entropy, probes, routers.

An analysis.json of the same weights and options is used again.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

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
from layermem_bench.results.study import LOSS, RIGHT_ANSWERS, Picture, RunRecord, Scale, Validation
from layermem_bench.study.definition import Observed

T = TypeVar("T")
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


def losses(trained: Observing, study: str, quantity: str = LOSS) -> Iterator[Observed]:
    """Yield the last validation loss of each arm."""
    return _observe(trained.records.get(study, {}), quantity, lambda run: run.metrics[LOSS])


def perplexities(trained: Observing, study: str, quantity: str) -> Iterator[Observed]:
    """Yield the exponential of the last validation loss of each arm."""
    records = trained.records.get(study, {})
    return _observe(records, quantity, lambda run: math.exp(run.metrics[LOSS]))


def lower_perplexity(trained: Observing, study: str, arm: str, quantity: str) -> Iterator[Observed]:
    """Yield by which share an arm's last perplexity is below the plain decoder's."""
    by_seed = {
        seed: 1 - math.exp(ours.metrics[LOSS] - theirs.metrics[LOSS])
        for seed, (ours, theirs) in _pairs(trained, study, arm).items()
    }
    yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True)


def right_answers(trained: Observing, study: str, quantity: str) -> Iterator[Observed]:
    """Yield the share of test problems that each arm solves, with a guess's."""
    records = trained.records.get(study, {})
    chances = {r.solved.chance for runs in records.values() for r in runs.values() if r.solved}
    # Problems of one study are the same, and so is what a guess at them comes to.
    chance = min(chances) if len(chances) == 1 else None
    for of_arm in _observe(records, quantity, lambda r: r.metrics[RIGHT_ANSWERS], is_share=True):
        yield replace(of_arm, chance=chance)


def saved(
    trained: Observing, study: str, arm: str, across: str, quantity: str
) -> Iterator[Observed]:
    """Yield which share of tokens or FLOPs an arm saves on the way to a validation loss.

    The loss is the higher one of its and the plain decoder's last, seed by seed, so that both reach
    it, whichever is better. ``across``: "flops" or "tokens". The share is below 0 where the arm
    needs more than the plain decoder.
    """
    records = trained.records.get(study, {})
    _check_validated_alike([r for each in (arm, "plain") for r in records.get(each, {}).values()])
    by_seed = {}
    for seed, pair in _pairs(trained, study, arm).items():
        target = max(record.validations[-1].val_loss for record in pair)
        ours, theirs = (_reached(record.validations, across, target) for record in pair)
        by_seed[seed] = 1 - ours / theirs
    yield Observed(quantity=quantity, arm=arm, by_seed=by_seed, is_share=True)
    # The plain decoder saves nothing against itself.
    none = dict.fromkeys(by_seed, 0.0)
    yield Observed(quantity=quantity, arm="plain", by_seed=none, is_share=True)


def _pairs(trained: Observing, study: str, arm: str) -> dict[int, tuple[RunRecord, RunRecord]]:
    """Return an arm's run and the plain decoder's by seed, of the seeds that both have."""
    records = trained.records.get(study, {})
    ours, plain = records.get(arm, {}), records.get("plain", {})
    return {seed: (run, plain[seed]) for seed, run in ours.items() if seed in plain}


def _check_validated_alike(records: Sequence[RunRecord]) -> None:
    """Raise where curves were recorded at other steps, or at one: a loss is then reached elsewhere.

    How often a run is validated makes it no other run, but it makes its curve another.
    """
    by_steps = {tuple(v.step for v in record.validations): record.folder for record in records}
    if len(by_steps) > 1 or any(len(steps) < 2 for steps in by_steps):
        counts = ", ".join(f"{folder} at {len(steps)}" for steps, folder in by_steps.items())
        raise ValueError(
            f"the curves need validations at the same steps, two or more of them ({counts}): train "
            "these runs in another --out with one --eval-every"
        )


def _reached(curve: Sequence[Validation], across: str, target: float) -> float:
    """Return the tokens or FLOPs at which a curve is first at a loss, or interpolated, below it."""
    points = [(float(getattr(each, across)), each.val_loss) for each in curve]
    first = next(i for i, (_, loss) in enumerate(points) if loss <= target)
    at, loss = points[first]
    if first == 0:
        return at
    at_before, loss_before = points[first - 1]
    return at_before + (loss_before - target) / (loss_before - loss) * (at - at_before)


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
        lambda model: model.separability[probe][kind].chance,
        is_share=True,
    )


def nearest_in_layout(analyses: Analyses, quantity: str) -> Iterator[Observed]:
    """Yield how often the nearest other point of the last layer's layout is of the same word."""

    def chance(model: ModelAnalysis) -> float:
        labels = model.layout.labels
        return float(np.bincount(labels).max() / len(labels))

    def share(model: ModelAnalysis) -> float:
        return same_as_nearest(model.layout)

    return _observe(analyses, quantity, share, chance, is_share=True)


def same_as_nearest(layout: Layout) -> float:
    """Return the share of the last layer's points whose nearest other point has their label."""
    points = np.asarray(layout.layers[max(layout.layers)], dtype=np.float64)
    labels = np.asarray(layout.labels)
    distances = np.square(points[:, None] - points[None]).sum(-1)
    np.fill_diagonal(distances, np.inf)
    return float((labels == labels[distances.argmin(1)]).mean())


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
    return _observe(heatmaps, quantity, share, is_share=True)


def _observe(
    by_arm: Mapping[str, Mapping[int, T]],
    quantity: str,
    value: Callable[[T], float],
    chance: Callable[[T], float] | None = None,
    *,
    is_share: bool = False,
) -> Iterator[Observed]:
    """Yield a number of what each arm has by seed; ``chance``: what a guess at it comes to."""
    for arm, by_seed in by_arm.items():
        yield Observed(
            quantity=quantity,
            arm=arm,
            by_seed={seed: value(each) for seed, each in by_seed.items()},
            is_share=is_share,
            chance=max(map(chance, by_seed.values()), default=None) if chance else None,
        )


def _model_of(record: RunRecord, *, trained: bool) -> Any:
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
    from layermem_bench.config.hashing import plugin_digest, sources_digest
    from layermem_bench.evals.benchmarks import checkpoint_digest

    words = "-".join(options.words or ()) or "words"
    # A run that is trained again keeps its id, and may have other weights.
    digests = [checkpoint_digest(c) for c in open_checkpoints([r.folder for r in pair])]
    # Nor is it what our code, or a plugin's, finds in them after a change.
    digests += [sources_digest(), plugin_digest() or ""]
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
