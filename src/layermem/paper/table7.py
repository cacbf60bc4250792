"""Table 7: which sources a router needs, by validation perplexity."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, board
from layermem.paper.fig1 import NEEDS, RATES
from layermem.paper.fig4 import RATES as AET_RATES
from layermem.paper.observing import perplexities, right_answers
from layermem.presets import get_preset
from layermem.results.study import Claim, PaperNumber, Scale
from layermem.study.definition import Board, Observed

_PERPLEXITIES = {
    "plain": 16.4611,
    "lime:router=average": 16.4611,
    "lime:router=last:router_window=2": 16.2810,
    "lime:router=last:router_window=4": 16.1675,
    "lime:router=last:router_window=6": 16.1351,
    "lime:router=first:router_window=2": 15.9746,
    "lime:router=first:router_window=4": 15.9586,
    "lime:router=first:router_window=6": 15.9906,
    "lime": 15.9267,
}
_PRESETS: dict[Scale, str] = {"tiny": "tiny-lm", "small": "small-30m", "paper": "paper-150m"}
_PERPLEXITY, _ANSWERS = "validation perplexity", "right answers, 4 operands"
_WINDOWS = (2, 4, 6)


def _arms(layers: int) -> tuple[str, ...]:
    """Return the arms without those that are the full router at this depth.

    The last layer reads ``layers`` sources. "last" counts its own among them; "first" reads the
    layer before and the own beside its window.
    """
    at_most = {"last": layers - 1, "first": layers - 3}
    full = {
        f"lime:router={kind}:router_window={window}"
        for kind, most in at_most.items()
        for window in _WINDOWS
        if window > most
    }
    return tuple(arm for arm in _PERPLEXITIES if arm not in full)


def _boards(scale: Scale) -> tuple[Board, ...]:
    bases = [get_preset(_PRESETS[scale])]
    if scale == "tiny":
        bases.append(get_preset("tiny-aet-4"))
    return tuple(
        board(
            name=base.preset,
            base=base,
            arms=_arms(base.model.num_hidden_layers),
            rates=(AET_RATES if base.task.name else RATES)[scale],
        )
        for base in bases
    )


def _observe(trained: Observing) -> Iterator[Observed]:
    yield from perplexities(trained, _PRESETS[trained.scale], _PERPLEXITY)
    yield from right_answers(trained, "tiny-aet-4", _ANSWERS)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    on_text, *on_answers = ([arm.name for arm in board.arms] for board in _boards(scale))
    full = (
        Claim(quantity=_PERPLEXITY, arm="lime", against=arm, direction="lower")
        for arm in on_text
        if arm != "lime"
    )
    average = Claim(quantity=_PERPLEXITY, arm="lime:router=average", direction="similar")
    answers = (
        Claim(quantity=_ANSWERS, arm="lime", against=arm, direction="higher")
        for arms in on_answers
        for arm in arms
        if arm != "lime"
    )
    return (*full, average, *answers)


ARTEFACT = Artefact(
    title="Constrained routers, validation perplexity, 150M",
    claim="The full learned router has the lowest perplexity (15.9267 against LLaMA's 16.4611); "
    "windows gain less, and a uniform average nothing.",
    boards=_boards,
    observe=_observe,
    numbers=tuple(
        PaperNumber(quantity=_PERPLEXITY, arm=arm, value=value, where="Table 7")
        for arm, value in _PERPLEXITIES.items()
    ),
    claims=_claims,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(
        "The paper says neither width, depth nor tokens of its 150M: the preset's are assumed.",
        "Right answers of 4 operands are not in the paper's table.",
        "A window that reaches every layer is the full router and no arm of its own: the first 6 "
        "of 8 layers, as each also reads the layer before; the first 2 and the last 4 of 4.",
    ),
)
