"""Table 5: question answering; the runs are Table 1's."""

from layermem.paper.table1 import evaluation

ARTEFACT = evaluation(
    "Table 5",
    "Question answering, 3-shot, 1B, grouped-query attention",
    "LIMe is ahead of LLaMA and Hyper-Connections on average: 50.75 against 49.85 and 50.73.",
    {
        "ARC-E": (70.45, 71.15, 71.15),
        "ARC-C": (38.70, 37.63, 39.30),
        "HellaSwag": (52.55, 54.04, 52.85),
        "OBQA": (37.68, 40.08, 39.68),
        "average": (49.85, 50.73, 50.75),
    },
)
