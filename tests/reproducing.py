"""A made-up artefact, of one study of made-up runs."""

from layermem.experiments.reproduction import observing
from recorded import SIZES

from layermem.config import Run
from layermem.paper.artefact import (
    Artefact,
    Study,
    beside_plain,
)

BASE = Run(preset="made-up", max_steps=40, model=SIZES)


def made_up(rates=(), arms=("plain", "lime"), **changes):
    """Return an artefact of one study of made-up runs, judged by their losses."""
    study = Study(name="study", base=BASE, arms=arms, rates=rates)
    fields = {
        "title": "made up",
        "claim": "LIMe is better.",
        "studies": lambda scale: (study,),
        "observe": lambda trained: observing.losses(trained, "study", "loss"),
        "claims": lambda scale: beside_plain("loss", arms, "lower"),
        **changes,
    }
    return Artefact(**fields)
