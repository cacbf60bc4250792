"""Table 8: parameters and forward FLOPs, counted in closed form; it trains nothing."""

from collections.abc import Iterator

from layermem.config import Run
from layermem.paper.artefact import Artefact, Observing, no_boards
from layermem.paper.fig1 import grouped_queries
from layermem.paper.fig11 import full_attention
from layermem.paper.step_costs import count
from layermem.paper.table1 import ARMS
from layermem.results.study import Claim, PaperNumber, Scale
from layermem.study.definition import Observed

HALVES = ("grouped queries", "full attention")
"""The halves of Tables 8 and 9, in their order."""
# Parameters and FLOPs as printed, and by which share they exceed LLaMA's.
_PRINTED = {
    ("grouped queries", "plain"): (1.07607e9, 2.7615e12),
    ("grouped queries", "lime"): (1.07608e9, 2.7638e12, 0.0, 0.0008),
    ("grouped queries", "hyper_connections"): (1.07640e9, 2.7701e12, 0.0003, 0.0031),
    ("full attention", "plain"): (1.17674e9, 2.9679e12),
    ("full attention", "lime"): (1.17687e9, 3.0041e12, 0.0001, 0.0122),
    ("full attention", "hyper_connections"): (1.17706e9, 2.9764e12, 0.0003, 0.0029),
}


def sizes(scale: Scale, half: str) -> Run:
    """Return a run of the sizes that half of a table is of."""
    study = grouped_queries(scale) if half == HALVES[0] else full_attention(scale)
    return study.base


def _quantities(half: str) -> tuple[str, str, str, str]:
    return (
        f"parameters, {half}",
        f"forward FLOPs, {half}",
        f"parameters above plain, {half}",
        f"forward FLOPs above plain, {half}",
    )


def _observe(trained: Observing) -> Iterator[Observed]:
    for half in HALVES:
        point = count(sizes(trained.scale, half), ARMS)
        plain = point.counted["plain"]["paper"]
        for arm in ARMS:
            ours = point.counted[arm]["paper"]
            values = (ours.parameters, ours.forward, *ours.overhead(plain))
            for quantity, value in zip(_quantities(half), values, strict=True):
                yield Observed(
                    quantity=quantity,
                    arm=arm,
                    by_seed={0: value},
                    is_share="above" in quantity,
                    counted=True,
                )


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return tuple(
        Claim(quantity=quantity, arm="lime", against=None, direction="equal")
        for half in HALVES
        for quantity in _quantities(half)[2:]
    )


ARTEFACT = Artefact(
    title="Parameters and forward FLOPs, 1B",
    claim="LIMe has +0.00% parameters and +0.08% FLOPs with grouped queries, +0.01% and +1.22% "
    "with full attention.",
    boards=no_boards,
    observe=_observe,
    numbers=tuple(
        PaperNumber(
            quantity=quantity,
            arm=arm,
            value=value,
            where="Table 8",
            is_share="above" in quantity,
        )
        for (half, arm), printed in _PRINTED.items()
        for quantity, value in zip(_quantities(half), printed, strict=False)
    ),
    claims=_claims,
    notes=(
        "FLOPs are in the paper's counting: one for a multiply-add of linear layers and routers, "
        "two for one of attention, to all keys. `layermem costs` has both countings.",
        "Hyper-Connections as implemented here come to other figures than in the paper; nothing is "
        "claimed of them.",
    ),
)
