"""Figure 1: loss per FLOP with grouped-query attention, and the runs that share it."""

from collections.abc import Iterator
from dataclasses import replace

from layermem.config import Run
from layermem.paper.artefact import FINEWEB, Artefact, Observing, board
from layermem.paper.observing import lower_perplexity, perplexities, saved
from layermem.presets import get_preset
from layermem.results.study import Claim, Drawing, PaperNumber, Scale
from layermem.study.definition import Board, Observed

RATES: dict[Scale, tuple[float, ...]] = {
    "tiny": (1e-3, 3e-3, 1e-2, 3e-2),
    "small": (3e-4, 1e-3, 3e-3),
    "paper": (),
}
"""Learning rates that are tried on text; the paper has one."""
NEEDS: dict[Scale, str] = {"small": FINEWEB, "paper": f"{FINEWEB}; weeks of many GPUs"}
"""What runs on text need."""
TRAINING_LOSS = (
    "The paper draws training loss; here it is validation loss, at the same steps of both arms."
)
"""A note of all figures of loss."""
PERPLEXITY, LOWER = "perplexity", "perplexity below plain"
SAVED = "FLOPs saved on the way to the higher last loss"


def grouped_queries(scale: Scale, arms: tuple[str, ...] = ("plain", "lime")) -> Board:
    """Return the runs on text with grouped-query attention; the paper's 1B has 8 heads of 32."""
    if scale == "paper":
        return board(name="paper-1b-gqa", base=get_preset("paper-1b-gqa"), arms=arms)
    base = get_preset("tiny-lm" if scale == "tiny" else "small-30m")
    grouped = _with_kv_heads(base, 2)
    return board(name=f"{base.preset}-gqa", base=grouped, arms=arms, rates=RATES[scale])


def _with_kv_heads(run: Run, heads: int) -> Run:
    return replace(run, model=replace(run.model, num_key_value_heads=heads))


def _boards(scale: Scale) -> tuple[Board, ...]:
    return (grouped_queries(scale),)


def _observe(trained: Observing) -> Iterator[Observed]:
    study = grouped_queries(trained.scale).name
    yield from perplexities(trained, study, PERPLEXITY)
    yield from lower_perplexity(trained, study, "lime", LOWER)
    yield from saved(trained, study, "lime", "flops", SAVED)


def claims(scale: Scale) -> tuple[Claim, ...]:
    """Return the claims of lower perplexity and of fewer FLOPs to a loss."""
    return (
        Claim(quantity=PERPLEXITY, arm="lime", direction="lower"),
        Claim(quantity=SAVED, arm="lime", direction="higher"),
    )


ARTEFACT = Artefact(
    title="Loss per training FLOP, grouped-query attention",
    claim="LIMe has a lower loss than LLaMA at a similar amount of FLOPs: it converges 8.9% faster "
    "in FLOPs and ends at a 0.91% lower perplexity (1B, grouped-query attention).",
    boards=_boards,
    observe=_observe,
    numbers=(
        PaperNumber(
            quantity=SAVED, arm="lime", value=0.089, where="section 1, with GQA", is_share=True
        ),
        PaperNumber(
            quantity=LOWER, arm="lime", value=0.0091, where="section 1, with GQA", is_share=True
        ),
    ),
    claims=claims,
    drawings=lambda scale: (Drawing(kind="curves", across="flops", up="validation loss"),),
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(
        TRAINING_LOSS,
        "The paper prints no perplexities here, only that LIMe's is 0.91% lower.",
        "FLOPs are counted in closed form, three forwards a step, attention to all keys.",
    ),
)
