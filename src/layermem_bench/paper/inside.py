"""What goes on inside trained models: Figures 2, 3, 5, 7, 8 and 9.

An analysis.json of the same weights and options is used again.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layermem_bench.analysis.result import (
    Analysis,
    AnalysisOptions,
    ModelAnalysis,
    Probe,
    Representation,
    to_rows,
)
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.paper.artefact import (
    Artefact,
    Runs,
    board,
    full_attention,
    lime_is,
    lines,
    observe,
    pairs,
    shares,
)
from layermem_bench.presets import get_preset
from layermem_bench.run.folder import RunFolder, recorded_run
from layermem_bench.studies.definition import Board, Observed, Trained
from layermem_bench.studies.result import BY_LAYER, Picture, RunRecord, Scale

logger = logging.getLogger(__name__)
# Occurrences of each word; the standard library has less than 200 of the rarest of the four.
_EACH: Mapping[Scale, int] = {"tiny": 100, "small": 600, "paper": 1668}
# Of numbers; test problems have few of the larger ones.
NUMBERS = {
    "1 to 4": (200, ("1", "2", "3", "4")),
    "100 to 103": (100, ("100", "101", "102", "103")),
}
# Points of a layout that a picture keeps, at most.
_MOST_POINTS = 1000
START = "lime at its start"
"""The arm of routers before training."""
Analyses = Mapping[str, Mapping[int, ModelAnalysis]]
"""Arm and seed to its analysis."""
_TEXT_NOTES = (
    "The paper does not say which of its 1B models is analyzed; that with full attention is taken.",
    "Entropy is of order 0.5 and the probe one epoch of Adam, as in the paper's code.",
)
_LAYOUT_NOTE = (
    "The paper shows pictures. The number is ours: how often the nearest other point of a t-SNE "
    "layout is of the same word."
)
_START_NOTE = (
    "LIMe's routers read earlier layers from the start, by their random initial weights, so what "
    "training adds is the difference from a new model of the same seed."
)
_NAMES: dict[Representation, str] = {"routed": "values", "hidden": "hidden states"}


def analyses(
    trained: Trained, board: Board, each: int, words: tuple[str, ...] | None = None
) -> Analyses:
    """Return the analyses of LIMe and the plain decoder, of every seed that both have.

    As in the paper: its code's entropy of order 0.5. ``each``: occurrences of each word.
    """
    source = board.base.data.source
    text = None if board.base.task.name or source == "stdlib" else source
    options = AnalysisOptions(words=words, each=each, text=text, alpha=0.5)
    # In the order of the command line, whatever the names of the folders.
    of_pairs = {
        seed: tuple(_analysis_of(pair, options, trained.out).models.values())
        for seed, pair in pairs(trained.of(board)).items()
    }
    return {
        arm: {seed: models[place] for seed, models in of_pairs.items()}
        for place, arm in enumerate(("lime", "plain"))
    }


def _analysis_of(pair: Sequence[RunRecord], options: AnalysisOptions, out: Path) -> Analysis:
    """Return the analysis of two runs: that which is there, else a new one."""
    from layermem_bench.analysis.analyze import analyze
    from layermem_bench.config.hashing import plugin_digest, sources_digest
    from layermem_bench.run.setup import weights_digest

    folders = [record.folder for record in pair]
    # A run that is trained again keeps its id, and may have other weights; nor is what our code, or
    # a plugin's, finds in them the same after a change.
    known = [str(weights_digest(str(RunFolder(folder).final))) for folder in folders]
    known += [sources_digest(), plugin_digest() or "", repr(options)]
    digest = hashlib.sha256(" ".join(known).encode()).hexdigest()[:12]
    # Beside the results, so that artefacts share what is of the same runs.
    folder = out.parent / "analyses" / f"{pair[0].run_id}-{pair[1].run_id}-{digest}"
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


def words_in_plane(
    analyses: Analyses, words: tuple[str, ...], quantity: str
) -> Iterator[Observed | Picture]:
    """Yield how often the nearest other point of the last layer's layout is of the same word, and
    where words lie by the values of each layer, of each arm's first model."""

    def share(model: ModelAnalysis) -> float:
        points = np.asarray(model.layout.layers[max(model.layout.layers)], dtype=np.float64)
        labels = np.asarray(model.layout.labels)
        distances = np.square(points[:, None] - points[None]).sum(-1)
        np.fill_diagonal(distances, np.inf)
        return float((labels == labels[distances.argmin(1)]).mean())

    def chance(model: ModelAnalysis) -> float:
        return float(np.bincount(model.layout.labels).max() / len(model.layout.labels))

    yield from observe(analyses, quantity, share, chance, is_share=True)
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


