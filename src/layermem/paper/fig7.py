"""Figure 7: entropy and separability of hidden states; runs and analyses are Figure 2's."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing
from layermem.paper.fig1 import NEEDS
from layermem.paper.fig2 import NOTES, boards, text_analyses
from layermem.paper.inspecting import entropy, probes
from layermem.results.study import Claim, Scale
from layermem.study.definition import Observed

_ENTROPY = "entropy of hidden states, mean over layers"
_PROBE = "is, are, was, were told apart in hidden states, last layer"
_CONVERGED = "the same by a converged probe"


def _observe(trained: Observing) -> Iterator[Observed]:
    found = text_analyses(trained)
    yield from entropy(found, "hidden", _ENTROPY)
    yield from probes(found, "hidden", "paper", _PROBE, layer=-1)
    yield from probes(found, "hidden", "converged", _CONVERGED, layer=-1)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return (
        Claim(quantity=_ENTROPY, arm="lime", direction="similar"),
        Claim(quantity=_PROBE, arm="lime", direction="lower"),
    )


ARTEFACT = Artefact(
    title="Hidden states: matrix entropy, and is, are, was, were told apart",
    claim="The entropy of hidden states does not differ significantly, and words are less "
    "separable in LIMe's, which need not store everything.",
    boards=boards,
    observe=_observe,
    claims=_claims,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(*NOTES, "The figure prints no numbers."),
)
