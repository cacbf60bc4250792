"""The table of learning rates that the arms of a comparison of encoders tried.

It does not know: torch, how a rate is chosen.
"""

from layermem.report.page import Table
from layermem.results.encoder_trials import EncoderTrials


def trials_table(result: EncoderTrials) -> Table:
    """Return a row for each arm and rate."""
    return Table(
        header=["memory", "learning rate", "right answers", "validation loss", ""],
        rows=[
            [
                trial.arm,
                f"{trial.rate:g}",
                "diverged" if trial.right is None else f"{trial.right:.1%}",
                "diverged" if trial.loss is None else f"{trial.loss:.4f}",
                "chosen" if trial.chosen else "",
            ]
            for trial in result.trials
        ],
        caption=f"Learning rates are tried on seed {result.seed}, which counts nowhere else.",
    )
