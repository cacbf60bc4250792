"""What goes on inside trained models: Figures 2, 3, 5, 7, 8 and 9."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from layermem_bench.analysis.result import Representation, to_rows
from layermem_bench.paper.artefact import (
    Artefact,
    Observing,
    claims_of_lime,
    lines,
    on_text,
    shares,
)
from layermem_bench.paper.inspecting import (
    START,
    Analyses,
    analyses,
    entropy,
    heatmaps,
    layouts,
    nearest_in_layout,
    observe,
    probes,
)
from layermem_bench.paper.trained import arithmetic, full_attention
from layermem_bench.studies.definition import Observed
from layermem_bench.studies.result import BY_LAYER, Drawing, Picture, Scale

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


def _text_analyses(trained: Observing) -> Analyses:
    """Return the analyses of the runs on text."""
    board = full_attention(trained.scale)
    source = board.base.data.source
    return analyses(trained, board, text=None if source == "stdlib" else source)


# Figures 2 (values) and 7 (hidden states).
_LAST, _MEAN = ", last layer", ", mean over layers"


def _entropy(kind: Representation, where: str) -> str:
    return f"entropy of {_NAMES[kind]}{where}"


def _told_apart(kind: Representation, where: str = _LAST) -> str:
    return f"is, are, was, were told apart in {_NAMES[kind]}{where}"


def _observe_text(trained: Observing, kind: Representation) -> Iterator[Observed]:
    analysed = _text_analyses(trained)
    yield from entropy(analysed, kind, _entropy(kind, _MEAN))
    if kind == "routed":
        yield from entropy(analysed, kind, _entropy(kind, _LAST), layer=-1)
    yield from probes(analysed, kind, "paper", _told_apart(kind))
    yield from probes(analysed, kind, "converged", "the same by a converged probe")
    for layer in _layers(trained.scale):
        at = f"{BY_LAYER}{layer}"
        yield from entropy(analysed, kind, _entropy(kind, at), layer)
        yield from probes(analysed, kind, "paper", _told_apart(kind, at), layer)


def _draw_text(scale: Scale, kind: Representation) -> tuple[Drawing, ...]:
    layers = _layers(scale)

    def entropy_of(arm: str, layer: int) -> tuple[str, str]:
        return _entropy(kind, f"{BY_LAYER}{layer}"), arm

    def accuracy_of(arm: str, layer: int) -> tuple[str, str]:
        # The last layer's is the number that the paper has.
        return _told_apart(kind, _LAST if layer == layers[-1] else f"{BY_LAYER}{layer}"), arm

    return (
        lines(f"entropy of {_NAMES[kind]} (nats)", "layer", layers, entropy_of),
        lines(f"accuracy, {_NAMES[kind]}", "layer", layers, accuracy_of),
    )


def _layers(scale: Scale) -> range:
    return range(full_attention(scale).base.model.num_hidden_layers)


# Figure 3.
_NEAREST_WORD = "nearest in the layout of values is the same word, last layer"


def _fig3(trained: Observing) -> Iterator[Observed | Picture]:
    analysed = _text_analyses(trained)
    yield from nearest_in_layout(analysed, _NEAREST_WORD)
    yield from layouts(analysed, ("is", "are", "was", "were"))


# Figure 8. Test problems have few of the larger numbers.
_NUMBERS = {
    "1 to 4": (("1", "2", "3", "4"), 200),
    "100 to 103": (("100", "101", "102", "103"), 100),
}


def _nearest_number(numbers: str) -> str:
    return f"nearest in the layout of values is the same number, {numbers}, last layer"


def _numbers_told_apart(numbers: str) -> str:
    return f"{numbers} told apart in values by the paper's probe, last layer"


def _fig8(trained: Observing) -> Iterator[Observed | Picture]:
    for numbers, (words, each) in _NUMBERS.items():
        analysed = analyses(trained, arithmetic(trained.scale, 6), words, each)
        yield from nearest_in_layout(analysed, _nearest_number(numbers))
        yield from probes(analysed, "routed", "paper", _numbers_told_apart(numbers))
        yield from layouts(analysed, words)


# Figures 5 (averaged over heads) and 9 (by head).
_FIRST_SLOT = "share that layers 1 to 3 read from the first slot"
_FIRST_TWO = "share that the last layer reads from the first two slots"
_SPREAD = "spread over heads of the share read from earlier layers"
_SHARES: Mapping[str, Callable[[np.ndarray], float]] = {
    # A row without a claim: the paper says that it is far from a plain decoder's 0, as any
    # router's is, and not that training raises it.
    "share read from earlier layers, mean over layers": lambda heatmap: float(
        1 - np.diagonal(heatmap)[1:].mean()
    ),
    _FIRST_SLOT: lambda heatmap: float(heatmap[1:4, 0].mean()),
    _FIRST_TWO: lambda heatmap: float(heatmap[-1, :2].sum()),
}


def _fig5(trained: Observing) -> Iterator[Observed | Picture]:
    # As section 5.4 has it: absolute weights are averaged over heads, then normalised by layer.
    maps = heatmaps(trained, full_attention(trained.scale), by_head=False)
    for quantity, share in _SHARES.items():
        yield from observe(maps, quantity, share, is_share=True)
    for arm, by_seed in maps.items():
        if by_seed:
            mean = np.mean(list(by_seed.values()), axis=0)
            name = f"{arm}, mean over {len(by_seed)} seeds" if len(by_seed) > 1 else arm
            panels = {"all heads": to_rows(mean.round(4))}
            yield Picture(kind="heatmap", name=name, panels=panels)


def _fig9(trained: Observing) -> Iterator[Observed | Picture]:
    maps = heatmaps(trained, full_attention(trained.scale), by_head=True)
    yield from observe(maps, _SPREAD, _spread, is_share=True)
    for arm, by_seed in maps.items():
        # Heads of different seeds have nothing to do with each other.
        for seed, heads in list(by_seed.items())[:1]:
            panels = {f"layer {i}": to_rows(heads[i].round(4)) for i in range(1, len(heads))}
            yield Picture(kind="heads", name=f"{arm}, seed {seed}", panels=panels)


def _spread(heads: np.ndarray) -> float:
    """Return the standard deviation over heads, the mean over layers from 1 on."""
    own = np.stack([heads[layer, :, layer] for layer in range(1, len(heads))])
    return float((1 - own).std(1).mean())


_on_text = partial(on_text, boards=lambda scale: (full_attention(scale),))
ARTEFACTS = {
    "fig2": _on_text(
        title="Values: matrix entropy, and is, are, was, were told apart",
        claim="LIMe's values have a higher matrix entropy, and words close to one another can be "
        "told apart in them with nearly 1.0 accuracy in later layers, far better than in LLaMA's.",
        observe=lambda trained: _observe_text(trained, "routed"),
        numbers=shares('Figure 2, "nearly 1.0"', {(_told_apart("routed"), "lime"): 1.0}),
        claims=lambda scale: claims_of_lime(
            higher=[_entropy("routed", _MEAN), _entropy("routed", _LAST), _told_apart("routed")]
        ),
        drawings=lambda scale: _draw_text(scale, "routed"),
        notes=_TEXT_NOTES,
    ),
    "fig3": _on_text(
        title="Layouts of is, are, was, were by their values",
        claim="In deeper layers LLaMA's values of similar words overlap, and LIMe's form clusters.",
        observe=_fig3,
        claims=lambda scale: claims_of_lime(higher=[_NEAREST_WORD]),
        notes=(
            *_TEXT_NOTES,
            _LAYOUT_NOTE,
            "Of hidden states (part a) there is no layout: Figure 7 has how separable they are.",
        ),
    ),
    "fig5": _on_text(
        title="What routers read, averaged over heads",
        claim="Routers rely on more than the own layer: early layers read the first slot much, "
        "middle ones their neighbours, and the last ones go back to the first two.",
        observe=_fig5,
        claims=lambda scale: claims_of_lime(higher=[_FIRST_SLOT, _FIRST_TWO], against=START),
        notes=("The figure prints no numbers.", _START_NOTE),
    ),
    "fig7": _on_text(
        title="Hidden states: matrix entropy, and is, are, was, were told apart",
        claim="The entropy of hidden states does not differ significantly, and words are less "
        "separable in LIMe's, which need not store everything.",
        observe=lambda trained: _observe_text(trained, "hidden"),
        claims=lambda scale: claims_of_lime(
            similar=[_entropy("hidden", _MEAN)], lower=[_told_apart("hidden")]
        ),
        drawings=lambda scale: _draw_text(scale, "hidden"),
        notes=(*_TEXT_NOTES, "The figure prints no numbers."),
    ),
    "fig8": Artefact(
        title="Layouts of close numbers by their values, arithmetic of 6 operands",
        claim="LIMe separates close numbers, 1 to 4 and 100 to 103, better than LLaMA.",
        boards=lambda scale: (arithmetic(scale, 6),),
        observe=_fig8,
        claims=lambda scale: claims_of_lime(
            higher=(f(n) for n in _NUMBERS for f in (_nearest_number, _numbers_told_apart))
        ),
        notes=(_LAYOUT_NOTE, "Which of its arithmetic models the paper shows is not said."),
    ),
    "fig9": _on_text(
        title="What each head's router reads",
        claim="Heads of a layer read different layers, so that routing is learned for each head.",
        observe=_fig9,
        claims=lambda scale: claims_of_lime(higher=[_SPREAD], against=START),
        notes=("The figure prints no numbers; the one here is ours.", _START_NOTE),
    ),
}
