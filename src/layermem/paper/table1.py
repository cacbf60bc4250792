"""Table 1: eight tasks, three examples each, and the runs that Tables 4 to 6 share."""

from collections.abc import Mapping

from layermem.paper.artefact import Artefact
from layermem.paper.evaluating import AVERAGE, missing, observe_tasks
from layermem.paper.fig1 import NEEDS, grouped_queries
from layermem.results.study import Claim, Drawing, PaperNumber, Scale
from layermem.study.definition import Board

ARMS = ("plain", "hyper_connections", "lime")
"""LLaMA, HC and LIMe of the paper's tables, in their order."""


def boards(scale: Scale) -> tuple[Board, ...]:
    """Return the runs of all tables of tasks."""
    return (grouped_queries(scale, ARMS),)


def evaluation(
    table: str, title: str, claim: str, percents: Mapping[str, tuple[float, float, float]]
) -> Artefact:
    """Return an artefact of a table of tasks.

    ``percents``: each column's numbers of LLaMA, HC and LIMe, as printed.
    """

    def claims(scale: Scale) -> tuple[Claim, ...]:
        return tuple(
            Claim(quantity=AVERAGE, arm="lime", against=other, direction="higher")
            for other in ("plain", "hyper_connections")
        )

    tasks = tuple(task for task in percents if task != AVERAGE)
    return Artefact(
        title=title,
        claim=claim,
        boards=boards,
        observe=observe_tasks(tasks),
        numbers=tuple(
            PaperNumber(
                quantity=task, arm=arm, value=round(percent / 100, 6), where=table, is_share=True
            )
            for task, row in percents.items()
            for arm, percent in zip(ARMS, row, strict=True)
        ),
        claims=claims,
        drawings=lambda scale: (Drawing(kind="bars", up="right answers"),),
        needs=NEEDS,
        on_gpu=("small", "paper"),
        notes=(
            "Models of the smaller scales are far from the paper's 1B: most tasks are at chance. "
            "At scale tiny each task is asked 200 items with one draw of examples, and prompts are "
            "cut at their start to 256 bytes, twice the blocks that models are trained on (some "
            "answers are longer than a block), so that few or none of the examples are seen.",
            "The paper does not say which accuracy it prints: here it is by log-probability, not "
            "by that per character.",
        ),
        tasks=tasks,
        missing=missing(),
    )


ARTEFACT = evaluation(
    "Table 1",
    "LM evaluation, eight tasks, 3-shot, 1B, grouped-query attention",
    "LIMe outperforms LLaMA and Hyper-Connections on average: 51.74 against 48.20 and 49.93.",
    {
        "MultiRC": (43.24, 54.34, 56.15),
        "WiC": (50.00, 49.72, 50.44),
        "QNLI": (49.49, 49.43, 51.43),
        "ARC-E": (70.45, 71.15, 71.15),
        "ARC-C": (38.70, 37.63, 39.30),
        "KV": (45.94, 51.68, 55.64),
        "Induction": (54.20, 51.59, 55.36),
        "LD-3": (33.60, 33.87, 34.47),
        "average": (48.20, 49.93, 51.74),
    },
)
