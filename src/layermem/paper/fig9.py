"""Figure 9: what each head's router reads; the runs are Figure 2's."""

from collections.abc import Iterator

import numpy as np

from layermem.paper.artefact import Artefact, Observing
from layermem.paper.fig1 import NEEDS
from layermem.paper.fig2 import boards
from layermem.paper.fig5 import START, START_NOTE
from layermem.paper.fig11 import full_attention
from layermem.paper.inspecting import router_shares
from layermem.results.study import Claim, Scale
from layermem.study.definition import Observed

_SPREAD = "spread over heads of the share read from earlier layers"


def _spread(heads: np.ndarray) -> float:
    """Return the standard deviation over heads, the mean over layers from 1 on."""
    own = np.stack([heads[layer, :, layer] for layer in range(1, len(heads))])
    return float((1 - own).std(1).mean())


def _observe(trained: Observing) -> Iterator[Observed]:
    study = full_attention(trained.scale).name
    yield from router_shares(trained, study, {_SPREAD: _spread}, by_head=True)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return (Claim(quantity=_SPREAD, arm="lime", against=START, direction="higher"),)


ARTEFACT = Artefact(
    title="What each head's router reads",
    claim="Heads of a layer read different layers, so that routing is learned for each head.",
    boards=boards,
    observe=_observe,
    claims=_claims,
    needs=NEEDS,
    on_gpu=("small", "paper"),
    notes=("The figure prints no numbers; the one here is ours.", START_NOTE),
)
