"""Figure 5: what routers read, averaged over heads; the runs are Figure 2's."""

from collections.abc import Iterator

import numpy as np

from layermem.paper.artefact import Artefact, Observing
from layermem.paper.fig1 import NEEDS
from layermem.paper.fig2 import boards
from layermem.paper.fig11 import full_attention
from layermem.paper.inspecting import router_shares
from layermem.results.study import Claim, Scale
from layermem.study.definition import Observed

START = "lime at its start"
"""The arm of routers before training."""
START_NOTE = (
    "LIMe's routers read earlier layers from the start, by their random initial weights, so what "
    "training adds is the difference from a new model of the same seed."
)
"""A note of both figures of routers."""
_EARLIER = "share read from earlier layers, mean over layers"
"""A row without a claim: the paper says that it is far from a plain decoder's 0, as any router's
is, and not that training raises it."""
_FIRST_SLOT = "share that layers 1 to 3 read from the first slot"
_FIRST_TWO = "share that the last layer reads from the first two slots"


def _earlier(heatmap: np.ndarray) -> float:
    return float(1 - np.diagonal(heatmap)[1:].mean())


def _first_slot(heatmap: np.ndarray) -> float:
    return float(heatmap[1:4, 0].mean())


def _first_two(heatmap: np.ndarray) -> float:
    return float(heatmap[-1, :2].sum())


def _observe(trained: Observing) -> Iterator[Observed]:
    study = full_attention(trained.scale).name
    shares = {_EARLIER: _earlier, _FIRST_SLOT: _first_slot, _FIRST_TWO: _first_two}
    # As section 5.4 has it: absolute weights are averaged over heads, then normalised by layer.
    yield from router_shares(trained, study, shares, by_head=False)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return tuple(
        Claim(quantity=quantity, arm="lime", against=START, direction="higher")
        for quantity in (_FIRST_SLOT, _FIRST_TWO)
    )


ARTEFACT = Artefact(
    title="What routers read, averaged over heads",
    claim="Routers rely on more than the own layer: early layers read the first slot much, middle "
    "ones their neighbours, and the last ones go back to the first two.",
    boards=boards,
    observe=_observe,
    claims=_claims,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=("The figure prints no numbers.", START_NOTE),
)
