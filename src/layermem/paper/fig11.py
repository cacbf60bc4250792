"""Figure 11: loss per FLOP and per token with full attention, and the runs that share it."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, beside_plain, board
from layermem.paper.fig1 import (
    LOWER,
    NEEDS,
    PERPLEXITY,
    RATES,
    SAVED,
    TRAINING_LOSS,
)
from layermem.paper.observing import lower_perplexity, perplexities, saved
from layermem.presets import get_preset
from layermem.results.study import Claim, Drawing, PaperNumber, Scale
from layermem.study.definition import Board, Observed

_PRESETS: dict[Scale, str] = {"tiny": "tiny-lm", "small": "small-30m", "paper": "paper-1b-full"}
_SAVED_TOKENS = "tokens saved on the way to the higher last loss"


def full_attention(scale: Scale, arms: tuple[str, ...] = ("plain", "lime")) -> Board:
    """Return the runs on text with a key-value head for every query head."""
    base = get_preset(_PRESETS[scale])
    return board(name=base.preset, base=base, arms=arms, rates=RATES[scale])


def _boards(scale: Scale) -> tuple[Board, ...]:
    return (full_attention(scale),)


def _observe(trained: Observing) -> Iterator[Observed]:
    study = full_attention(trained.scale).name
    yield from perplexities(trained, study, PERPLEXITY)
    yield from lower_perplexity(trained, study, "lime", LOWER)
    yield from saved(trained, study, "lime", "flops", SAVED)
    yield from saved(trained, study, "lime", "tokens", _SAVED_TOKENS)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return (
        *beside_plain(PERPLEXITY, ("lime",), "lower"),
        *beside_plain(SAVED, ("lime",), "higher"),
        *beside_plain(_SAVED_TOKENS, ("lime",), "higher"),
    )


ARTEFACT = Artefact(
    title="Loss per training FLOP and per token, full attention",
    claim="Without grouped queries LIMe converges 15.3% faster in FLOPs, is more data efficient "
    "and ends at a 1.15% lower perplexity (1B).",
    boards=_boards,
    observe=_observe,
    numbers=(
        PaperNumber(quantity=SAVED, arm="lime", value=0.153, where="section 1", is_share=True),
        PaperNumber(quantity=LOWER, arm="lime", value=0.0115, where="section 1", is_share=True),
    ),
    claims=_claims,
    drawings=lambda scale: (
        Drawing(kind="curves", across="flops", up="validation loss"),
        Drawing(kind="curves", across="tokens", up="validation loss"),
    ),
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(
        TRAINING_LOSS,
        "The paper prints no perplexities here, only that LIMe's is 1.15% lower.",
    ),
)
