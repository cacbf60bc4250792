"""Table 6: BIG-bench tasks; the runs are Table 1's."""

from layermem.paper.table1 import evaluation

ARTEFACT = evaluation(
    "Table 6",
    "BIG-bench, 3-shot, 1B, grouped-query attention",
    "LIMe is ahead of LLaMA and Hyper-Connections on average: 32.66 against 30.46 and 31.00.",
    {
        "KV": (45.94, 51.68, 55.64),
        "Induction": (54.20, 51.59, 55.36),
        "DisambQA": (30.16, 26.20, 30.23),
        "LD-5": (19.44, 19.92, 20.72),
        "LD-3": (33.60, 33.87, 34.47),
        "IR": (12.94, 15.29, 14.82),
        "CO": (16.97, 18.48, 17.39),
        "average": (30.46, 31.00, 32.66),
    },
)
