"""Figure 3: layouts of similar words by their values; runs and analyses are Figure 2's."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, beside_plain
from layermem.paper.fig1 import NEEDS
from layermem.paper.fig2 import NOTES, boards, text_analyses
from layermem.paper.inspecting import nearest_in_layout
from layermem.results.study import Claim, Scale
from layermem.study.definition import Observed

LAYOUT_NOTE = (
    "The paper shows pictures. The number is ours: how often the nearest other point of a t-SNE "
    "layout is of the same word."
)
"""A note of all figures of layouts."""
_NEAREST = "nearest in the layout of values is the same word, last layer"


def _observe(trained: Observing) -> Iterator[Observed]:
    yield from nearest_in_layout(text_analyses(trained), _NEAREST)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return beside_plain(_NEAREST, ("lime",), "higher")


ARTEFACT = Artefact(
    title="Layouts of is, are, was, were by their values",
    claim="In deeper layers LLaMA's values of similar words overlap, and LIMe's form clusters.",
    boards=boards,
    observe=_observe,
    claims=_claims,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=(
        *NOTES,
        LAYOUT_NOTE,
        "Of hidden states (part a) there is no layout: Figure 7 has how separable they are.",
    ),
)
