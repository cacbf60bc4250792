"""Table 4: GLUE and SuperGLUE; the runs are Table 1's."""

from layermem.paper.table1 import evaluation

ARTEFACT = evaluation(
    "Table 4",
    "GLUE and SuperGLUE, 3-shot, 1B, grouped-query attention",
    "LIMe is ahead of LLaMA and Hyper-Connections on average: 57.86 against 53.96 and 56.77.",
    {
        "COPA": (75.80, 74.00, 75.20),
        "MultiRC": (43.24, 54.34, 56.15),
        "WiC": (50.00, 49.72, 50.44),
        "QNLI": (49.49, 49.43, 51.43),
        "WNLI": (51.27, 56.34, 56.06),
        "average": (53.96, 56.77, 57.86),
    },
)
