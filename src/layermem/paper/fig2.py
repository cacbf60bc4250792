"""Figure 2: entropy and separability of values, and the analyses that Figures 3 and 7 share."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, beside_plain
from layermem.paper.fig1 import NEEDS
from layermem.paper.fig11 import full_attention
from layermem.paper.inspecting import (
    Analyses,
    analyses,
    entropy,
    options_at,
    probes,
)
from layermem.results.study import Claim, PaperNumber, Scale
from layermem.study.definition import Board, Observed

NOTES = (
    "The paper does not say which of its 1B models is analyzed; that with full attention is taken.",
    "Entropy is of order 0.5 and the probe one epoch of Adam, as in the paper's code.",
)
"""Notes of all figures of representations on text."""
_ENTROPY, _LAST_ENTROPY = "entropy of values, mean over layers", "entropy of values, last layer"
_PROBE = "is, are, was, were told apart in values, last layer"
_CONVERGED = "the same by a converged probe"


def boards(scale: Scale) -> tuple[Board, ...]:
    """Return the runs whose representations are analyzed."""
    return (full_attention(scale),)


def text_analyses(trained: Observing) -> Analyses:
    """Return the analyses of the runs on text."""
    study = full_attention(trained.scale)
    source = study.base.data.source
    text = None if source == "stdlib" else source
    return analyses(trained, study.name, options_at(trained.scale, text=text))


def _observe(trained: Observing) -> Iterator[Observed]:
    found = text_analyses(trained)
    yield from entropy(found, "routed", _ENTROPY)
    yield from entropy(found, "routed", _LAST_ENTROPY, layer=-1)
    yield from probes(found, "routed", "paper", _PROBE, layer=-1)
    yield from probes(found, "routed", "converged", _CONVERGED, layer=-1)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    quantities = (_ENTROPY, _LAST_ENTROPY, _PROBE)
    return tuple(
        claim for quantity in quantities for claim in beside_plain(quantity, ("lime",), "higher")
    )


ARTEFACT = Artefact(
    title="Values: matrix entropy, and is, are, was, were told apart",
    claim="LIMe's values have a higher matrix entropy, and words close to one another can be told "
    "apart in them with nearly 1.0 accuracy in later layers, far better than in LLaMA's.",
    boards=boards,
    observe=_observe,
    numbers=(
        PaperNumber(
            quantity=_PROBE, arm="lime", value=1.0, where='Figure 2, "nearly 1.0"', is_share=True
        ),
    ),
    claims=_claims,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=NOTES,
)
