"""Table 7: which sources a router needs, by validation perplexity.

It does not know: how runs are trained, how claims are judged.
"""

from collections.abc import Iterator

from layermem.experiments.artefacts.fig1 import NEEDS, RATES
from layermem.experiments.artefacts.fig4 import RATES as AET_RATES
from layermem.experiments.presets import get_preset
from layermem.experiments.reproduction.artefact import (
    Artefact,
    Claim,
    Observed,
    PaperNumber,
    Study,
    Trained,
)
from layermem.experiments.reproduction.observing import perplexities, right_answers
from layermem.results.artefact import Scale

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
# At 4 layers a window of 4 or 6 is the full router.
_ARMS_AT_4_LAYERS = (
    "plain",
    "lime:router=average",
    "lime:router=last:router_window=2",
    "lime:router=first:router_window=2",
    "lime",
)


def _studies(scale: Scale) -> tuple[Study, ...]:
    text = get_preset(_PRESETS[scale])
    on_text = Study(name=text.preset, base=text, arms=tuple(_PERPLEXITIES), rates=RATES[scale])
    if scale != "tiny":
        return (on_text,)
    aet = get_preset("tiny-aet-4")
    arms = _ARMS_AT_4_LAYERS
    return on_text, Study(name=aet.preset, base=aet, arms=arms, rates=AET_RATES[scale])


def _observe(trained: Trained) -> Iterator[Observed]:
    yield from perplexities(trained, _PRESETS[trained.scale], _PERPLEXITY)
    yield from right_answers(trained, "tiny-aet-4", _ANSWERS)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    full = (
        Claim(quantity=_PERPLEXITY, arm="lime", against=arm, direction="lower")
        for arm in _PERPLEXITIES
        if arm != "lime"
    )
    average = Claim(quantity=_PERPLEXITY, arm="lime:router=average", direction="similar")
    if scale != "tiny":
        return (*full, average)
    answers = (
        Claim(quantity=_ANSWERS, arm="lime", against=arm, direction="higher")
        for arm in _ARMS_AT_4_LAYERS
        if arm != "lime"
    )
    return (*full, average, *answers)


ARTEFACT = Artefact(
    title="Constrained routers, validation perplexity, 150M",
    claim="The full learned router has the lowest perplexity (15.9267 against LLaMA's 16.4611); "
    "windows gain less, and a uniform average nothing.",
    studies=_studies,
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
    ),
)
