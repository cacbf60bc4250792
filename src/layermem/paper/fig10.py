"""Figure 10: loss per token with grouped-query attention; the runs are Figure 1's."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, beside_plain
from layermem.paper.fig1 import NEEDS, TRAINING_LOSS, grouped_queries
from layermem.paper.observing import losses, saved
from layermem.results.study import Claim, Drawing, Scale
from layermem.study.definition import Board, Observed

_SAVED = "tokens saved on the way to the higher last loss"


def _boards(scale: Scale) -> tuple[Board, ...]:
    return (grouped_queries(scale),)


def _observe(trained: Observing) -> Iterator[Observed]:
    study = grouped_queries(trained.scale).name
    yield from losses(trained, study)
    yield from saved(trained, study, "lime", "tokens", _SAVED)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return (
        *beside_plain("validation loss", ("lime",), "lower"),
        *beside_plain(_SAVED, ("lime",), "higher"),
    )


ARTEFACT = Artefact(
    title="Loss per token, grouped-query attention",
    claim="LIMe with grouped-query attention is more data efficient than LLaMA.",
    boards=_boards,
    observe=_observe,
    claims=_claims,
    drawings=lambda scale: (Drawing(kind="curves", across="tokens", up="validation loss"),),
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(TRAINING_LOSS, "The figure prints no numbers."),
)
