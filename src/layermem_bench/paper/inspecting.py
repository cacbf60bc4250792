"""Numbers of ended runs, and of analyses of them: losses, right answers, entropy, probes, routers.

An analysis.json of the same weights and options is used again.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from layermem_bench.analysis.result import (
    Analysis,
    AnalysisOptions,
    Layout,
    ModelAnalysis,
    Probe,
    Representation,
)
from layermem_bench.config.result_files import read_result
from layermem_bench.paper.artefact import Observing
from layermem_bench.run.folder import RunFolder, recorded_run
from layermem_bench.studies.definition import Board, Observed
from layermem_bench.studies.result import LOSS, RIGHT_ANSWERS, Picture, RunRecord, Scale, Validation

T = TypeVar("T")
logger = logging.getLogger(__name__)
# The standard library has less than 200 of the rarest of the four words.
_EACH: Mapping[Scale, int] = {"tiny": 100, "small": 600, "paper": 1668}
# Points of a layout that a picture keeps, at most.
_MOST_POINTS = 1000
START = "lime at its start"
"""The arm of routers before training."""
Analyses = Mapping[str, Mapping[int, ModelAnalysis]]
"""Arm and seed to its analysis."""


def observe(
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


def losses(trained: Observing, board: Board, quantity: str = LOSS) -> Iterator[Observed]:
    """Yield the last validation loss of each arm."""
    return observe(trained.of(board), quantity, lambda run: run.metrics[LOSS])


def perplexities(trained: Observing, board: Board, quantity: str) -> Iterator[Observed]:
    """Yield the exponential of the last validation loss of each arm."""
    return observe(trained.of(board), quantity, lambda run: math.exp(run.metrics[LOSS]))


def right_answers(trained: Observing, board: Board, quantity: str) -> Iterator[Observed]:
    """Yield the share of test problems that each arm solves, with a guess's."""

    def chance(run: RunRecord) -> float:
        return (run.solved and run.solved.chance) or 0.0

    share = RIGHT_ANSWERS
    return observe(trained.of(board), quantity, lambda r: r.metrics[share], chance, is_share=True)


def lower_perplexity(trained: Observing, board: Board, quantity: str) -> Iterator[Observed]:
    """Yield by which share LIMe's last perplexity is below the plain decoder's."""

    def share(pair: Sequence[RunRecord]) -> float:
        ours, theirs = (run.metrics[LOSS] for run in pair)
        return 1 - math.exp(ours - theirs)

    return observe({"lime": _pairs(trained, board)}, quantity, share, is_share=True)


def saved(trained: Observing, board: Board, across: str, quantity: str) -> Iterator[Observed]:
    """Yield which share of tokens or FLOPs LIMe saves on the way to a validation loss.

    The loss is the higher one of its and the plain decoder's last, seed by seed, so that both reach
    it, whichever is better. ``across``: "flops" or "tokens". The share is below 0 where it needs
    more than the plain decoder, which saves nothing against itself.
    """

    def share(pair: Sequence[RunRecord]) -> float:
        # How often a run is validated makes it no other run, but it makes its curve another.
        steps = {tuple(each.step for each in record.validations) for record in pair}
        if len(steps) > 1 or len(min(steps)) < 2:
            raise ValueError(
                f"{' and '.join(record.folder for record in pair)} need validations at the same "
                "steps, two or more of them: train these runs in another --out with one "
                "--eval-every"
            )
        target = max(record.validations[-1].val_loss for record in pair)
        ours, theirs = (_reached(record.validations, across, target) for record in pair)
        return 1 - ours / theirs

    pairs = _pairs(trained, board)
    yield from observe({"lime": pairs}, quantity, share, is_share=True)
    yield from observe({"plain": pairs}, quantity, lambda pair: 0.0, is_share=True)


def _pairs(trained: Observing, board: Board) -> dict[int, tuple[RunRecord, RunRecord]]:
    """Return LIMe's run and the plain decoder's by seed, of the seeds that both have."""
    lime, plain = (trained.of(board).get(arm, {}) for arm in ("lime", "plain"))
    return {seed: (run, plain[seed]) for seed, run in lime.items() if seed in plain}


def _reached(curve: Sequence[Validation], across: str, target: float) -> float:
    """Return the tokens or FLOPs at which a curve is first at a loss, or interpolated, below it."""
    points = [(float(getattr(each, across)), each.val_loss) for each in curve]
    first = next(i for i, (_, loss) in enumerate(points) if loss <= target)
    (at_before, loss_before), (at, loss) = points[max(first - 1, 0)], points[first]
    if first == 0:
        return at
    return at_before + (loss_before - target) / (loss_before - loss) * (at - at_before)