def heatmaps(runs: Runs, *, by_head: bool) -> dict[str, dict[int, np.ndarray]]:
    """Return what LIMe's routers read by arm and seed: trained ones, and those at their start.

    ``by_head``: [L, R, L], divided by each head's sum; else [L, L], averaged over heads first,
    which differs where one head has larger weights.
    """
    from layermem_bench.analysis.routing import head_heatmaps, mean_heatmap

    heatmap_of = head_heatmaps if by_head else mean_heatmap
    return {
        arm: {
            seed: heatmap_of(_model_of(run, trained=arm == "lime"))
            for seed, run in runs.get("lime", {}).items()
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


def _entropy(kind: Representation, where: str = ", mean over layers") -> str:
    return f"entropy of {_NAMES[kind]}{where}"


def _told_apart(kind: Representation, where: str = ", last layer") -> str:
    return f"is, are, was, were told apart in {_NAMES[kind]}{where}"


_LAST_ENTROPY = _entropy("routed", ", last layer")


def _by_layer(scale: Scale, kind: Representation) -> Artefact:
    """Return what Figures 2 and 7 have in common, each of one representation."""
    text = full_attention(scale)
    at = {i: f"{BY_LAYER}{i}" for i in range(text.base.model.num_hidden_layers)}

    def observe_layers(trained: Trained) -> Iterator[Observed]:
        analysed = analyses(trained, text, _EACH[scale])
        yield from entropy(analysed, kind, _entropy(kind))
        if kind == "routed":
            yield from entropy(analysed, kind, _LAST_ENTROPY, layer=-1)
        yield from probes(analysed, kind, "paper", _told_apart(kind))
        yield from probes(analysed, kind, "converged", "the same by a converged probe")
        for layer, where in at.items():
            yield from entropy(analysed, kind, _entropy(kind, where), layer)
            yield from probes(analysed, kind, "paper", _told_apart(kind, where), layer)

    def entropy_at(arm: str, layer: int) -> tuple[str, str]:
        return _entropy(kind, at[layer]), arm

    def told_apart_at(arm: str, layer: int) -> tuple[str, str]:
        # The last layer's is the number that the paper has.
        return _told_apart(kind, at[layer]) if layer + 1 < len(at) else _told_apart(kind), arm

    return Artefact(
        boards=(text,),
        observe=observe_layers,
        drawings=(
            lines(f"entropy of {_NAMES[kind]} (nats)", "layer", at, entropy_at),
            lines(f"accuracy, {_NAMES[kind]}", "layer", at, told_apart_at),
        ),
        notes=_TEXT_NOTES,
    )


def fig2(scale: Scale) -> Artefact:
    """Values: matrix entropy, and is, are, was, were told apart."""
    told_apart = _told_apart("routed")
    return replace(
        _by_layer(scale, "routed"),
        claim="LIMe's values have a higher matrix entropy, and words close to one another can be "
        "told apart in them with nearly 1.0 accuracy in later layers, far better than in LLaMA's.",
        papers=shares('Figure 2, "nearly 1.0"', {(told_apart, "lime"): 1.0}),
        claims=lime_is("higher", _entropy("routed"), _LAST_ENTROPY, told_apart),
    )


def fig7(scale: Scale) -> Artefact:
    """Hidden states: matrix entropy, and is, are, was, were told apart."""
    similar, lower = _entropy("hidden"), _told_apart("hidden")
    return replace(
        _by_layer(scale, "hidden"),
        claim="The entropy of hidden states does not differ significantly, and words are less "
        "separable in LIMe's, which need not store everything.",
        claims=(*lime_is("similar", similar), *lime_is("lower", lower)),
        notes=(*_TEXT_NOTES, "The figure prints no numbers."),
    )


def fig3(scale: Scale) -> Artefact:
    """Layouts of is, are, was, were by their values."""
    text = full_attention(scale)
    nearest = "nearest in the layout of values is the same word, last layer"
    return Artefact(
        claim="In deeper layers LLaMA's values of similar words overlap, and LIMe's form clusters.",
        boards=(text,),
        observe=lambda trained: words_in_plane(
            analyses(trained, text, _EACH[scale]), ("is", "are", "was", "were"), nearest
        ),
        claims=lime_is("higher", nearest),
        notes=(
            *_TEXT_NOTES,
            _LAYOUT_NOTE,
            "Of hidden states (part a) there is no layout: Figure 7 has how separable they are.",
        ),
    )


def fig8(scale: Scale) -> Artefact:
    """Layouts of close numbers by their values, arithmetic of 6 operands."""
    six = board(scale, get_preset(f"{scale}-aet-6"))
    nearest = "nearest in the layout of values is the same number, {}, last layer"
    told_apart = "{} told apart in values by the paper's probe, last layer"

    def observe_layouts(trained: Trained) -> Iterator[Observed | Picture]:
        for numbers, (each, words) in NUMBERS.items():
            analysed = analyses(trained, six, each, words)
            yield from words_in_plane(analysed, words, nearest.format(numbers))
            yield from probes(analysed, "routed", "paper", told_apart.format(numbers))

    return Artefact(
        claim="LIMe separates close numbers, 1 to 4 and 100 to 103, better than LLaMA.",
        boards=(six,),
        observe=observe_layouts,
        claims=lime_is(
            "higher", *(each.format(n) for n in NUMBERS for each in (nearest, told_apart))
        ),
        notes=(_LAYOUT_NOTE, "Which of its arithmetic models the paper shows is not said."),
    )


def fig5(scale: Scale) -> Artefact:
    """What routers read, averaged over heads."""
    text = full_attention(scale)
    first_slot = "share that layers 1 to 3 read from the first slot"
    first_two = "share that the last layer reads from the first two slots"
    quantities: Mapping[str, Callable[[np.ndarray], float]] = {
        # A row without a claim: the paper says that it is far from a plain decoder's 0, as any
        # router's is, and not that training raises it.
        "share read from earlier layers, mean over layers": lambda heatmap: float(
            1 - np.diagonal(heatmap)[1:].mean()
        ),
        first_slot: lambda heatmap: float(heatmap[1:4, 0].mean()),
        first_two: lambda heatmap: float(heatmap[-1, :2].sum()),
    }

    def observe_shares(trained: Trained) -> Iterator[Observed | Picture]:
        # As section 5.4 has it: absolute weights are averaged over heads, then normalised by layer.
        maps = heatmaps(trained.of(text), by_head=False)
        for quantity, share in quantities.items():
            yield from observe(maps, quantity, share, is_share=True)
        for arm, by_seed in maps.items():
            if by_seed:
                mean = np.mean(list(by_seed.values()), axis=0)
                name = f"{arm}, mean over {len(by_seed)} seeds" if len(by_seed) > 1 else arm
                panels = {"all heads": to_rows(mean.round(4))}
                yield Picture(kind="heatmap", name=name, panels=panels)

    return Artefact(
        claim="Routers rely on more than the own layer: early layers read the first slot much, "
        "middle ones their neighbours, and the last ones go back to the first two.",
        boards=(text,),
        observe=observe_shares,
        claims=lime_is("higher", first_slot, first_two, against=START),
        notes=("The figure prints no numbers.", _START_NOTE),
    )


def fig9(scale: Scale) -> Artefact:
    """What each head's router reads."""
    text = full_attention(scale)
    quantity = "spread over heads of the share read from earlier layers"

    def spread(heads: np.ndarray) -> float:
        """Return the standard deviation over heads, the mean over layers from 1 on."""
        return float((1 - np.einsum("lrl->lr", heads)[1:]).std(1).mean())

    def observe_heads(trained: Trained) -> Iterator[Observed | Picture]:
        maps = heatmaps(trained.of(text), by_head=True)
        yield from observe(maps, quantity, spread, is_share=True)
        for arm, by_seed in maps.items():
            # Heads of different seeds have nothing to do with each other.
            for seed, heads in list(by_seed.items())[:1]:
                panels = {f"layer {i}": to_rows(heads[i].round(4)) for i in range(1, len(heads))}
                yield Picture(kind="heads", name=f"{arm}, seed {seed}", panels=panels)

    return Artefact(
        claim="Heads of a layer read different layers, so that routing is learned for each head.",
        boards=(text,),
        observe=observe_heads,
        claims=lime_is("higher", quantity, against=START),
        notes=("The figure prints no numbers; the one here is ours.", _START_NOTE),
    )


ARTEFACTS = (fig2, fig3, fig5, fig7, fig8, fig9)
