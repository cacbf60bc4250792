"""Figure 8: layouts of close numbers by their values; the runs are Figure 4's of 6 operands."""

from collections.abc import Iterator

from layermem.paper.artefact import Artefact, Observing, beside_plain
from layermem.paper.fig3 import LAYOUT_NOTE
from layermem.paper.fig4 import ARTEFACT as FIG4
from layermem.paper.fig4 import arithmetic
from layermem.paper.inspecting import (
    analyses,
    nearest_in_layout,
    options_at,
    probes,
)
from layermem.results.study import Claim, Scale
from layermem.study.definition import Board, Observed

# Numbers of each part of the figure, and how many occurrences of each are looked at: test problems
# have few of the larger ones.
_NUMBERS = {
    "1 to 4": (("1", "2", "3", "4"), 200),
    "100 to 103": (("100", "101", "102", "103"), 100),
}


def _nearest(numbers: str) -> str:
    return f"nearest in the layout of values is the same number, {numbers}, last layer"


def _told_apart(numbers: str) -> str:
    return f"{numbers} told apart in values by the paper's probe, last layer"


def _boards(scale: Scale) -> tuple[Board, ...]:
    return (arithmetic(scale, 6),)


def _observe(trained: Observing) -> Iterator[Observed]:
    study = arithmetic(trained.scale, 6).name
    for numbers, (words, each) in _NUMBERS.items():
        found = analyses(trained, study, options_at(trained.scale, words, each))
        yield from nearest_in_layout(found, _nearest(numbers))
        yield from probes(found, "routed", "paper", _told_apart(numbers), layer=-1)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return tuple(
        claim
        for numbers in _NUMBERS
        for quantity in (_nearest(numbers), _told_apart(numbers))
        for claim in beside_plain(quantity, ("lime",), "higher")
    )


ARTEFACT = Artefact(
    title="Layouts of close numbers by their values, arithmetic of 6 operands",
    claim="LIMe separates close numbers, 1 to 4 and 100 to 103, better than LLaMA.",
    boards=_boards,
    observe=_observe,
    claims=_claims,
    needs=FIG4.needs,
    notes=(LAYOUT_NOTE, "Which of its arithmetic models the paper shows is not said."),
)