def analyses(
    trained: Observing,
    board: Board,
    words: tuple[str, ...] | None = None,
    each: int | None = None,
    text: str | None = None,
) -> Analyses:
    """Return the analyses of LIMe and the plain decoder, of every seed that both have.

    As in the paper: ``each`` word 1,668 times at its scale, its code's entropy of order 0.5.
    """
    each = each or _EACH[trained.scale]
    options = AnalysisOptions(words=words, each=each, text=text, alpha=0.5)
    # In the order of the command line, whatever the names of the folders.
    of_pairs = {
        seed: tuple(_analysis_of(pair, options, trained).models.values())
        for seed, pair in _pairs(trained, board).items()
    }
    return {
        arm: {seed: models[place] for seed, models in of_pairs.items()}
        for place, arm in enumerate(("lime", "plain"))
    }


def _analysis_of(
    pair: Sequence[RunRecord], options: AnalysisOptions, trained: Observing
) -> Analysis:
    """Return the analysis of two runs: that which is there, else a new one."""
    from layermem_bench.analysis.analyze import analyze
    from layermem_bench.config.hashing import plugin_digest, sources_digest
    from layermem_bench.run.folder import RunFolder
    from layermem_bench.run.sequences import weights_digest

    folders = [record.folder for record in pair]
    # A run that is trained again keeps its id, and may have other weights; nor is what our code, or
    # a plugin's, finds in them the same after a change.
    known = [str(weights_digest(str(RunFolder(folder).final))) for folder in folders]
    known += [sources_digest(), plugin_digest() or "", repr(options)]
    digest = hashlib.sha256(" ".join(known).encode()).hexdigest()[:12]
    # Beside the results, so that artefacts share what is of the same runs.
    folder = trained.out.parent / "analyses" / f"{pair[0].run_id}-{pair[1].run_id}-{digest}"
    if (folder / "analysis.json").exists():
        return read_result(Analysis, folder)
    logger.info("analyzing %s against %s", *folders)
    command = f"layermem analyze {folders[0]} --against {folders[1]}"
    return analyze(folders, options, folder, command)


def entropy(
    analyses: Analyses, kind: Representation, quantity: str, layer: int | None = None
) -> Iterator[Observed]:
    """Yield the matrix entropy of a layer, or its mean over layers."""
    at = slice(None) if layer is None else layer
    return observe(analyses, quantity, lambda a: float(np.mean(a.entropy[kind].mean[at])))


def probes(
    analyses: Analyses, kind: Representation, probe: Probe, quantity: str, layer: int = -1
) -> Iterator[Observed]:
    """Yield a probe's accuracy at a layer."""
    return observe(
        analyses,
        quantity,
        lambda model: model.separability[probe][kind].mean[layer],
        lambda model: model.separability[probe][kind].chance,
        is_share=True,
    )


def nearest_in_layout(analyses: Analyses, quantity: str) -> Iterator[Observed]:
    """Yield how often the nearest other point of the last layer's layout is of the same word."""

    def chance(model: ModelAnalysis) -> float:
        return float(np.bincount(model.layout.labels).max() / len(model.layout.labels))

    def share(model: ModelAnalysis) -> float:
        return same_as_nearest(model.layout)

    return observe(analyses, quantity, share, chance, is_share=True)


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


def heatmaps(
    trained: Observing, board: Board, *, by_head: bool
) -> dict[str, dict[int, np.ndarray]]:
    """Return what LIMe's routers read by arm and seed: trained ones, and those at their start.

    ``by_head``: [L, R, L], divided by each head's sum; else [L, L], averaged over heads first,
    which differs where one head has larger weights.
    """
    from layermem_bench.analysis.routing import head_heatmaps, mean_heatmap

    heatmap_of = head_heatmaps if by_head else mean_heatmap
    return {
        arm: {
            seed: heatmap_of(_model_of(run, trained=arm == "lime"))
            for seed, run in trained.of(board).get("lime", {}).items()
        }
        for arm in ("lime", START)
    }


def _model_of(record: RunRecord, *, trained: bool) -> Any:
    """Return a run's final model, or a new model of its seed."""
    from transformers import set_seed

    from layermem_bench.run.setup import build_model
    from layermem_bench.run.trained_models import load_model, open_checkpoints

    (checkpoint,) = open_checkpoints([record.folder])
    if trained:
        return load_model(checkpoint)
    # As training builds it: a field that is left out, such as the vocabulary's size, would draw
    # other random numbers, and the routers would be of another start than the run's.
    set_seed(record.seed)
    return build_model(recorded_run(RunFolder(record.folder)), checkpoint.tokenizer)
